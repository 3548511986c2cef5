"""sqlite3 for async code: reads on the loop, one writer thread that commits what is queued together."""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from retrysafe.backends.sql.drivers.base import in_turn, translated
from retrysafe.backends.sql.drivers.sqlite import InTransaction, SqliteFile, perform, put_back, reader
from retrysafe.errors import StoreUnavailable
from retrysafe.protocol.requests import Query, Rows

MOST_AT_ONCE = 64


class _Write(NamedTuple):
    query: Query
    answer: asyncio.Future[Rows]


class _Writer:
    """A thread that owns one connection and performs queued writes, all that are waiting in one transaction."""

    def __init__(self, file: SqliteFile, loop: asyncio.AbstractEventLoop) -> None:
        self._file = file
        self._loop = loop
        self._queue: queue.SimpleQueue[_Write | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="retrysafe-sqlite-writer", daemon=True)
        self._thread.start()

    def submit(self, query: Query) -> asyncio.Future[Rows]:
        """Queue a write; the future is done after its commit."""
        answer: asyncio.Future[Rows] = self._loop.create_future()
        self._queue.put(_Write(query, answer))
        return answer

    def stop(self) -> None:
        """End after what is queued."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        connection: sqlite3.Connection | None = None
        while (first := self._queue.get()) is not None:
            batch, more = self._waiting(first)
            results: list[Rows | Exception]
            try:
                connection = connection or self._file.connect()
                results = _perform_together(connection, batch)
            except Exception as error:  # noqa: BLE001 - it belongs to those who wait, and the thread must live on
                results = [error for _ in batch]
            self._deliver(batch, results)
            if not more:
                break
        if connection is not None:
            connection.close()

    def _waiting(self, first: _Write) -> tuple[list[_Write], bool]:
        batch = [first]
        while len(batch) < MOST_AT_ONCE:
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                break
            if item is None:
                return batch, False
            batch.append(item)
        return batch, True

    def _deliver(self, batch: list[_Write], results: list[Rows | Exception]) -> None:
        def done() -> None:
            for write, result in zip(batch, results, strict=True):
                if write.answer.done():
                    continue
                if isinstance(result, sqlite3.Error):
                    failure = translated(result, alone=True)
                    failure.__cause__ = result
                    write.answer.set_exception(failure)
                elif isinstance(result, Exception):
                    write.answer.set_exception(result)
                else:
                    write.answer.set_result(result)

        try:
            self._loop.call_soon_threadsafe(done)
        except RuntimeError:  # the loop was closed: nobody is waiting any more
            return


def _perform_together(connection: sqlite3.Connection, batch: list[_Write]) -> list[Rows | Exception]:
    """Perform a batch in one transaction; a statement that fails takes nothing else with it."""
    if len(batch) == 1:
        return [in_turn(batch[0].query, lambda query: perform(connection, query))]
    results: list[Rows | Exception] = []
    connection.execute("BEGIN IMMEDIATE")
    try:
        for write in batch:
            try:
                results.append(in_turn(write.query, lambda query: perform(connection, query)))
            except Exception as error:  # noqa: BLE001 - it belongs to the one who waits for this write
                results.append(error)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.rollback()
        raise
    return results


class AsyncInTransaction:
    """An executor on a connection of ours; what may wait or sync to disk runs off the loop."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.handle = connection
        self.execute = self
        self._inner = InTransaction(connection)

    async def __call__(self, request: Query, /) -> Rows:
        if request.control in ("begin", "commit"):
            return await asyncio.to_thread(self._inner, request)
        return self._inner(request)


class AsyncJoined:
    """The caller's sqlite3 connection, used from async code: local statements, performed on the loop."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def __call__(self, request: Query, /) -> Rows:
        rows: Rows = self._inner(request)
        return rows


class AsyncSqliteClient:
    """A reading connection, a writer thread, and turns for transactions; all of one event loop."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._reading: sqlite3.Connection | None = None
        self._writer: _Writer | None = None
        self._idle: deque[sqlite3.Connection] = deque()
        self._turn = asyncio.Lock()
        self._closed = False

    async def __call__(self, request: Query, /) -> Rows:
        pending: Query | None = request
        rows = Rows([], 0)
        while pending is not None and not pending.writes:
            self._reading = self._reading or self._file.connect()
            rows = reader(self._reading)(pending)
            if rows.rows:
                return rows
            pending = pending.otherwise
        if pending is None:
            return rows
        if self._writer is None:
            self._writer = _Writer(self._file, asyncio.get_running_loop())
        return await self._writer.submit(pending)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncInTransaction]:
        """Lend a connection for one transaction."""
        try:
            async with asyncio.timeout(self._file.busy):
                await self._turn.acquire()
        except TimeoutError as error:
            raise StoreUnavailable(f"{self._file.path}: another transaction of this loop holds the file.") from error
        try:
            connection = self._idle.pop() if self._idle else self._file.connect()
            try:
                yield AsyncInTransaction(connection)
            finally:
                put_back(connection, self._idle, closed=self._closed)
        finally:
            self._turn.release()

    def abandon(self) -> None:
        """Finish what is queued and close every connection, without the loop, which is closed."""
        self._closed = True
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.stop()
        self._close_connections()

    async def aclose(self) -> None:
        """Finish what is queued and close every connection."""
        self._closed = True
        writer, self._writer = self._writer, None
        if writer is not None:
            await asyncio.to_thread(writer.stop)
        self._close_connections()

    def _close_connections(self) -> None:
        for connection in (*self._idle, *([self._reading] if self._reading else [])):
            connection.close()
        self._idle.clear()
        self._reading = None
