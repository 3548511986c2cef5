"""SQL Server: what its drivers have in common, and async code, which they serve by threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

from retrysafe.backends.sql.drivers.base import fail
from retrysafe.backends.sql.drivers.pool import CHECKOUT, Size
from retrysafe.backends.sql.drivers.pooled import InTransaction, PooledDriver
from retrysafe.cancellation import WorkerThread
from retrysafe.protocol.requests import Query, Rows


class SqlserverDriver(PooledDriver[Any]):
    """A driver for sync code. Neither library tells of a transaction on its connection, so the server is asked."""

    kind = "mssql"

    def is_usable(self, connection: Any, /) -> bool:
        """Neither library shows its socket: a connection that was hung up is noticed by the statement on it."""
        return True

    def hang_up(self, connection: Any, /) -> None:
        with suppress(*self.failures):
            connection.close()

    def end(self, connection: Any, /) -> None:
        self.perform(connection, Query("IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION", {}))

    @classmethod
    def ask(cls, connection: Any, sql: str) -> Any:
        """The only row of an answer on a connection of the caller's."""
        try:
            return cls.perform(connection, Query(sql, {}, writes=False)).rows[0]
        except cls.failures as error:
            fail(error)


def rows_of(cursor: Any) -> Rows:
    """The first rows of a batch; their number counts where a statement returns what it has changed."""
    while cursor.description is None and cursor.nextset():
        pass
    rows = [tuple(row) for row in cursor.fetchall()] if cursor.description else []
    return Rows(rows, len(rows) if cursor.description else max(cursor.rowcount, 0))


class AsyncInThread:
    """An executor of async code in a transaction of our own; its handle is the connection itself, for sync code."""

    def __init__(self, opened: InTransaction[Any], threads: WorkerThread) -> None:
        self.handle = opened.handle
        self.execute = self
        self._opened, self._threads = opened, threads

    async def __call__(self, request: Query, /) -> Rows:
        return await self._threads.run(partial(self._opened, request))


class AsyncThreads:
    """A client for async code: each call of the sync driver in a thread; there is one for each connection.

    A connection is waited for here: in a thread, who waits would keep those who have one from giving it back.
    """

    def __init__(self, driver: PooledDriver[Any], size: Size) -> None:
        self._driver, self._size = driver, size
        self._free = asyncio.BoundedSemaphore(size.most)
        self._threads = WorkerThread("retrysafe-sqlserver", size.most)

    @asynccontextmanager
    async def _borrow(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(CHECKOUT):
                await self._free.acquire()
        except TimeoutError as error:
            raise self._size.pool_exhausted() from error
        try:
            yield
        finally:
            self._free.release()

    async def __call__(self, request: Query, /) -> Rows:
        async with self._borrow():
            return await self._threads.run(partial(self._driver, request))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncInThread]:
        async with self._borrow():
            lent = self._driver.transaction()
            opened, cancelled = await self._threads.run_to_completion(lent.__enter__)
            try:
                if cancelled is not None:
                    raise cancelled
                yield AsyncInThread(opened, self._threads)
            except BaseException as error:
                await self._threads.run_to_completion(partial(lent.__exit__, type(error), error, None))
                raise
            await self._threads.run(partial(lent.__exit__, None, None, None))

    async def aclose(self) -> None:
        await self._threads.run(self._driver.close)
        self._threads.end()

    def abandon(self) -> None:
        self._driver.close()
        self._threads.end()
