"""sqlite3, sync: a connection per concurrent use, and the caller's connection."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from retrysafe import runtime
from retrysafe.backends.spec import Joining, refuse_kind
from retrysafe.backends.sql.drivers.base import AUTOCOMMIT, NO_ROWS, fail, follow_refusal, not_connected
from retrysafe.backends.sql.drivers.sqlite_connection import Connection, open_connection
from retrysafe.backends.sql.drivers.sqlite_pool import Borrowed, SqlitePool, refuse_connection
from retrysafe.errors import ConfigurationError, StoreUnavailable
from retrysafe.protocol.requests import Query, Rows
from retrysafe.runtime import new_lock

RENEWAL_BUSY = 0.15
"""Seconds for which a renewal waits for another writer: it is tried again long before the lease lapses."""


class SqliteFile(NamedTuple):
    """A database file and how to open it; ``busy`` is the longest wait for another writer, in seconds."""

    path: str
    synchronous: str = "FULL"
    busy: float = 5.0

    def connect(self) -> Connection:
        """Open a connection that begins and ends its transactions by statement."""
        try:
            return open_connection(self.path, self.busy, self._prepare)
        except sqlite3.Error as error:
            raise not_connected(error, self.path) from error

    def _prepare(self, connection: sqlite3.Connection) -> None:
        self._use_wal(connection)
        connection.execute(f"PRAGMA synchronous = {self.synchronous}")

    def _use_wal(self, connection: sqlite3.Connection) -> None:
        """Switch to WAL. SQLite refuses at once, whatever its timeout, while others switch, recover or close."""
        deadline = time.monotonic() + self.busy
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as error:
                if not is_busy(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.005)
            else:
                return


def is_busy(error: Exception) -> bool:
    """Tell whether another connection was writing, for longer than this one waited."""
    return isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY


_cursor = sqlite3.Connection.cursor
"""Makes a cursor that is not tracked; see `Connection`."""


def perform(connection: sqlite3.Connection, query: Query) -> Rows:
    """`in_turn`, in one frame; every cursor is read to its end, or it would keep the write lock."""
    while True:
        cursor = _cursor(connection)
        try:
            cursor.row_factory = None  # not the factory of the user's connection
            cursor.execute(query.sql, query.params)
            found = cursor.fetchall()
            rows = Rows(found, len(found) if cursor.description else cursor.rowcount)
            following = query.written if query.written and rows.affected else query.otherwise
        except Exception as error:  # noqa: BLE001 - only what the query names is an answer
            rows, following = NO_ROWS, follow_refusal(query, error)
        finally:
            cursor.close()
        if rows.rows or following is None:
            return rows
        query = following


class InTransaction:
    """An executor on a connection whose transaction is managed by statements."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.handle = connection
        self.execute: Callable[[Query], Rows] = self

    def __call__(self, request: Query, /) -> Rows:
        if request.control == "rollback" and not self.handle.in_transaction:
            return Rows([], 0)
        if request.control != "begin" and request.writes and not self.handle.in_transaction:
            return Rows([], 0)  # the handler ended the transaction: the write must not commit alone
        if request.control == "begin":  # what is written behind a handler's rollback must not commit alone
            self.handle.isolation_level = "IMMEDIATE"
        try:
            return perform(self.handle, request)
        except sqlite3.Error as error:
            fail(error)


class Joined(InTransaction):
    """An executor on the caller's connection; its transaction is opened for writing if it is not open yet."""

    _started = False

    def __call__(self, request: Query, /) -> Rows:
        if not self._started:
            self._started = True
            _begin_if_idle(self.handle)
        return super().__call__(request)

    async def aexecute(self, request: Query, /) -> Rows:
        """Perform a request for async code, on its loop: the file is local."""
        return self(request)


def join(tx: sqlite3.Connection, kind: str, _address: str) -> Joining:
    refuse_kind("sqlite", kind)
    cursor = tx.cursor()
    cursor.row_factory = None
    [(_, _, path), *_] = cursor.execute("PRAGMA database_list")  # the first is "main"
    joined = Joined(tx)
    return Joining(joined, joined.aexecute, place=("file", path), kind="sqlite")


def _begin_if_idle(connection: sqlite3.Connection) -> None:
    """Open the caller's transaction for writing; a deferred one could fail when it writes later."""
    if connection.text_factory is not str:
        raise ConfigurationError("tx= has a text_factory of its own: give a connection that returns text as str.")
    refuse_connection(connection)
    if connection.in_transaction:
        return
    if connection.isolation_level is None and getattr(connection, "autocommit", -1) is not False:
        raise ConfigurationError(AUTOCOMMIT)
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.Error as error:
        fail(error)


class SqliteClient:
    """Connections of our own, one per concurrent use; transactions of this process take turns."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._pool = SqlitePool(file.path, file.connect)
        self._turn = new_lock()

    def __call__(self, request: Query, /) -> Rows:
        with Borrowed(self._pool) as connection:
            try:
                return perform(connection, request)
            except sqlite3.Error as error:
                fail(error, alone=True, path=self._file.path)

    @contextmanager
    def transaction(self) -> Iterator[InTransaction]:
        """Lend a connection for one transaction, which begins within `SqliteFile.busy` seconds."""
        until = time.monotonic() + self._file.busy
        if not self._turn.acquire(timeout=self._file.busy):
            raise StoreUnavailable(f"{self._file.path}: another transaction of this process holds the file.")
        process = runtime.pid
        try:
            with Borrowed(self._pool) as connection:
                connection.set_busy_timeout(until - time.monotonic())
                yield InTransaction(connection)
        finally:
            if process == runtime.pid:
                self._turn.release()

    def close(self) -> None:
        self._pool.close()
