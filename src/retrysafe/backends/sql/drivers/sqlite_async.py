"""sqlite3 for async code: reads on the loop, one writer thread that commits what is written at once together."""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import NamedTuple

from retrysafe.backends.sql.drivers.base import fail, translate
from retrysafe.backends.sql.drivers.sqlite import InTransaction, SqliteFile, is_busy, perform
from retrysafe.backends.sql.drivers.sqlite_connection import Connection
from retrysafe.backends.sql.drivers.sqlite_pool import Borrowed, SqlitePool
from retrysafe.cancellation import WorkerThread
from retrysafe.errors import StoreUnavailable
from retrysafe.protocol.requests import Query, Rows

MOST_AT_ONCE = 64


class _Write(NamedTuple):
    query: Query
    answer: asyncio.Future[Rows]
    until: float
    """The time at which it has waited long enough for other writers, by the monotonic clock."""


class _Writer:
    """A thread that commits writes in groups.

    While it commits one group, the next one gathers on the loop. When the thread has nothing to do, a group waits for
    no more than what the loop was about to run anyway. So a group changes threads once, and there is no timer.
    """

    def __init__(self, pool: SqlitePool[Connection], busy: float, loop: asyncio.AbstractEventLoop) -> None:
        self._pool, self._busy = pool, busy
        self._loop = loop
        self._gathering: list[_Write] = []
        self._is_busy = False
        """True if a group is with the thread, or about to be handed over."""
        self._groups: queue.SimpleQueue[list[_Write] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="retrysafe-sqlite-writer", daemon=True)
        self._thread.start()

    def submit(self, query: Query) -> asyncio.Future[Rows]:
        """Let a write join the next group; the future is done after the commit."""
        answer: asyncio.Future[Rows] = self._loop.create_future()
        self._gathering.append(_Write(query, answer, time.monotonic() + self._busy))
        if not self._is_busy:
            self._is_busy = True
            self._loop.call_soon(self._hand_over)
        return answer

    def end(self) -> None:
        """Hand over what is left; the thread ends behind it."""
        while self._gathering:
            self._hand_over()
        self._groups.put(None)

    def join(self) -> None:
        self._thread.join()

    def _hand_over(self) -> None:
        group, self._gathering = self._gathering[:MOST_AT_ONCE], self._gathering[MOST_AT_ONCE:]
        self._is_busy = bool(group)
        if group:
            self._groups.put(group)

    def _run(self) -> None:
        while (group := self._groups.get()) is not None:
            with suppress(RuntimeError):  # the loop was closed: no task is waiting any more
                while group:
                    group = self._try(group)

    def _try(self, group: list[_Write]) -> list[_Write]:
        """Perform them, and deliver what came of it. While others write, those fail that have waited long enough.

        Returns the rest, which wait on.
        """
        rest: list[_Write] = []
        results: list[Rows | Exception]
        try:
            with Borrowed(self._pool) as connection:
                connection.set_busy_timeout(min(write.until for write in group) - time.monotonic())
                results = _perform_together(connection, [write.query for write in group])
        except Exception as error:  # noqa: BLE001 - it belongs to those who wait, and the thread must live on
            now = time.monotonic()
            late = [write for write in group if write.until <= now]
            if late and is_busy(error):
                group, rest = late, [write for write in group if write.until > now]
            results = [error for _ in group]
        self._loop.call_soon_threadsafe(self._deliver, group, results, not rest)
        return rest

    def _deliver(self, group: list[_Write], results: list[Rows | Exception], is_over: bool) -> None:
        for write, result in zip(group, results, strict=True):
            if write.answer.done():
                continue
            if isinstance(result, sqlite3.Error):
                failure = translate(result, alone=True)
                failure.__cause__ = result
                write.answer.set_exception(failure)
            elif isinstance(result, Exception):
                write.answer.set_exception(result)
            else:
                write.answer.set_result(result)
        if is_over:
            self._loop.call_soon(self._hand_over)  # behind those who have just been answered, and may write again


def _perform_together(connection: sqlite3.Connection, group: list[Query]) -> list[Rows | Exception]:
    """Perform a group in one transaction; a statement that fails takes nothing else with it.

    Raises what the commit does, and what ends the transaction before it: then nothing of the group has been done.
    """
    alone = partial(perform, connection)
    if len(group) == 1:
        return [alone(group[0])]
    results: list[Rows | Exception] = []
    connection.execute("BEGIN IMMEDIATE")
    try:
        for query in group:
            try:
                results.append(alone(query))
            except Exception as error:
                if not connection.in_transaction:  # later statements would be committed by themselves
                    raise
                results.append(error)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.rollback()
        raise
    return results


class AsyncInTransaction:
    """An executor on a connection of ours; what may wait or sync to disk runs off the loop."""

    def __init__(self, connection: Connection, aside: WorkerThread) -> None:
        self.handle = connection
        self.execute = self
        self._inner = InTransaction(connection)
        self._aside = aside

    async def __call__(self, request: Query, /) -> Rows:
        if request.control in ("begin", "commit"):
            return await self._aside.run(partial(self._inner, request))
        return self._inner(request)


class AsyncSqliteClient:
    """Reads on the loop, a writer thread, and turns for transactions; all of one event loop."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._pool = SqlitePool(file.path, file.connect)
        self._writer: _Writer | None = None
        self._turn = asyncio.Lock()
        self._aside = WorkerThread("retrysafe-sqlite-transactions")

    async def __call__(self, request: Query, /) -> Rows:
        pending: Query | None = request
        rows = Rows([], 0)
        while pending is not None and not pending.writes:
            with Borrowed(self._pool) as connection:
                try:
                    rows = perform(connection, pending._replace(otherwise=None))  # that may write: not on the loop
                except sqlite3.Error as error:
                    fail(error, alone=True)
            if rows.rows:
                return rows
            pending = pending.otherwise
        if pending is None:
            return rows
        if self._writer is None:
            self._writer = _Writer(self._pool, self._file.busy, asyncio.get_running_loop())
        return await self._writer.submit(pending)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncInTransaction]:
        """Lend a connection for one transaction, which begins within `SqliteFile.busy` seconds."""
        until = time.monotonic() + self._file.busy
        try:
            async with asyncio.timeout(self._file.busy):
                await self._turn.acquire()
        except TimeoutError as error:
            raise StoreUnavailable(f"{self._file.path}: another transaction of this loop holds the file.") from error
        try:
            with Borrowed(self._pool) as connection:
                connection.set_busy_timeout(until - time.monotonic())
                yield AsyncInTransaction(connection, self._aside)
        finally:
            self._turn.release()

    def abandon(self) -> None:
        """Finish what is queued and close every connection, without the loop, which is closed."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.end()
            writer.join()
        self._aside.end()
        self._pool.close()

    async def aclose(self) -> None:
        writer, self._writer = self._writer, None
        try:
            if writer is not None:
                writer.end()
                await self._aside.run(writer.join)
        finally:
            self._aside.end()
            self._pool.close()
