"""Backends from what users have already: engines, sessionmakers, pools, clients."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from retrysafe.backends import identity
from retrysafe.backends.backend import Backend
from retrysafe.backends.parts import dynamodb_store, library, redis_backend, service_clock, sql_store, without_password
from retrysafe.backends.urls import sqlite
from retrysafe.errors import ConfigurationError


def from_object(store: object) -> Backend:
    if isinstance(store, Backend):
        return store
    for module, name, make in _OBJECTS:
        loaded = sys.modules.get(module)
        if loaded is not None and isinstance(store, getattr(loaded, name)):
            return make(store)
    raise ConfigurationError(
        f"store= is a {type(store).__module__}.{type(store).__qualname__}; expected a URL, a SQLAlchemy engine or "
        "sessionmaker, a pool of psycopg, asyncpg or asyncmy, a client of redis-py, a boto3 DynamoDB client or "
        "Table, a Django alias or connection, or a retrysafe.backends.backend.Backend of your own."
    )


def _engine(engine: Any, sessions: Any = None) -> Backend:
    module = library("sql.drivers.sqlalchemy", "sqlalchemy")
    if engine.dialect.name == "sqlite":
        _refuse_memory(engine.url)
    return Backend(
        sql_store(engine.dialect.name),
        sync=partial(module.EngineClient, engine, sessions),
        asynchronous=None,
        address=str(engine.url),
        places=lambda: identity.of_engine(engine),
        no_transactions=module.ENGINE_AUTOCOMMIT if module.declares_autocommit(engine) else "",
        migrates_itself=engine.dialect.name == "sqlite",
    )


def _async_engine(engine: Any, sessions: Any = None) -> Backend:
    module = library("sql.drivers.sqlalchemy", "sqlalchemy")
    if engine.dialect.name == "sqlite":
        _refuse_memory(engine.url)
        _migrate_file(engine.url.database)
    return Backend(
        sql_store(engine.dialect.name),
        sync=None,
        asynchronous=partial(module.AsyncEngineClient, engine, sessions),
        address=str(engine.url),
        places=lambda: identity.of_engine(engine),
        no_transactions=module.ENGINE_AUTOCOMMIT if module.declares_autocommit(engine) else "",
    )


def _refuse_memory(url: Any) -> None:
    if url.database in (None, "", ":memory:") or "mode=memory" in str(url):
        raise ConfigurationError(
            "store=: a SQLite engine must be on a file. A database in memory is another one for every connection, and "
            "with one shared connection our commits would be yours; for tests, memory:// or a temporary file."
        )


def _migrate_file(path: str) -> None:
    backend = sqlite(f"sqlite:///{path}")
    backend.migrate()
    backend.close()


def _sessionmaker(sessions: Any) -> Backend:
    return _engine(_bind_of(sessions), sessions)


def _async_sessionmaker(sessions: Any) -> Backend:
    return _async_engine(_bind_of(sessions), sessions)


def _bind_of(sessions: Any) -> Any:
    bind = sessions.kw.get("bind")
    if bind is None:
        raise ConfigurationError("store=: the sessionmaker has no engine; make it with sessionmaker(engine).")
    return bind


def _psycopg_pool(pool: Any) -> Backend:
    module = library("sql.drivers.psycopg", "psycopg")
    return Backend(
        sql_store("postgresql"),
        sync=partial(module.PsycopgClient.on, pool),
        asynchronous=None,
        address=without_password(pool.conninfo),
        places=lambda: {identity.pool(pool)},
    )


def _async_psycopg_pool(pool: Any) -> Backend:
    module = library("sql.drivers.psycopg", "psycopg")
    return Backend(
        sql_store("postgresql"),
        sync=None,
        asynchronous=partial(module.AsyncPsycopgClient.on, pool),
        address=without_password(pool.conninfo),
        places=lambda: {identity.pool(pool)},
    )


def _asyncmy_pool(pool: Any) -> Backend:
    module = library("sql.drivers.asyncmy", "mysql")
    return Backend(
        sql_store("mysql"), sync=None, asynchronous=partial(module.AsyncmyClient.on, pool), address="mysql://…"
    )


def _asyncpg_pool(pool: Any) -> Backend:
    module = library("sql.drivers.asyncpg", "asyncpg")
    return Backend(
        sql_store("postgresql"),
        sync=None,
        asynchronous=partial(module.AsyncpgClient, pool),
        address="postgresql://…",
        places=lambda: {identity.pool(pool)},
    )


def _redis_object(module: str, colour: str, kind: str) -> Callable[[Any], Backend]:
    def make(client: Any) -> Backend:
        masters = getattr(library(module, "redis"), kind)
        made = partial(masters, client if colour == "async" or kind == "one_server" else lambda: client, ours=False)
        return redis_backend(
            sync=made if colour == "sync" else None,
            asynchronous=made if colour == "async" else None,
            address="redis://…",
        )

    return make


DYNAMODB_TABLE = "retrysafe_records"
"""The table of a DynamoDB client, which names none."""


def _boto_client(client: Any) -> Backend:
    module, clock = library("dynamodb.client", "dynamodb"), service_clock()
    service = client.meta.service_model.service_name
    if service != "dynamodb":
        raise ConfigurationError(f"store= is a client of {service}; expected one of dynamodb.")
    asynchronous = hasattr(client, "__aenter__")
    return Backend(
        dynamodb_store(DYNAMODB_TABLE, clock, _dynamodb_url(DYNAMODB_TABLE, client)),
        sync=None if asynchronous else partial(module.DynamodbClient, client, clock),
        asynchronous=partial(module.AsyncDynamodbClient, module.Access(), clock, client) if asynchronous else None,
        address=_dynamodb_url(DYNAMODB_TABLE, client),
    )


def _boto_table(table: Any) -> Backend:
    module, clock = library("dynamodb.client", "dynamodb"), service_clock()
    if table.meta.resource_model.name != "Table" or table.meta.service_name != "dynamodb":
        raise ConfigurationError(f"store= is {table!r}; of boto3's resources only a DynamoDB Table can be one.")
    address = _dynamodb_url(table.name, table.meta.client)
    return Backend(
        dynamodb_store(table.name, clock, address),
        sync=partial(module.DynamodbClient, module.Plain(table.meta.client), clock),
        asynchronous=None,
        address=address,
    )


def _dynamodb_url(table: str, client: Any) -> str:
    return f"dynamodb://{table}?region={client.meta.region_name}&endpoint={client.meta.endpoint_url}"


_OBJECTS: tuple[tuple[str, str, Callable[[Any], Backend]], ...] = (
    ("sqlalchemy", "Engine", _engine),
    ("sqlalchemy.ext.asyncio", "AsyncEngine", _async_engine),
    ("sqlalchemy.orm", "sessionmaker", _sessionmaker),
    ("sqlalchemy.ext.asyncio", "async_sessionmaker", _async_sessionmaker),
    ("psycopg_pool", "ConnectionPool", _psycopg_pool),
    ("psycopg_pool", "AsyncConnectionPool", _async_psycopg_pool),
    ("asyncpg", "Pool", _asyncpg_pool),
    ("botocore.client", "BaseClient", _boto_client),
    ("boto3.resources.base", "ServiceResource", _boto_table),
    ("asyncmy", "Pool", _asyncmy_pool),
    ("redis", "Redis", _redis_object("redis.client", "sync", "one_server")),
    ("redis.asyncio", "Redis", _redis_object("redis.async_client", "async", "one_server")),
    ("redis.cluster", "RedisCluster", _redis_object("redis.client", "sync", "cluster")),
    ("redis.asyncio.cluster", "RedisCluster", _redis_object("redis.async_client", "async", "cluster")),
)
