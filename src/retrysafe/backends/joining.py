"""Executors on the transaction of a caller, chosen by its type."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from retrysafe.backends import identity
from retrysafe.backends.backend import Backend, Place
from retrysafe.backends.registry import aliased
from retrysafe.backends.spec import library
from retrysafe.errors import ConfigurationError

if TYPE_CHECKING:
    from retrysafe.protocol.client import AsyncExecutor, Executor


class Joining(NamedTuple):
    """Executors on a transaction that was handed to us; one of them is None where the colour is fixed.

    ``tx`` is what the handler works with, if that is not what was handed over.
    """

    execute: Executor | None
    aexecute: AsyncExecutor | None
    tx: Any = None
    place: Place | None = None
    """The database that it leads to, as far as it shows."""


def join(backend: Backend, tx: Any) -> Joining:
    """Executors on the caller's transaction, chosen by its type."""
    if isinstance(tx, str):
        _refuse_text(tx)
    if isinstance(tx, str) or aliased(tx) is not tx:
        return _join_django(backend, tx)
    for module, name in _SCOPED:
        loaded = sys.modules.get(module)
        if loaded is not None and isinstance(tx, getattr(loaded, name)):
            return join(backend, tx.registry())
    for module, name, kind_of, place_of, make in _JOINABLE:
        loaded = sys.modules.get(module)
        if loaded is not None and isinstance(tx, getattr(loaded, name)):
            _refuse_other_kind(backend, kind_of(tx))
            return make(tx)._replace(place=place_of(tx))
    raise ConfigurationError(
        f"tx= is a {type(tx).__module__}.{type(tx).__qualname__}; expected a connection or session of sqlite3, "
        "psycopg, asyncpg, PyMySQL, asyncmy or SQLAlchemy that is in a transaction, or a Django alias or connection."
    )


def _refuse_text(tx: str) -> None:
    """Raise `ConfigurationError` for text that cannot be an alias of Django's DATABASES."""
    if "://" in tx:
        raise ConfigurationError("tx= is a URL. Pass the open connection or session that does the work.")
    if find_spec("django") is None:
        raise ConfigurationError(
            f"tx={tx!r} is text, which stands for an alias of Django's DATABASES, and Django is missing. "
            "Pass the open connection or session that does the work."
        )


def _refuse_other_kind(backend: Backend, kind: str) -> None:
    if kind != backend.kind:
        raise ConfigurationError(
            f"tx= is a {kind} transaction, but store= is {backend.kind}: they cannot commit together."
        )


def _fixed(kind: str) -> Callable[[Any], str]:
    return lambda tx: kind


def _dialect(tx: Any) -> str:
    bind = getattr(tx, "dialect", None) or tx.get_bind().dialect
    return "mysql" if bind.name == "mariadb" else str(bind.name)


def _join_sqlite(tx: Any) -> Joining:
    from retrysafe.backends.sql.drivers.sqlite import Joined
    from retrysafe.backends.sql.drivers.sqlite_async import AsyncJoined

    joined = Joined(tx)
    return Joining(joined, AsyncJoined(joined))


def _driver(name: str, extra: str) -> Any:
    return library(f"retrysafe.backends.sql.drivers.{name}", extra)


def _join_sync(module: str, extra: str, maker: str) -> Callable[[Any], Joining]:
    return lambda tx: Joining(getattr(_driver(module, extra), maker)(tx), None)


def _join_async(module: str, extra: str, maker: str) -> Callable[[Any], Joining]:
    return lambda tx: Joining(None, getattr(_driver(module, extra), maker)(tx))


def _join_django(backend: Backend, tx: Any) -> Joining:
    module = _driver("django", "django")
    connection = module.connection_of(tx)
    _refuse_other_kind(backend, connection.vendor)
    return Joining(module.join(connection, backend.address), None, connection, ("django", connection.alias))


_SCOPED = (("sqlalchemy.orm", "scoped_session"), ("sqlalchemy.ext.asyncio", "async_scoped_session"))
"""Registries of sessions, which stand for the session of the current scope."""

_JOINABLE: tuple[
    tuple[str, str, Callable[[Any], str], Callable[[Any], Place | None], Callable[[Any], Joining]], ...
] = (
    ("sqlite3", "Connection", _fixed("sqlite"), identity.of_sqlite, _join_sqlite),
    (
        "psycopg",
        "Connection",
        _fixed("postgresql"),
        identity.of_psycopg,
        _join_sync("psycopg", "psycopg", "join"),
    ),
    (
        "psycopg",
        "AsyncConnection",
        _fixed("postgresql"),
        identity.of_psycopg,
        _join_async("psycopg", "psycopg", "ajoin"),
    ),
    (
        "asyncpg",
        "Connection",
        _fixed("postgresql"),
        identity.of_asyncpg,
        _join_async("asyncpg", "asyncpg", "ajoin"),
    ),
    (
        "asyncpg.pool",
        "PoolConnectionProxy",
        _fixed("postgresql"),
        identity.of_asyncpg,
        _join_async("asyncpg", "asyncpg", "ajoin"),
    ),
    (
        "pymysql.connections",
        "Connection",
        _fixed("mysql"),
        identity.of_mysql,
        _join_sync("pymysql", "mysql", "join"),
    ),
    (
        "asyncmy.connection",
        "Connection",
        _fixed("mysql"),
        identity.of_mysql,
        _join_async("asyncmy", "mysql", "ajoin"),
    ),
    (
        "sqlalchemy",
        "Connection",
        _dialect,
        identity.of_sqlalchemy,
        _join_sync("sqlalchemy", "sqlalchemy", "Joined"),
    ),
    (
        "sqlalchemy.orm",
        "Session",
        _dialect,
        identity.of_sqlalchemy,
        _join_sync("sqlalchemy", "sqlalchemy", "Joined"),
    ),
    (
        "sqlalchemy.ext.asyncio",
        "AsyncConnection",
        _dialect,
        identity.of_sqlalchemy,
        _join_async("sqlalchemy", "sqlalchemy", "AsyncJoined"),
    ),
    (
        "sqlalchemy.ext.asyncio",
        "AsyncSession",
        _dialect,
        identity.of_sqlalchemy,
        _join_async("sqlalchemy", "sqlalchemy", "AsyncJoined"),
    ),
)
