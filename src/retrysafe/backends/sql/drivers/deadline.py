"""Deadlines for connections whose library has no option for one statement.

A server that has gone away for good is noticed by the operating system; one that is reachable and silent, or something
in between that swallows everything, only by a clock of our own. It runs for our statements alone: a handler's may take
as long as they like. A connection that was given up is closed, because its answer may still come.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

from retrysafe.protocol.requests import Query
from retrysafe.runtime import new_lock

R = TypeVar("R")

DEADLINE = 10.0
"""Seconds after which a server that does not answer counts as gone."""
PATIENCE = 86400.0
"""Seconds that a schema's statement may take: it reads whole tables. What it waits for, the server bounds."""


def of(query: Query) -> float:
    """Seconds within which a statement has to be answered."""
    return PATIENCE if query.patient else DEADLINE


def timely(connection: Any, seconds: float) -> AbstractContextManager[None]:
    """Bound the wait of a sync connection in this block; psycopg's and PyMySQL's, of any origin.

    Beyond it the library's own error for a lost connection is raised.
    """
    if hasattr(connection, "pgconn"):
        return _psycopg(connection, seconds)
    if hasattr(connection, "_read_timeout") and hasattr(connection, "_write_timeout"):
        return _pymysql(connection, seconds)
    return nullcontext()


def until(gen: Generator[Any, Any, R], connection: Any, seconds: float) -> Generator[Any, Any, R]:
    """Bound a generator of psycopg's, which a connection of any origin waits for."""
    give_up_at = time.monotonic() + seconds
    try:
        state = next(gen)
        while True:
            ready = yield state
            if time.monotonic() > give_up_at:
                import psycopg

                connection.pgconn.finish()
                raise psycopg.OperationalError(_silent(seconds))
            state = gen.send(ready)
    except StopIteration as stop:
        outcome: R = stop.value
        return outcome


def _psycopg(connection: Any, seconds: float) -> AbstractContextManager[None]:
    """`wait` is where psycopg blocks, and it looks up at least every tenth of a second."""
    before = type(connection).wait

    def wait(gen: Any, *args: Any, **kwargs: Any) -> Any:
        patience = _patiences(connection).get(threading.get_ident())
        return before(connection, gen if patience is None else until(gen, connection, patience), *args, **kwargs)

    return _waiting_by(connection, wait, threading.get_ident(), seconds)


@contextmanager
def _pymysql(connection: Any, seconds: float) -> Iterator[None]:
    """Its own time-outs, which it closes the connection after, for as long as the block lasts."""
    before = connection._read_timeout, connection._write_timeout
    connection._read_timeout, connection._write_timeout = (min(seconds, own or seconds) for own in before)
    try:
        yield
    finally:
        connection._read_timeout, connection._write_timeout = before


_installing = new_lock()
_PATIENCES = "_retrysafe_patiences"


def _patiences(connection: Any) -> dict[int, float]:
    """Return the deadline of each thread that is in a block of ours; others have none."""
    found: dict[int, float] = vars(connection).setdefault(_PATIENCES, {})
    return found


@contextmanager
def _waiting_by(connection: Any, wait: Any, thread: int, seconds: float) -> Iterator[None]:
    """Let a psycopg connection, which may be shared, wait by this function as long as anybody is in a block."""
    with _installing:
        patiences = _patiences(connection)
        outer = patiences.get(thread)
        if not patiences:
            vars(connection)["wait"] = wait
        patiences[thread] = seconds
    try:
        yield
    finally:
        with _installing:
            if outer is not None:
                patiences[thread] = outer
            else:
                patiences.pop(thread, None)
            if not patiences:
                vars(connection).pop("wait", None)


def _silent(seconds: float) -> str:
    return f"no answer within {seconds:g} s"
