"""Deadlines for connections whose library has no option for one statement.

A server that has gone away for good is noticed by the operating system; one that is reachable and silent, or something
in between that swallows everything, only by a clock of our own. It runs for our statements alone: a handler's may take
as long as they like. A connection that was given up is closed, because its answer may still come.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

from retrysafe import lazy
from retrysafe.protocol.requests import Query

R = TypeVar("R")

DEADLINE = 10.0
"""Seconds after which a server that does not answer counts as gone."""
PATIENCE = 86400.0
"""Seconds that a schema's statement may take: it reads whole tables. What it waits for, the server bounds."""


def of(query: Query) -> float:
    return PATIENCE if query.patient else DEADLINE


def timely(connection: Any, seconds: float) -> AbstractContextManager[None]:
    """Bound the wait of a sync connection, which one thread uses, in this block; psycopg's and PyMySQL's.

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
                connection.pgconn.finish()
                raise lazy.psycopg.OperationalError(f"no answer within {seconds:g} s")
            state = gen.send(ready)
    except StopIteration as stop:
        outcome: R = stop.value
        return outcome


@contextmanager
def _psycopg(connection: Any, seconds: float) -> Iterator[None]:
    """`wait` is where psycopg blocks, and it looks up at least every tenth of a second."""
    outer = vars(connection).get("wait")
    wait = connection.wait
    connection.wait = lambda gen, *args, **options: wait(until(gen, connection, seconds), *args, **options)
    try:
        yield
    finally:
        del connection.wait
        if outer is not None:
            connection.wait = outer


@contextmanager
def _pymysql(connection: Any, seconds: float) -> Iterator[None]:
    """Its own time-outs, which it closes the connection after, for as long as the block lasts."""
    before = connection._read_timeout, connection._write_timeout
    connection._read_timeout, connection._write_timeout = (min(seconds, own or seconds) for own in before)
    try:
        yield
    finally:
        connection._read_timeout, connection._write_timeout = before
