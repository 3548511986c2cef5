"""Executors on the transaction of a caller, chosen by its type."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from retrysafe.backends.registry import find_function, specs
from retrysafe.errors import ConfigurationError

if TYPE_CHECKING:
    from retrysafe.backends.backend import Backend
    from retrysafe.backends.spec import Joining


def join(backend: Backend, tx: Any) -> Joining:
    """Executors on the caller's transaction, which must be on the backend's kind of database."""
    return _join(tx, backend.kind, backend.address)


def join_any(tx: Any) -> Joining:
    """Executors on the caller's transaction, on whichever database it is."""
    return _join(tx, "", "")


def _join(tx: Any, kind: str, address: str) -> Joining:
    if isinstance(tx, str):
        _refuse_text(tx)
    return _joiner_of(tx.__class__)(tx, kind, address)


@lru_cache(maxsize=64)
def _joiner_of(given: type) -> Callable[[Any, str, str], Joining]:
    found = find_function(given, lambda spec: spec.transactions)
    if found is not None:
        return found
    libraries = {kind.partition(":")[0].partition(".")[0] for spec in specs() for kind in spec.transactions}
    raise ConfigurationError(
        f"tx= is a {given.__module__}.{given.__qualname__}; expected a connection or session of "
        f"{', '.join(sorted(libraries - {'builtins', 'django'}))} that is in a transaction, or a Django alias or "
        "connection."
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
