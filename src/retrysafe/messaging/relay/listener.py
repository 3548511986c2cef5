"""Relays that hear from PostgreSQL that another process has written: a thread with a connection of its own.

What it misses while it is cut off, relays find by looking; when it is back, they look at once.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import selectors
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from retrysafe.backends.sql.drivers.base import is_direct, question
from retrysafe.backends.sql.drivers.deadline import timely
from retrysafe.backends.sql.postgresql import CHANNEL
from retrysafe.errors import ConfigurationError
from retrysafe.messaging.relay.answers import Stopped, answered
from retrysafe.messaging.relay.poll_schedule import RECOVERY
from retrysafe.stop_signal import StopSignal

CONNECT = 10
"""Seconds that making a connection may take."""
ANSWER = 5.0
"""Seconds that the server may take to listen; who hangs up waits no longer for one that is silent."""


class Listening:
    """Calls ``heard`` for every notification, and when it has connected again. Needs psycopg, for async code too."""

    def __init__(self, url: str, heard: Callable[[], object]) -> None:
        self._url, self._heard = url, heard
        self._closed = threading.Event()
        self._process = os.getpid()
        self._end, self._other_end = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="retrysafe-listen", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Hang up, and wait for the thread's end; a child that was forked meanwhile has no thread, but both ends."""
        self._closed.set()
        if self._process == os.getpid():
            self._other_end.shutdown(socket.SHUT_RDWR)
        self._other_end.close()
        self._thread.join()
        self._end.close()

    def _run(self) -> None:
        failures = 0
        while not self._closed.is_set():
            try:
                with self._connected() as connection:
                    failures = 0
                    self._hear(connection)
            except Exception:  # noqa: BLE001 - whatever befalls it: relays look by themselves meanwhile
                self._closed.wait(RECOVERY.delay(failures, random.random()))
                failures += 1

    def _connected(self) -> Any:
        return _connected(self._url)

    def _hear(self, connection: Any) -> None:
        with timely(connection, ANSWER):
            connection.execute(f"LISTEN {CHANNEL}")
        self._heard()
        with selectors.DefaultSelector() as waiting:
            waiting.register(connection.fileno(), selectors.EVENT_READ)
            waiting.register(self._end, selectors.EVENT_READ)
            while not self._closed.is_set():
                waiting.select()
                connection.pgconn.consume_input()
                while connection.pgconn.notifies() is not None:
                    self._heard()


def _connected(url: str) -> Any:
    import psycopg

    return psycopg.connect(url, autocommit=True, connect_timeout=CONNECT, keepalives_idle=30)


def refuse_pooler(url: str | None) -> None:
    """Raise `ConfigurationError` for a pooler, over which nothing is heard. A server that is away is tried later."""
    if url is None:
        return
    import psycopg

    with suppress(psycopg.Error), _connected(url) as connection:
        with timely(connection, ANSWER):
            found = connection.execute(question(connection.info.backend_pid)).fetchone()
        if not is_direct(found):
            raise ConfigurationError(
                "listen= leads through a pooler such as PgBouncer, which in transaction pooling gives the listening "
                "session to other clients, and passes on no notification: give the URL of PostgreSQL itself. "
                "Nothing was published."
            )


async def arefuse_pooler(url: str | None, stop: StopSignal) -> None:
    """`refuse_pooler` for async code. Returns as well when ``stop`` is rung before the server has answered."""
    if url is not None:
        with suppress(Stopped):
            await answered(partial(refuse_pooler, url), stop)


def address(url: str | None) -> str | None:
    """The address as psycopg wants it, whatever driver is named in it."""
    if url is None:
        return None
    if urlsplit(url).scheme.partition("+")[0] not in ("postgresql", "postgres"):
        raise ConfigurationError("listen= is the URL of a PostgreSQL server, as in postgresql://host/database.")
    try:
        import psycopg  # noqa: F401
    except ImportError as error:
        raise ConfigurationError("listen= needs psycopg: pip install 'retrysafe[psycopg]'.") from error
    return re.sub(r"^(postgres(?:ql)?)\+\w+:", r"\1:", url)


@contextmanager
def listening(url: str | None, heard: Callable[[], object]) -> Iterator[None]:
    """Hear, if there is where."""
    if url is None:
        yield
        return
    made = Listening(url, heard)
    try:
        yield
    finally:
        made.close()


@asynccontextmanager
async def alistening(url: str | None, heard: Callable[[], object]) -> AsyncIterator[None]:
    """`listening` for async code, which does not wait for the thread's end."""
    if url is None:
        yield
        return
    made = Listening(url, heard)
    try:
        yield
    finally:
        await asyncio.to_thread(made.close)
