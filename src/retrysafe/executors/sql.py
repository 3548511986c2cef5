"""What the SQL executors share: parameter styles, the chain of a query, and what errors mean."""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from typing import Any, NoReturn

from retrysafe.errors import ConfigurationError, RetryTransaction, SchemaOutdated, StoreUnavailable
from retrysafe.ports import Query, Rows

_PARAMETER = re.compile(r"(?<!:):([a-z_]+\d*)")
RESTART = frozenset({"40001", "40P01"})
_ABORTED = "25P02"
_STORE_CLASSES = frozenset({"08", "25", "53", "55", "57", "58", "XX"})
"""Classes of SQLSTATE that speak of the server, the connection or its locks, not of anybody's data."""
_NO_SCHEMA = frozenset({"42P01", "42703"})
_SQLITE_BUSY = 5
MIGRATE = "Run:  retrysafe migrate --store URL"

ABORTED = (
    "An earlier error in the transaction has aborted it, so nothing in it can be committed: roll it back. "
    "To go on after a statement that may fail, put a savepoint around it."
)
AUTOCOMMIT = (
    "tx= is a connection in autocommit mode, so the claim and the work could not commit together. "
    "Begin a transaction first, and pass the connection inside it."
)


@lru_cache(maxsize=512)
def positional(sql: str, style: str) -> tuple[str, tuple[str, ...]]:
    """Render ``:name`` parameters in a positional style ("?", "%s" or "$"), with the names in order."""
    names: list[str] = []

    def replace(match: re.Match[str]) -> str:
        name = match[1]
        if style == "$":
            if name not in names:
                names.append(name)
            return f"${names.index(name) + 1}"
        names.append(name)
        return style

    return _PARAMETER.sub(replace, sql.replace("%", "%%") if style == "%s" else sql), tuple(names)


def arguments(query: Query, style: str) -> tuple[str, list[Any]]:
    """Return the statement and its arguments for a positional style."""
    sql, names = positional(query.sql, style)
    return sql, [query.params[name] for name in names]


def in_turn(query: Query, perform: Callable[[Query], Rows]) -> Rows:
    """Perform a query, and its ``otherwise`` as long as there is no row."""
    rows = perform(query)
    while not rows.rows and query.otherwise is not None:
        query = query.otherwise
        rows = perform(query)
    return rows


async def ain_turn(query: Query, perform: Callable[[Query], Awaitable[Rows]]) -> Rows:
    """`in_turn` for async executors."""
    rows = await perform(query)
    while not rows.rows and query.otherwise is not None:
        query = query.otherwise
        rows = await perform(query)
    return rows


def sqlstate(error: BaseException) -> str | None:
    """The SQLSTATE of a driver's error, also when SQLAlchemy or Django has wrapped it."""
    for candidate in (error, _drivers(error), _drivers(error).__cause__):
        state = getattr(candidate, "sqlstate", None)
        if isinstance(state, str):
            return state
    return None


def _drivers(error: BaseException) -> BaseException:
    """The driver's error inside the one that SQLAlchemy or Django made of it."""
    wrapped = error.__cause__ if type(error).__module__ == "django.db.utils" else getattr(error, "orig", None)
    return wrapped or error


def wants_restart(error: BaseException) -> bool:
    """Whether the database asked for the whole transaction again: serialization failure or deadlock."""
    return isinstance(error, RetryTransaction) or sqlstate(error) in RESTART


_USERS_OWN = frozenset(
    {"IntegrityError", "DataError", "IntegrityConstraintViolationError", "TriggeredDataChangeViolationError"}
)
"""Class names, in every driver, of errors that the user's data caused: they surface at a flush or commit."""


def fail(error: Exception, *, alone: bool = False) -> NoReturn:
    """Raise the error of ours that a driver's error amounts to; what the user's data caused stays as it is.

    ``alone``: the statement was in a transaction of its own, which can simply be put again.
    """
    mine = translated(error, alone=alone)
    if mine is error:
        raise error
    raise mine from error


def translated(error: Exception, *, alone: bool = False) -> Exception:
    """What `fail` raises."""
    if not _USERS_OWN.isdisjoint(kind.__name__ for kind in type(error).__mro__):
        return error
    state = sqlstate(error)
    text = str(_drivers(error)).strip() or type(error).__name__
    if "retrysafe_" in text and (state in _NO_SCHEMA or "no such" in text):
        first = text.splitlines()[0]
        return SchemaOutdated(f"{first}. {MIGRATE}. If this came from tx=, it may be on another database than store=.")
    if state is not None and not alone:
        if state in RESTART:
            return RetryTransaction(text)
        if state == _ABORTED:
            return ConfigurationError(ABORTED)
        if state[:2] not in _STORE_CLASSES:
            return error
    return StoreUnavailable(text, unsent=_was_busy(error))


def _was_busy(error: Exception) -> bool:
    """Whether SQLite refused because of another writer: then nothing was done, and we have waited already."""
    code = getattr(_drivers(error), "sqlite_errorcode", 0)
    return code & 0xFF == _SQLITE_BUSY


def this_process() -> Callable[[], bool]:
    """A test that is true until a fork: what a child inherits, it must not end."""
    pid = os.getpid()
    return lambda: os.getpid() == pid


def url_options(options: Mapping[str, str], known: tuple[str, ...], url_kind: str) -> None:
    """Refuse an option that a URL cannot have."""
    for name in options:
        if name not in known:
            raise ConfigurationError(f"store=: a {url_kind} URL has no option {name!r}; it has {', '.join(known)}.")
