"""Backends on SQL databases, from engines, sessionmakers and pools."""

from __future__ import annotations

from functools import partial
from typing import Any

from retrysafe.backends import identity
from retrysafe.backends.backend import Backend
from retrysafe.backends.sql.drivers.sqlite import SqliteClient, SqliteFile
from retrysafe.backends.sql.urls import driver, sqlite, store_of
from retrysafe.backends.urls import without_password
from retrysafe.errors import ConfigurationError


def of_engine(engine: Any, sessions: Any = None) -> Backend:
    module = driver("sqlalchemy", "sqlalchemy")
    if engine.dialect.is_async:
        raise ConfigurationError(
            f"store=: the engine was made by create_engine, and its driver {engine.dialect.driver} is for async code: "
            "make it by create_async_engine."
        )
    if engine.dialect.name == "sqlite":
        _refuse_memory(engine.url)
    module.watch(engine)
    return Backend(
        store_of(engine.dialect.name),
        sync=partial(module.EngineClient, engine, sessions),
        asynchronous=None,
        address=str(engine.url),
        places=lambda: identity.of_engine(engine),
        no_transactions=module.ENGINE_AUTOCOMMIT if module.declares_autocommit(engine) else "",
        migrates_itself=engine.dialect.name == "sqlite",
        on_demand=partial(module.EngineClient, engine) if engine.dialect.name == "sqlite" else None,
    )


def of_async_engine(engine: Any, sessions: Any = None) -> Backend:
    module = driver("sqlalchemy", "sqlalchemy")
    if engine.dialect.name == "sqlite":
        _refuse_memory(engine.url)
        _prepare(engine.url.database)
    module.watch(engine.sync_engine)
    return Backend(
        store_of(engine.dialect.name),
        sync=None,
        asynchronous=partial(module.AsyncEngineClient, engine, sessions),
        on_demand=partial(_client_of_file, engine.url.database) if engine.dialect.name == "sqlite" else None,
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


def _prepare(path: str) -> None:
    backend = sqlite(f"sqlite:///{path}")
    backend.prepare()
    backend.close()


def _client_of_file(path: str) -> SqliteClient:
    return SqliteClient(SqliteFile(path))


def of_sessionmaker(sessions: Any) -> Backend:
    return of_engine(_bind_of(sessions), sessions)


def of_async_sessionmaker(sessions: Any) -> Backend:
    return of_async_engine(_bind_of(sessions), sessions)


def _bind_of(sessions: Any) -> Any:
    bind = sessions.kw.get("bind")
    if bind is None:
        raise ConfigurationError("store=: the sessionmaker has no engine; make it with sessionmaker(engine).")
    return bind


def of_psycopg_pool(pool: Any) -> Backend:
    module = driver("psycopg", "psycopg")
    return Backend(
        store_of("postgresql"),
        sync=partial(module.PsycopgClient.beside, pool),
        asynchronous=None,
        address=without_password(pool.conninfo) if isinstance(pool.conninfo, str) else "postgresql://…",
        places=lambda: {identity.pool(pool)},
    )


def of_async_psycopg_pool(pool: Any) -> Backend:
    module = driver("psycopg", "psycopg")
    return Backend(
        store_of("postgresql"),
        sync=None,
        asynchronous=partial(module.AsyncPsycopgClient.beside, pool),
        address=without_password(pool.conninfo) if isinstance(pool.conninfo, str) else "postgresql://…",
        places=lambda: {identity.pool(pool)},
    )


def of_asyncmy_pool(pool: Any) -> Backend:
    module = driver("asyncmy", "mysql")
    return Backend(
        store_of("mysql"), sync=None, asynchronous=partial(module.AsyncmyClient.beside, pool), address="mysql://…"
    )


def of_asyncpg_pool(pool: Any) -> Backend:
    module = driver("asyncpg", "asyncpg")
    return Backend(
        store_of("postgresql"),
        sync=None,
        asynchronous=partial(module.AsyncpgClient.beside, pool),
        address="postgresql://…",
        places=lambda: {identity.pool(pool)},
    )
