"""How long an answer is waited for, on connections whose library has no option for one statement.

A server that has gone away for good is noticed by the operating system; one that is reachable and silent, or something
in between that swallows everything, only by a clock of our own. It runs for our statements alone: a handler's may take
as long as they like. A connection that was given up is closed, because its answer may still come.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext, suppress
from typing import Any

from retrysafe.errors import StoreUnavailable


def timely(connection: Any, seconds: float) -> AbstractContextManager[None]:
    """Bound how long a sync connection waits in this block; psycopg's and PyMySQL's, whoever opened it.

    Beyond it the library's own error for a lost connection is raised.
    """
    if hasattr(connection, "pgconn"):
        return _psycopg(connection, seconds)
    if hasattr(connection, "_read_timeout"):
        return _pymysql(connection, seconds)
    return nullcontext()


@contextmanager
def _psycopg(connection: Any, seconds: float) -> Iterator[None]:
    """`wait` is where psycopg blocks, and it looks up at least every tenth of a second.

    The connection may be shared with other threads, whose statements take as long as they like.
    """
    own, before, mine = vars(connection), connection.wait, threading.get_ident()

    def wait(gen: Any, *args: Any, **kwargs: Any) -> Any:
        return before(_until(gen, connection, seconds) if threading.get_ident() == mine else gen, *args, **kwargs)

    outer = own.get("wait")
    own["wait"] = wait
    try:
        yield
    finally:
        if outer is None:
            del own["wait"]
        else:
            own["wait"] = outer


def _until(gen: Generator[Any, Any, Any], connection: Any, seconds: float) -> Any:
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
        return stop.value


@contextmanager
def _pymysql(connection: Any, seconds: float) -> Iterator[None]:
    """Its own time-outs, which it closes the connection after, for as long as the block lasts."""
    before = connection._read_timeout, connection._write_timeout
    connection._read_timeout = connection._write_timeout = seconds
    try:
        yield
    finally:
        connection._read_timeout, connection._write_timeout = before


@asynccontextmanager
async def atimely(connection: Any, seconds: float) -> AsyncIterator[None]:
    """Hang up on the server of an async psycopg connection that does not answer in this block.

    Cancelling the statement instead would ask the server to cancel it, and wait for that answer too.
    """
    late = False

    def hang_up() -> None:
        nonlocal late
        late = True
        with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as copy:
            copy.shutdown(socket.SHUT_RDWR)

    timer = asyncio.get_running_loop().call_later(seconds, hang_up)
    try:
        yield
    except Exception as error:
        if late:
            raise StoreUnavailable(_silent(seconds)) from error
        raise
    finally:
        timer.cancel()


def _silent(seconds: float) -> str:
    return f"no answer within {seconds:g} s"
