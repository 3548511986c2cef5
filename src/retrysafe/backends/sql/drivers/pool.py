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
from typing import Any, Generic, NamedTuple, Self, TypeVar

from retrysafe import runtime
from retrysafe.backends.backend import hang_up
from retrysafe.backends.permits import Permits
from retrysafe.backends.sql.drivers.base import is_of_connection, is_unreachable, larger
from retrysafe.errors import RetrysafeError, StoreUnavailable

C = TypeVar("C")

MOST_CONNECTIONS = 10
CHECKOUT = 10.0
"""Seconds to wait for a free connection before the claim fails."""
LONGEST_LIFE = 1800.0
"""Seconds after which, or a little earlier, a connection is replaced: a failover or a new setting reaches all."""


class Size(NamedTuple):
    """The largest number of open connections, and advice on how to raise it."""

    most: int = MOST_CONNECTIONS
    more: str = "give the URL of store= another number (?pool=20)"

    def pool_exhausted(self) -> StoreUnavailable:
        """The error of a claim for which no connection has become free."""
        return StoreUnavailable(
            f"All {self.most} connections of the store are in use, and none became free in time, so nothing "
            f"was run. A transaction of the boundary's own holds one until it ends. To have more, {self.more}.",
            unsent=True,
            more_connections=self.more,
        )


def size_of(pool: str, most: int) -> Size:
    """As many as the pool of the caller's has, beside which these connections are; 0: it has no bound."""
    return Size(most or MOST_CONNECTIONS, larger(pool))


class _Idle(Generic[C]):
    """The connections that are not lent, and which of them may be lent again."""

    def __init__(self, size: Size | None = None) -> None:
        self.size = size or Size()
        self.idle: deque[Any] = deque()
        self._retired = -math.inf
        self._closed = False

    def is_idle(self, connection: C, /) -> bool:
        """Tell whether it may be kept: open, in autocommit mode and in no transaction."""
        raise NotImplementedError

    def is_usable(self, connection: C, /) -> bool:
        """Tell whether a kept one may be lent again: the server has not hung up on it."""
        raise NotImplementedError

    def retire_all(self) -> None:
        """Lend no connection any more that was opened before now: an error of one may be that of all."""
        self._retired = monotonic()

    def _may_lend(self, one: Borrowed[C]) -> bool:
        return self._is_young(one) and self.is_usable(one.connection)

    def _may_keep(self, one: Borrowed[C]) -> bool:
        return not self._closed and self._is_young(one) and self.is_idle(one.connection)

    def _is_young(self, one: Borrowed[C]) -> bool:
        return one.born > self._retired and monotonic() < one.until


class Borrowed(Generic[C]):
    """A connection of a pool, for one ``with`` after another; a child of the process that opened it does not end one.

    ``was_used``: it is not its first use.
    """

    def __init__(self, connection: C, pool: Any) -> None:
        self.connection = connection
        self.was_used = False
        self._pool = pool
        self._process = runtime.pid
        self.born = monotonic()
        self.until = self.born + LONGEST_LIFE * random.uniform(0.9, 1.0)

    def passes_by_another(self, error: Exception, *, begins: bool = False) -> bool:
        """Retire all connections if the error is theirs; tell whether a new one may do better.

        ``begins``: a transaction of ours has done nothing before, so that also a connection that was cut or fell
        silent, as in a failover, takes nothing with it.
        """
        if not is_of_connection(error) and not (begins and (is_unreachable(error) or isinstance(error, TimeoutError))):
            return False
        self._pool.retire_all()
        return self.was_used

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if runtime.pid == self._process:  # an exception of others' may have come between a request and its answer
            self._pool.take_back(self, whole=error is None or isinstance(error, RetrysafeError))


class Pool(_Idle[C]):
    """Connections of our own, ten unless told otherwise."""

    def __init__(self, size: Size | None = None) -> None:
        super().__init__(size)
        self._permits = Permits(self.size.most)

    def connect(self) -> C:
        """Open a connection, or raise `StoreUnavailable`."""
        raise NotImplementedError

    def hang_up(self, connection: C, /) -> None:
        """Close a connection, of which the server may be gone."""
        raise NotImplementedError

    def borrow(self) -> Borrowed[C]:
        """The connection that was used last, or a new one, once not all are lent."""
        self._permits.take(CHECKOUT, self.size.pool_exhausted)
        try:
            with suppress(IndexError):  # another thread may take the last one
                while True:
                    one: Borrowed[C] = self.idle.pop()
                    if self._may_lend(one):
                        return one
                    self.hang_up(one.connection)
            return Borrowed(self.connect(), self)
        except BaseException:
            self._permits.give_back()
            raise

    def take_back(self, one: Borrowed[C], *, whole: bool) -> None:
        """Keep the connection, or close it if it cannot be lent again."""
        try:
            if whole and self._may_keep(one):
                one.was_used = True
                self.idle.append(one)
            else:
                self.hang_up(one.connection)
        finally:
            self._permits.give_back()

    def close(self) -> None:
        self._closed = True
        with suppress(IndexError):
            while True:
                self.hang_up(self.idle.pop().connection)


class AsyncBorrowed(Borrowed[C]):
    """`Borrowed` for ``async with``."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self._pool.take_back(self, whole=error is None or isinstance(error, Exception))


class LoopPool(_Idle[C]):
    """`Pool` for async code; it belongs to one event loop."""

    def __init__(self, size: Size | None = None) -> None:
        super().__init__(size)
        self._free = asyncio.BoundedSemaphore(self.size.most)

    async def connect(self) -> C:
        raise NotImplementedError

    async def hang_up(self, connection: C, /) -> None:
        raise NotImplementedError

    def drop(self, connection: Any, /) -> None:
        """Close a connection without its loop."""
        hang_up(connection._transport)

    async def borrow(self) -> AsyncBorrowed[C]:
        if self._free.locked():
            try:
                async with asyncio.timeout(CHECKOUT):
                    await self._free.acquire()
            except TimeoutError as error:
                raise self.size.pool_exhausted() from error
        else:
            await self._free.acquire()
        try:
            while self.idle:
                one: AsyncBorrowed[C] = self.idle.pop()
                if self._may_lend(one):
                    return one
                await self.hang_up(one.connection)
            return AsyncBorrowed(await self.connect(), self)
        except BaseException:
            self._free.release()
            raise

    async def take_back(self, one: AsyncBorrowed[C], *, whole: bool) -> None:
        try:
            if whole and self._may_keep(one):
                one.was_used = True
                self.idle.append(one)
            else:
                await self.hang_up(one.connection)
        finally:
            self._free.release()

    async def aclose(self) -> None:
        self._closed = True
        while self.idle:
            await self.hang_up(self.idle.pop().connection)

    def abandon(self) -> None:
        while self.idle:
            self.drop(self.idle.pop().connection)


def is_quiet(fileno: int) -> bool:
    """Tell whether a socket has nothing to say: an idle server only ever says goodbye."""
    waiting = select.poll()
    waiting.register(fileno, select.POLLIN)
    return not waiting.poll(0)
