"""Every store there is, for whatever speaks of them all: documentation and tests."""

from __future__ import annotations

from retrysafe.stores.dynamodb import DynamodbStore
from retrysafe.stores.memory import MemoryStore
from retrysafe.stores.mysql import MysqlStore
from retrysafe.stores.postgresql import PostgresqlStore
from retrysafe.stores.redis import RedisStore
from retrysafe.stores.sqlite import SqliteStore

STORES = (MemoryStore, SqliteStore, PostgresqlStore, MysqlStore, RedisStore, DynamodbStore)
