"""Executors on the transaction of a caller, chosen by its type."""

from __future__ import annotations

import sys
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from retrysafe.backends.registry import specs
from retrysafe.errors import ConfigurationError

if TYPE_CHECKING:
    from retrysafe.backends.backend import Backend
    from retrysafe.backends.spec import BackendSpec
    from retrysafe.backends.sql.drivers.base import Joining


def join(backend: Backend, tx: Any) -> Joining:
    """Executors on the caller's transaction, chosen by its type."""
    if isinstance(tx, str):
        _refuse_text(tx)
    for module, name, spec, reference in _joinable():
        loaded = sys.modules.get(module)
        if loaded is not None and isinstance(tx, getattr(loaded, name)):
            joining: Joining = spec.load(reference)(tx, backend.kind, backend.address)
            return joining
    raise ConfigurationError(
        f"tx= is a {type(tx).__module__}.{type(tx).__qualname__}; expected a connection or session of sqlite3, "
        "psycopg, asyncpg, PyMySQL, asyncmy or SQLAlchemy that is in a transaction, or a Django alias or connection."
    )


@cache
def _joinable() -> tuple[tuple[str, str, BackendSpec, str], ...]:
    """The types of transactions: module, name, and the function of a spec that joins one."""
    return tuple(
        (*kind.split(":"), spec, reference)  # type: ignore[misc]
        for spec in specs()
        for kind, reference in spec.transactions.items()
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
