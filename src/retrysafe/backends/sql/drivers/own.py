"""Connections of our own, whatever the driver: opened when needed, few, and the one used last is lent first.

No thread or task tends them: a connection that its server has hung up on is noticed before it is lent.
"""

from __future__ import annotations

import asyncio
import os
import select
from collections import deque
from types import TracebackType
from typing import Generic, Protocol, TypeVar

from retrysafe.errors import RetrysafeError, StoreUnavailable
from retrysafe.locks import Place, Places

C = TypeVar("C")

MOST_CONNECTIONS = 10
CHECKOUT = 10.0
"""Seconds to wait for a free connection before the claim fails."""


class Driver(Protocol[C]):
    """What a keeper must know of a driver. ``connect`` raises `StoreUnavailable`."""

    def connect(self) -> C: ...

    def is_idle(self, connection: C, /) -> bool:
        """Whether it may be kept: open, in autocommit mode and in no transaction."""
        ...

    def is_usable(self, connection: C, /) -> bool:
        """Whether a kept one may be lent again: the server has not hung up on it."""
        ...

    def close(self, connection: C, /) -> None: ...


class AsyncDriver(Protocol[C]):
    """`Driver` for async code; ``drop`` works without the loop of the connection."""

    async def connect(self) -> C: ...

    def is_idle(self, connection: C, /) -> bool: ...

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

    def lent(self, *, transaction: bool = False) -> Lent[C]:
        """Lend a connection."""
        return Lent(self, self._places.taken(CHECKOUT, all_lent))

    def take(self) -> C:
        """The connection that was used last, or a new one."""
        while self._idle:
            connection = self._idle.pop()
            if self._driver.is_usable(connection):
                return connection
            self._driver.close(connection)
        return self._driver.connect()

    def take_back(self, connection: C, *, whole: bool) -> None:
        """``whole``: no exception of others', which may have come between a request and its answer, has passed."""
        if self._closed or not whole or not self._driver.is_idle(connection):
            self._driver.close(connection)
        else:
            self._idle.append(connection)

    def close(self) -> None:
        """Close those that are not lent; the others are closed when they come back."""
        self._closed = True
        while self._idle:
            self._driver.close(self._idle.pop())


class Lent(Generic[C]):
    """A connection that is lent, for ``with``; a child of the process that took it does not end it."""

    __slots__ = ("_connection", "_own", "_pid", "_place")

    def __init__(self, own: Own[C], place: Place) -> None:
        self._own = own
        self._place = place
        self._pid = os.getpid()

    def __enter__(self) -> C:
        self._place.__enter__()
        try:
            self._connection = self._own.take()
        except BaseException:
            self._place.__exit__(None, None, None)
            raise
        return self._connection

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if os.getpid() == self._pid:
                self._own.take_back(self._connection, whole=error is None or isinstance(error, RetrysafeError))
        finally:
            self._place.__exit__(None, None, None)


class AsyncOwn(Generic[C]):
    """`Own` for async code; it belongs to one event loop."""

    def __init__(self, driver: AsyncDriver[C]) -> None:
        self._driver = driver
        self._idle: deque[C] = deque()
        self._free = asyncio.BoundedSemaphore(MOST_CONNECTIONS)
        self._closed = False

    def lent(self, *, transaction: bool = False) -> AsyncLent[C]:
        """Lend a connection."""
        return AsyncLent(self)

    async def take(self) -> C:
        """The connection that was used last, or a new one, once less than ten are lent."""
        if self._free.locked():
            try:
                async with asyncio.timeout(CHECKOUT):
                    await self._free.acquire()
            except TimeoutError as error:
                raise all_lent() from error
        else:
            await self._free.acquire()
        try:
            while self._idle:
                connection = self._idle.pop()
                if self._driver.is_usable(connection):
                    return connection
                await self._driver.close(connection)
            return await self._driver.connect()
        except BaseException:
            self._free.release()
            raise

    async def take_back(self, connection: C) -> None:
        """Keep the connection, or close it if it cannot be lent again."""
        try:
            if self._closed or not self._driver.is_idle(connection):
                await self._driver.close(connection)
            else:
                self._idle.append(connection)
        finally:
            self._free.release()

    async def aclose(self) -> None:
        """Close those that are not lent; the others are closed when they come back."""
        self._closed = True
        while self._idle:
            await self._driver.close(self._idle.pop())

    def abandon(self) -> None:
        """Hang up without the loop, which is closed."""
        while self._idle:
            self._driver.drop(self._idle.pop())


class AsyncLent(Generic[C]):
    """A connection that is lent, for ``async with``."""

    __slots__ = ("_connection", "_own")

    def __init__(self, own: AsyncOwn[C]) -> None:
        self._own = own

    async def __aenter__(self) -> C:
        self._connection = await self._own.take()
        return self._connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._own.take_back(self._connection)


def all_lent() -> StoreUnavailable:
    """The error of a claim for which no connection has become free."""
    return StoreUnavailable(f"All {MOST_CONNECTIONS} connections of the store are in use.", unsent=True)


def is_quiet(fileno: int) -> bool:
    """Whether a socket has nothing to say: an idle server only ever says goodbye."""
    waiting = select.poll()
    waiting.register(fileno, select.POLLIN)
    return not waiting.poll(0)
