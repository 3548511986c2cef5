"""The stores of SQL databases, by dialect; the module of one is imported when it is met."""

from __future__ import annotations

import importlib
from typing import Any

from retrysafe.errors import ConfigurationError

_STORES = {
    "sqlite": "sqlite:SqliteStore",
    "postgresql": "postgresql:PostgresqlStore",
    "mysql": "mysql:MysqlStore",
    "mariadb": "mysql:MysqlStore",
}


def store_of(dialect: str) -> Any:
    """A store of a dialect. Raises `ConfigurationError` for one that has none."""
    if dialect not in _STORES:
        raise ConfigurationError(
            f"store=: a {dialect!r} database is not supported; supported are {', '.join(_STORES)}."
        )
    module, _, name = _STORES[dialect].partition(":")
    return getattr(importlib.import_module(f"retrysafe.backends.sql.{module}"), name)()
