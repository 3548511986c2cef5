"""Relays that hear from PostgreSQL that another process has written: a thread with a connection of its own.

What it misses while it is cut off, relays find by looking; when it is back, they look at once.
"""

from __future__ import annotations

import asyncio
import random
import re
import selectors
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from retrysafe import lazy
from retrysafe.backends.spec import library
from retrysafe.backends.sql.drivers.base import lacks_pooler, pooler_query
from retrysafe.backends.sql.drivers.deadline import timely
from retrysafe.backends.sql.postgresql import CHANNEL
from retrysafe.errors import ConfigurationError
from retrysafe.messaging.relay.daemon_calls import Stopped, await_answer
from retrysafe.messaging.relay.poll_schedule import RECOVERY
from retrysafe.stop_signal import StopSignal

CONNECT = 10
"""Seconds that making a connection may take."""
ANSWER = 5.0
"""Seconds that the server may take to listen; who hangs up waits no longer for one that is silent."""


class Listening:
    """Nudges ``stop`` for every notification, and when it has connected again. Needs psycopg, for async code too."""

    def __init__(self, url: str, stop: StopSignal) -> None:
        self._url, self._stop = url, stop
        self._closed = threading.Event()
        self._end, self._other_end = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="retrysafe-listen", daemon=True)
        self._thread.start()

    def hang_up(self) -> None:
        """Let the thread end, without waiting for that."""
        self._other_end.send(b".")
        self._closed.set()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        failures = 0
        with self._end, self._other_end:
            while not self._closed.is_set():
                try:
                    with _connect(self._url) as connection:
                        failures = 0
                        self._hear(connection)
                except Exception:  # noqa: BLE001 - whatever befalls it: relays look by themselves meanwhile
                    self._closed.wait(RECOVERY.delay(failures, random.random()))
                    failures += 1

    def _hear(self, connection: Any) -> None:
        with timely(connection, ANSWER):
            connection.execute(f"LISTEN {CHANNEL}")
        self._stop.nudge()
        with selectors.DefaultSelector() as waiting:
            waiting.register(connection.fileno(), selectors.EVENT_READ)
            waiting.register(self._end, selectors.EVENT_READ)
            while not self._closed.is_set():
                waiting.select()
                connection.pgconn.consume_input()
                while connection.pgconn.notifies() is not None:
                    self._stop.nudge()


def _connect(url: str) -> Any:
    return lazy.psycopg.connect(url, autocommit=True, connect_timeout=CONNECT, keepalives_idle=30)


def refuse_pooler(url: str | None) -> None:
    """Raise `ConfigurationError` for a pooler, over which nothing is heard. A server that is away is tried later."""
    if url is None:
        return
    with suppress(lazy.psycopg.Error), _connect(url) as connection:
        with timely(connection, ANSWER):
            found = connection.execute(pooler_query(connection.info.backend_pid)).fetchone()
        if not lacks_pooler(found):
            raise ConfigurationError(
                "listen= leads through a pooler such as PgBouncer, which in transaction pooling gives the listening "
                "session to other clients, and passes on no notification: give the URL of PostgreSQL itself. "
                "Nothing was published."
            )


async def arefuse_pooler(url: str | None, stop: StopSignal) -> None:
    """`refuse_pooler` for async code. Returns as well when ``stop`` is rung before the server has answered."""
    if url is not None:
        with suppress(Stopped):
            await await_answer(partial(refuse_pooler, url), stop)


def address(url: str | None) -> str | None:
    """The address as psycopg wants it, whatever driver is named in it."""
    if url is None:
        return None
    if urlsplit(url).scheme.partition("+")[0] not in ("postgresql", "postgres"):
        raise ConfigurationError("listen= is the URL of a PostgreSQL server, as in postgresql://host/database.")
    library("psycopg", "psycopg", "listen=")
    return re.sub(r"^(postgres(?:ql)?)\+\w+:", r"\1:", url)


@contextmanager
def listening(url: str | None, stop: StopSignal) -> Iterator[None]:
    """Nudge ``stop`` when there is something to publish, if there is where to hear of it."""
    if url is None:
        yield
        return
    made = Listening(url, stop)
    try:
        yield
    finally:
        made.hang_up()
        made.join()


@asynccontextmanager
async def alistening(url: str | None, stop: StopSignal) -> AsyncIterator[None]:
    """`listening` for async code; a block that an error ends does not wait for the thread's end."""
    if url is None:
        yield
        return
    made = Listening(url, stop)
    try:
        yield
    finally:
        made.hang_up()
    await asyncio.to_thread(made.join)
