"""Drivers on connections of our own, in both colours: all that does not depend on the client library.

A driver says which errors its library raises, how a connection is opened, asked, judged and left, and which of the
caller's connections it takes as ``tx=``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, ClassVar, Generic, NoReturn, Self

from retrysafe.backends import identity
from retrysafe.backends.backend import Backend
from retrysafe.backends.spec import Joining, StoreAccess, refuse_kind
from retrysafe.backends.sql import store_of
from retrysafe.backends.sql.drivers.base import (
    AUTOCOMMIT,
    ain_turn,
    fail,
    in_turn,
    not_connected,
    refuse_encoding,
    this_process,
)
from retrysafe.backends.sql.drivers.pool import AsyncBorrowed, Borrowed, C, LoopPool, Pool
from retrysafe.backends.urls import without_password
from retrysafe.errors import ConfigurationError, StoreUnavailable
from retrysafe.protocol.requests import Copy, Query, Rows


class OfLibrary(Generic[C]):
    """The description of a client library by its driver, in either colour."""

    kind: ClassVar[str]
    opens: ClassVar[Any]
    """The class of executors on one connection."""
    failures: ClassVar[tuple[type[Exception], ...]]
    """The errors that the library raises."""

    @classmethod
    def beside(cls, pool: Any, /) -> Self:
        """A driver whose connections are made as the caller's pool makes its own."""
        raise NotImplementedError

    @classmethod
    def of_pool(cls, pool: Any) -> Backend:
        said = getattr(pool, "conninfo", None)
        address = without_password(said) if isinstance(said, str) else f"{cls.kind}://…"
        sync, asynchronous = cls.in_colour(partial(cls.beside, pool))
        return Backend(
            store_of(cls.kind), StoreAccess(address, sync, asynchronous, places=lambda: {identity.pool(pool)})
        )

    @classmethod
    def join(cls, tx: Any, kind: str, _address: str) -> Joining:
        """An executor on the caller's connection, if it is to the ``kind`` of database of the store."""
        refuse_kind(cls.kind, kind)
        cls.refuse(tx)
        return Joining(*cls.in_colour(cls.opens(cls, tx)), place=cls.place_of(tx), kind=cls.kind)

    @staticmethod
    def in_colour(value: Any) -> tuple[Any, Any]:
        """The value in the place for sync code, or in that for async code behind it; None in the other."""
        raise NotImplementedError

    @staticmethod
    def commits_alone(connection: Any, /) -> bool:
        """Tell whether a statement on the caller's connection would be committed by itself."""
        raise NotImplementedError

    @staticmethod
    def place_of(connection: Any, /) -> identity.Place | None:
        """The database that the caller's connection leads to, as far as it shows."""
        raise NotImplementedError

    @classmethod
    def refuse(cls, connection: Any) -> None:
        """Raise `ConfigurationError` for a connection of the caller's with which a claim cannot commit."""
        if cls.commits_alone(connection):
            raise ConfigurationError(AUTOCOMMIT)
        refuse_encoding(connection)


class InTransaction(Generic[C]):
    """An executor on one connection, inside a transaction; ``borrowed``, unless it is the caller's."""

    def __init__(self, driver: type[PooledDriver[C]], handle: C, borrowed: Borrowed[C] | None = None) -> None:
        self.handle = handle
        self.execute = self
        self._driver = driver
        self._borrowed = borrowed
        self._begins = True

    def __call__(self, request: Query | Copy, /) -> Rows:
        try:
            if isinstance(request, Copy):
                return self._driver.transfer(self.handle, request)
            rows = in_turn(request, partial(self._driver.perform, self.handle))
        except self._driver.failures as error:
            borrowed = self._borrowed
            fail(error, passes=borrowed is not None and borrowed.passes_by_another(error, begins=self._begins))
        self._begins = self._begins and request.control is not None
        return rows


class PooledDriver(OfLibrary[C], Pool[C]):
    """A client on connections of our own, in autocommit mode while no transaction is lent."""

    opens = InTransaction

    @staticmethod
    def in_colour(value: Any) -> tuple[Any, Any]:
        return value, None

    def open(self) -> C:
        raise NotImplementedError

    @staticmethod
    def perform(connection: Any, query: Query, /) -> Rows:
        """Perform one statement on any connection of the library; a server that does not answer is given up."""
        raise NotImplementedError

    @staticmethod
    def transfer(connection: Any, copy: Copy, /) -> Rows:
        """Copy rows to the spool or back."""
        raise NotImplementedError

    def end(self, connection: C, /) -> None:
        """Roll back what a transaction has left open."""
        raise NotImplementedError

    def connect(self) -> C:
        try:
            return self.open()
        except self.failures as error:  # without the frames of the attempt, which would keep its socket open
            raise not_connected(error.with_traceback(None)) from error

    def __call__(self, request: Query, /) -> Rows:
        with self.borrow() as borrowed:
            try:
                return in_turn(request, partial(self.perform, borrowed.connection))
            except self.failures as error:
                fail(error, alone=True, passes=borrowed.passes_by_another(error))

    @contextmanager
    def transaction(self) -> Iterator[InTransaction[C]]:
        here = this_process()
        with self.borrow() as borrowed:
            connection = borrowed.connection
            try:
                yield InTransaction(type(self), connection, borrowed)
            finally:
                if here():
                    self._end(connection)

    def _end(self, connection: C) -> None:
        try:
            self.end(connection)
        except self.failures:
            self.hang_up(connection)


class AsyncInTransaction(Generic[C]):
    """`InTransaction` for async code."""

    def __init__(self, driver: type[AsyncPooledDriver[C]], handle: C, borrowed: AsyncBorrowed[C] | None = None) -> None:
        self.handle = handle
        self.execute = self
        self._driver = driver
        self._borrowed = borrowed
        self._begins = True
        self._perform = partial(driver.perform if borrowed is None else driver.perform_on_ours, handle)

    async def __call__(self, request: Query | Copy, /) -> Rows:
        try:
            if isinstance(request, Copy):
                return await self._driver.transfer(self.handle, request)
            rows = await ain_turn(request, self._perform)
        except self._driver.failures as error:
            self.fail(error)
        self._begins = self._begins and request.control is not None  # BEGIN has done nothing that could be lost
        return rows

    def fail(self, error: Exception, *, alone: bool = False) -> NoReturn:
        borrowed, begins = self._borrowed, self._begins and not alone
        fail(error, alone=alone, passes=borrowed is not None and borrowed.passes_by_another(error, begins=begins))


class AsyncPooledDriver(OfLibrary[C], LoopPool[C]):
    """`PooledDriver` for async code; it belongs to one event loop."""

    opens = AsyncInTransaction

    @staticmethod
    def in_colour(value: Any) -> tuple[Any, Any]:
        return None, value

    async def open(self) -> C:
        raise NotImplementedError

    @staticmethod
    async def perform(connection: Any, query: Query, /) -> Rows:
        """Perform one statement on a connection of the caller's, which another task may be using."""
        raise NotImplementedError

    @classmethod
    async def perform_on_ours(cls, connection: Any, query: Query, /) -> Rows:
        """Perform one statement on a connection of ours, which may be closed if there is no answer."""
        return await cls.perform(connection, query)

    @staticmethod
    async def transfer(connection: Any, copy: Copy, /) -> Rows:
        raise NotImplementedError

    async def begin(self, connection: C, /) -> None:
        """Prepare a connection to be lent for a transaction."""

    async def end(self, opened: Any, /) -> None:
        raise NotImplementedError

    async def connect(self) -> C:
        try:
            return await self.open()
        except self.failures as error:
            raise not_connected(error.with_traceback(None)) from error

    async def __call__(self, request: Query, /) -> Rows:
        async with await self.borrow() as borrowed:
            try:
                return await ain_turn(request, partial(self.perform_on_ours, borrowed.connection))
            except self.failures as error:
                fail(error, alone=True, passes=borrowed.passes_by_another(error))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncInTransaction[C]]:
        async with await self.borrow() as borrowed:
            opened = self.opens(type(self), borrowed.connection, borrowed)
            try:
                await self.begin(borrowed.connection)
                yield opened
            finally:
                await self._end(opened)

    async def _end(self, opened: AsyncInTransaction[C]) -> None:
        try:
            await self.end(opened)
        except self.failures + (StoreUnavailable,):  # noqa: RUF005 - mypy
            await self.hang_up(opened.handle)
        except asyncio.CancelledError:
            await self.hang_up(opened.handle)
            raise
