"""Backends on SQL databases, from engines and sessionmakers."""

from __future__ import annotations

from functools import partial
from typing import Any

from sqlalchemy.exc import UnboundExecutionError

from retrysafe.backends import identity
from retrysafe.backends.backend import Backend
from retrysafe.backends.spec import StoreAccess
from retrysafe.backends.sql import store_of
from retrysafe.backends.sql.drivers import sqlalchemy as driver
from retrysafe.backends.sql.drivers import sqlalchemy_engines as engines
from retrysafe.backends.sql.drivers import sqlalchemy_tenants as tenants
from retrysafe.backends.sql.drivers.base import ENGINE_AUTOCOMMIT
from retrysafe.backends.sql.drivers.sqlite import SqliteClient, SqliteFile
from retrysafe.backends.sql.urls import sqlite
from retrysafe.errors import ConfigurationError


def of_engine(engine: Any, sessions: Any = None) -> Backend:
    if engine.dialect.is_async:
        raise ConfigurationError(
            f"store=: the engine was made by create_engine, and its driver {engine.dialect.driver} is for async code: "
            "make it by create_async_engine."
        )
    tenants.watch(engine)
    access = _access(engine)._replace(sync=partial(engines.EngineClient, engine, sessions))
    if engine.dialect.name == "sqlite":
        access = access._replace(migrates_itself=True, on_demand=partial(engines.EngineClient, engine))
    return Backend(store_of(engine.dialect.name), access)


def of_async_engine(engine: Any, sessions: Any = None) -> Backend:
    access = _access(engine)._replace(asynchronous=partial(engines.AsyncEngineClient, engine, sessions))
    if engine.dialect.name == "sqlite":
        _prepare(engine.url.database)
        access = access._replace(on_demand=lambda: SqliteClient(SqliteFile(engine.url.database)))
    tenants.watch(engine.sync_engine)
    return Backend(store_of(engine.dialect.name), access)


def _access(engine: Any) -> StoreAccess:
    driver.refuse_driver(engine.dialect, "store=")
    if engine.dialect.name == "sqlite":
        _refuse_memory(engine.url)
    return StoreAccess(
        address=str(engine.url),
        places=lambda: identity.of_engine(engine),
        no_transactions=ENGINE_AUTOCOMMIT if engines.declares_autocommit(engine) else "",
    )


def _refuse_memory(url: Any) -> None:
    if url.database in (None, "", ":memory:") or "mode=memory" in str(url):
        raise ConfigurationError(
            "store=: a SQLite engine must be on a file. A database in memory is another one for every connection, and "
            "with one shared connection our commits would be yours; for tests, memory:// or a temporary file."
        )


def _prepare(path: str) -> None:
    backend = sqlite(f"sqlite:///{path}")
    backend.tables.prepare()
    backend.close()


def of_sessionmaker(sessions: Any) -> Backend:
    engine = sessions.kw.get("bind") or _find_engine(sessions)
    return (of_async_engine if hasattr(engine, "sync_engine") else of_engine)(engine, sessions)


def _find_engine(sessions: Any) -> Any:
    """The engine that sessions choose by themselves, as those of Flask-SQLAlchemy do."""
    try:
        return sessions().get_bind()
    except UnboundExecutionError as error:
        raise ConfigurationError(
            "store=: the sessionmaker has no engine; make it with sessionmaker(engine)."
        ) from error
