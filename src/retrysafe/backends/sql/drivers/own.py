"""Connections of our own, whatever the driver: opened when needed, few, and the one used last is lent first.

No thread or task tends them: a connection that its server has hung up on is noticed before it is lent.
"""

from __future__ import annotations

import asyncio
import select
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Generic, Protocol, TypeVar

from retrysafe.backends.sql.drivers.base import this_process
from retrysafe.errors import RetrysafeError, StoreUnavailable
from retrysafe.locks import Places

C = TypeVar("C")

MOST_CONNECTIONS = 10
CHECKOUT = 10.0
"""Seconds to wait for a free connection before the claim fails."""


class Driver(Protocol[C]):
    """What a keeper must know of a driver. ``connect`` raises `StoreUnavailable`."""

    def connect(self) -> C: ...

    def is_usable(self, connection: C, /) -> bool:
        """Whether it may be lent again: open, in no transaction, and not hung up on by the server."""
        ...

    def close(self, connection: C, /) -> None: ...


class AsyncDriver(Protocol[C]):
    """`Driver` for async code; ``drop`` works without the loop of the connection."""

    async def connect(self) -> C: ...

    def is_usable(self, connection: C, /) -> bool: ...

    async def close(self, connection: C, /) -> None: ...

    def drop(self, connection: C, /) -> None: ...


class Own(Generic[C]):
    """Up to ten connections of our own."""

    def __init__(self, driver: Driver[C]) -> None:
        self._driver = driver
        self._idle: deque[C] = deque()
        self._places = Places(MOST_CONNECTIONS)
        self._closed = False

    @contextmanager
    def lent(self, *, transaction: bool = False) -> Iterator[C]:
        """Lend a connection."""
        here = this_process()
        with self._places.taken(CHECKOUT, all_lent):
            connection = self._idle_connection() or self._driver.connect()
            whole = False
            try:
                yield connection
                whole = True
            except RetrysafeError:
                whole = True
                raise
            finally:
                if here():
                    self._take_back(connection, whole=whole)

    def _take_back(self, connection: C, *, whole: bool) -> None:
        """``whole``: no exception of others', which may have come between a request and its answer, has passed."""
        if self._closed or not whole or not self._driver.is_usable(connection):
            self._driver.close(connection)
        else:
            self._idle.append(connection)

    def _idle_connection(self) -> C | None:
        while self._idle:
            connection = self._idle.pop()
            if self._driver.is_usable(connection):
                return connection
            self._driver.close(connection)
        return None

    def close(self) -> None:
        """Close those that are not lent; the others are closed when they come back."""
        self._closed = True
        while self._idle:
            self._driver.close(self._idle.pop())


class AsyncOwn(Generic[C]):
    """`Own` for async code; it belongs to one event loop."""

    def __init__(self, driver: AsyncDriver[C]) -> None:
        self._driver = driver
        self._idle: deque[C] = deque()
        self._free = asyncio.BoundedSemaphore(MOST_CONNECTIONS)
        self._closed = False

    @asynccontextmanager
    async def lent(self, *, transaction: bool = False) -> AsyncIterator[C]:
        """Lend a connection."""
        try:
            async with asyncio.timeout(CHECKOUT):
                await self._free.acquire()
        except TimeoutError as error:
            raise all_lent() from error
        try:
            connection = await self._idle_connection() or await self._driver.connect()
            try:
                yield connection
            finally:
                if self._closed or not self._driver.is_usable(connection):
                    await self._driver.close(connection)
                else:
                    self._idle.append(connection)
        finally:
            self._free.release()

    async def _idle_connection(self) -> C | None:
        while self._idle:
            connection = self._idle.pop()
            if self._driver.is_usable(connection):
                return connection
            await self._driver.close(connection)
        return None

    async def aclose(self) -> None:
        """Close those that are not lent; the others are closed when they come back."""
        self._closed = True
        while self._idle:
            await self._driver.close(self._idle.pop())

    def abandon(self) -> None:
        """Hang up without the loop, which is closed."""
        while self._idle:
            self._driver.drop(self._idle.pop())


def all_lent() -> StoreUnavailable:
    """The error of a claim for which no connection has become free."""
    return StoreUnavailable(f"All {MOST_CONNECTIONS} connections of the store are in use.", unsent=True)


def is_quiet(fileno: int) -> bool:
    """Whether a socket has nothing to say: an idle server only ever says goodbye."""
    waiting = select.poll()
    waiting.register(fileno, select.POLLIN)
    return not waiting.poll(0)
