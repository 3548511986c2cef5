"""Every store there is, for whatever speaks of them all: documentation and tests."""

from __future__ import annotations

from retrysafe.backends.dynamodb.store import DynamodbStore
from retrysafe.backends.memory.store import MemoryStore
from retrysafe.backends.redis.store import RedisStore
from retrysafe.backends.sql.mysql import MysqlStore
from retrysafe.backends.sql.postgresql import PostgresqlStore
from retrysafe.backends.sql.sqlite import SqliteStore

STORES = (MemoryStore, SqliteStore, PostgresqlStore, MysqlStore, RedisStore, DynamodbStore)
