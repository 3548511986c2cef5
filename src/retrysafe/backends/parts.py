"""What the ways to a backend share: libraries imported when they are chosen, and stores by their kind."""

from __future__ import annotations

import importlib
import re
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from retrysafe.backends.backend import Backend
from retrysafe.errors import ConfigurationError


def library(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(f"retrysafe.backends.{module}")
    except ImportError as error:
        raise ConfigurationError(
            f"store= needs a library that is missing ({error}). Run:  pip install 'retrysafe[{extra}]'"
        ) from error


def sql_store(dialect: str) -> Any:
    from retrysafe.backends.sql.mysql import MysqlStore
    from retrysafe.backends.sql.postgresql import PostgresqlStore
    from retrysafe.backends.sql.sqlite import SqliteStore

    kinds: dict[str, type[Any]] = {
        "sqlite": SqliteStore,
        "postgresql": PostgresqlStore,
        "mysql": MysqlStore,
        "mariadb": MysqlStore,
    }
    if dialect not in kinds:
        raise ConfigurationError(f"store=: a {dialect!r} database is not supported; supported are {', '.join(kinds)}.")
    return kinds[dialect]()


def redis_backend(sync: Any, asynchronous: Any, address: str, most: int | None = None) -> Backend:
    """A backend over what makes the masters for sync code, and for a loop; one of them may be None."""
    from retrysafe.backends.redis.store import RedisStore, name_of

    module, amodule = library("redis.client", "redis"), library("redis.async_client", "redis")
    listening = library("redis.listener", "redis")

    def heard_by(masters: Any, listener: Any) -> Any:
        return None if masters is None else lambda heard: listener(masters(), name_of, heard)

    return Backend(
        RedisStore(),
        sync=None if sync is None else lambda: module.RedisClient(sync(), most),
        asynchronous=None if asynchronous is None else lambda: amodule.AsyncRedisClient(asynchronous()),
        listening=heard_by(sync, listening.RedisListener),
        alistening=heard_by(asynchronous, listening.AsyncRedisListener),
        address=address,
    )


def service_clock() -> Any:
    from retrysafe.backends.dynamodb.service_clock import ServiceClock

    return ServiceClock()


def dynamodb_store(table: str, clock: Any, address: str) -> Any:
    from retrysafe.backends.dynamodb.store import DynamodbStore

    return DynamodbStore(table, clock, address)


_SECRET = re.compile(r"(?i)((?:ssl)?pass(?:word|file)\s*=\s*)('(?:[^'\\\\]|\\\\.)*'|[^&\s]+)")


def without_password(url: str) -> str:
    """A URL or conninfo as it may be shown."""
    parts = urlsplit(url)
    if "://" in url and parts.password is not None:
        url = urlunsplit(parts._replace(netloc=parts.netloc.replace(f":{parts.password}@", ":***@")))
    return _SECRET.sub(r"\1***", url)
