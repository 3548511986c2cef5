"""Connections of our own, whatever the driver: opened when needed, few, and the one used last is lent first.

No thread or task tends them: a connection that its server has hung up on, or that is old, is noticed before it is lent,
and one that cannot do what another could, as after a failover, is closed with all that are as old.
"""

from __future__ import annotations

import asyncio
import math
import random
import select
from collections import deque
from contextlib import suppress
from time import monotonic
from types import TracebackType
from typing import Generic, NamedTuple, Protocol, TypeVar

from retrysafe import runtime
from retrysafe.backends.permits import Permits
from retrysafe.backends.sql.drivers.base import is_of_connection
from retrysafe.errors import RetrysafeError, StoreUnavailable

C = TypeVar("C")

MOST_CONNECTIONS = 10
CHECKOUT = 10.0
"""Seconds to wait for a free connection before the claim fails."""
LONGEST_LIFE = 1800.0
"""Seconds after which, or a little earlier, a connection is replaced: a failover or a new setting reaches all."""


class Driver(Protocol[C]):
    """The interface of a driver to the keeper of connections. ``connect`` raises `StoreUnavailable`."""

    def connect(self) -> C: ...

    def is_idle(self, connection: C, /) -> bool:
        """Tell whether it may be kept: open, in autocommit mode and in no transaction."""
        ...

    def is_usable(self, connection: C, /) -> bool:
        """Tell whether a kept one may be lent again: the server has not hung up on it."""
        ...

    def close(self, connection: C, /) -> None: ...


class AsyncDriver(Protocol[C]):
    """`Driver` for async code; ``drop`` works without the loop of the connection."""

    async def connect(self) -> C: ...

    def is_idle(self, connection: C, /) -> bool: ...

    def is_usable(self, connection: C, /) -> bool: ...

    async def close(self, connection: C, /) -> None: ...

    def drop(self, connection: C, /) -> None: ...


class Size(NamedTuple):
    """The largest number of open connections, and advice on how to raise it."""

    most: int = MOST_CONNECTIONS
    more: str = "give the URL of store= another number (?pool=20)"

    def all_lent(self) -> StoreUnavailable:
        """The error of a claim for which no connection has become free."""
        return StoreUnavailable(
            f"All {self.most} connections of the store are in use, and none became free within {CHECKOUT:g} s, so "
            f"nothing was run. A transaction of the boundary's own holds one until it ends. To have more, {self.more}.",
            unsent=True,
            more_connections=self.more,
        )


def size_of(pool: str, most: int) -> Size:
    """As many as the pool of the caller's has, beside which these connections are."""
    return Size(max(most, 1), f"make the pool that was given as store= larger ({pool}): ours has its size")


class _Kept(NamedTuple, Generic[C]):
    """A connection that is not lent: since when it is open, and until when it is lent."""

    connection: C
    born: float
    until: float


class _Shelf(Generic[C]):
    """The connections that are not lent."""

    def __init__(self) -> None:
        self._idle: deque[_Kept[C]] = deque()
        self._renewed = -math.inf
        self._closed = False

    def _made(self, connection: C) -> _Kept[C]:
        now = monotonic()
        return _Kept(connection, now, now + LONGEST_LIFE * random.uniform(0.9, 1.0))

    def renew(self) -> None:
        """Lend no connection any more that has been opened until now: what is wrong with one is wrong with them."""
        self._renewed = monotonic()

    def _is_young(self, kept: _Kept[C]) -> bool:
        return kept.born > self._renewed and monotonic() < kept.until


class Own(_Shelf[C]):
    """Connections of our own, ten unless told otherwise."""

    def __init__(self, driver: Driver[C], size: Size | None = None) -> None:
        super().__init__()
        self._driver = driver
        self.size = size or Size()
        self._permits = Permits(self.size.most)

    def lent(self) -> Lent[C]:
        """Lend a connection."""
        return Lent(self)

    def take(self) -> tuple[_Kept[C], bool]:
        """The connection that was used last, or a new one, once not all are lent; and whether it was used before."""
        self._permits.take(CHECKOUT, self.size.all_lent)
        try:
            with suppress(IndexError):  # another thread may take the last one
                while True:
                    kept = self._idle.pop()
                    if self._is_young(kept) and self._driver.is_usable(kept.connection):
                        return kept, True
                    self._driver.close(kept.connection)
            return self._made(self._driver.connect()), False
        except BaseException:
            self._permits.give_back()
            raise

    def take_back(self, kept: _Kept[C], *, whole: bool) -> None:
        """``whole``: no exception of others', which may have come between a request and its answer, has passed."""
        try:
            if self._closed or not whole or not self._is_young(kept) or not self._driver.is_idle(kept.connection):
                self._driver.close(kept.connection)
            else:
                self._idle.append(kept)
        finally:
            self._permits.give_back()

    def close(self) -> None:
        """Close those that are not lent; the others are closed when they come back."""
        self._closed = True
        with suppress(IndexError):
            while True:
                self._driver.close(self._idle.pop().connection)


class _Using(Generic[C]):
    """The state shared by a lent connection and its borrower."""

    __slots__ = ("_kept", "_own", "was_used")
    _own: _Shelf[C]
    was_used: bool

    def passes_by_another(self, error: Exception) -> bool:
        """Close the connection afterwards, and all others, if an error is theirs; whether a new one may do better."""
        if not is_of_connection(error):
            return False
        self._own.renew()
        return self.was_used


class Lent(_Using[C]):
    """A connection that is lent, for ``with``; a child of the process that took it does not end it."""

    __slots__ = ("_process",)
    _own: Own[C]  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, own: Own[C]) -> None:
        self._own = own  # pyright: ignore[reportIncompatibleVariableOverride]
        self._process = runtime.pid

    def __enter__(self) -> C:
        self._kept, self.was_used = self._own.take()
        return self._kept.connection

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if runtime.pid == self._process:
            self._own.take_back(self._kept, whole=error is None or isinstance(error, RetrysafeError))


class AsyncOwn(_Shelf[C]):
    """`Own` for async code; it belongs to one event loop."""

    def __init__(self, driver: AsyncDriver[C], size: Size | None = None) -> None:
        super().__init__()
        self._driver = driver
        self.size = size or Size()
        self._free = asyncio.BoundedSemaphore(self.size.most)

    def lent(self) -> AsyncLent[C]:
        """Lend a connection."""
        return AsyncLent(self)

    async def take(self) -> tuple[_Kept[C], bool]:
        """The connection that was used last, or a new one, once not all are lent; and whether it was used before."""
        if self._free.locked():
            try:
                async with asyncio.timeout(CHECKOUT):
                    await self._free.acquire()
            except TimeoutError as error:
                raise self.size.all_lent() from error
        else:
            await self._free.acquire()
        try:
            while self._idle:
                kept = self._idle.pop()
                if self._is_young(kept) and self._driver.is_usable(kept.connection):
                    return kept, True
                await self._driver.close(kept.connection)
            return self._made(await self._driver.connect()), False
        except BaseException:
            self._free.release()
            raise

    async def take_back(self, kept: _Kept[C]) -> None:
        """Keep the connection, or close it if it cannot be lent again."""
        try:
            if self._closed or not self._is_young(kept) or not self._driver.is_idle(kept.connection):
                await self._driver.close(kept.connection)
            else:
                self._idle.append(kept)
        finally:
            self._free.release()

    async def aclose(self) -> None:
        """Close those that are not lent; the others are closed when they come back."""
        self._closed = True
        while self._idle:
            await self._driver.close(self._idle.pop().connection)

    def abandon(self) -> None:
        """Hang up without the loop, which is closed."""
        while self._idle:
            self._driver.drop(self._idle.pop().connection)


class AsyncLent(_Using[C]):
    """A connection that is lent, for ``async with``."""

    __slots__ = ()
    _own: AsyncOwn[C]  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, own: AsyncOwn[C]) -> None:
        self._own = own  # pyright: ignore[reportIncompatibleVariableOverride]

    async def __aenter__(self) -> C:
        self._kept, self.was_used = await self._own.take()
        return self._kept.connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._own.take_back(self._kept)


def is_quiet(fileno: int) -> bool:
    """Tell whether a socket has nothing to say: an idle server only ever says goodbye."""
    waiting = select.poll()
    waiting.register(fileno, select.POLLIN)
    return not waiting.poll(0)
