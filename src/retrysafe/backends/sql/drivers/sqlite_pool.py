"""SQLite connections that are kept open between uses, and that no forked process inherits.

SQLite notes for each process and file which locks it has. A child inherits the notes and not the locks. So a connection
that it opens beside an inherited one takes no lock, another process may remove the write-ahead log under it, and what
the child commits is lost without an error (https://www.sqlite.org/howtocorrupt.html, "Carrying an open database
connection across a fork()").

So idle connections are closed before a fork. One that is in use at that moment, in another thread or around the fork,
is the parent's: a child of such a process is refused the file.
"""

from __future__ import annotations

import ctypes
import os
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet

from retrysafe import runtime
from retrysafe.errors import ConfigurationError, StoreUnavailable


class Reusable(Protocol):
    """A connection that is lent to one use after another."""

    file: tuple[int, int] | None

    def reset(self) -> bool:
        """End what its use has left under way; whether it can be lent again."""
        ...

    def abandon(self) -> None:
        """End what its use has left under way, and allow nothing more."""
        ...

    def close(self) -> None: ...


C = TypeVar("C", bound=Reusable)


class SqlitePool(Generic[C]):
    """Connections to one file: opened when needed, and lent to one use at a time; the one used last first.

    Arguments:
        path: of the file.
        connect: opens a connection.
    """

    def __init__(self, path: str | os.PathLike[str], connect: Callable[[], C]) -> None:
        self.path = os.path.realpath(path)
        self.connect = connect
        self.idle: deque[C] = deque()
        self.uses: set[Borrowed[C]] = set()
        """Uses that a fork finds under way, also while one opens its connection or closes it."""
        self.closed = False
        self._file: tuple[int, int] | None = None
        """The file that the path led to when the connections were opened."""
        _all.add(self)

    def take(self) -> C:
        """The connection of a use that begins. Raises `ConfigurationError` in a child that cannot use the file."""
        if self._file is not None and (found := file_identity(self.path)) != self._file:
            self._refuse_another_file(found)
        try:
            return self.idle.pop()
        except IndexError:
            refuse_beside_parent(self.path)
        connection = self.connect()
        connection.file = self._file = file_identity(self.path)
        return connection

    def _refuse_another_file(self, found: tuple[int, int] | None) -> None:
        """Raise `StoreUnavailable`: what is written to the open file, no other process would find.

        The next use opens the file that is there then. The connections stay open: to close the last one of a file that
        has lost its name would remove the write-ahead log of the one that has it now.
        """
        if found is None:
            raise StoreUnavailable(f"{self.path} was deleted while this process used it. Put it back.", unsent=True)
        self._file = None
        while self.idle:
            _keep_open(self.idle.pop())
        raise StoreUnavailable(f"{self.path} was replaced while this process used it.", unsent=True)

    def take_back(self, connection: C) -> None:
        """Keep the connection, without a transaction, or close it."""
        usable = connection.reset()
        if connection.file != self._file:
            _keep_open(connection)
        elif usable and not self.closed:
            self.idle.append(connection)
        else:
            connection.close()
        if self.closed:
            self.close_idle()

    def close(self) -> None:
        """Close the idle ones; one in use is closed when it comes back."""
        self.closed = True
        self.close_idle()

    def close_idle(self) -> None:
        """Close those that are not in use; the next use opens another one."""
        closing: Borrowed[C] = Borrowed(self)
        self.uses.add(closing)
        try:
            while self.idle:
                with suppress(IndexError):  # another thread has taken the last one
                    self.idle.pop().close()
        finally:
            self.uses.discard(closing)

    def __del__(self) -> None:
        if self.idle:
            self.close_idle()

    def leave_to_parent(self) -> None:
        """In a child: never close what the parent has open, which would end its transaction."""
        for connection in (*self.idle, *(use.connection for use in self.uses)):
            _keep_open(connection)
        if self.idle or self.uses:
            _of_parent.add(self.path)
        self.idle.clear()
        self.uses.clear()


class Borrowed(Generic[C]):
    """One use of a connection, for ``with``."""

    __slots__ = ("_pool", "_process", "connection")

    def __init__(self, pool: SqlitePool[C]) -> None:
        self._pool = pool
        self._process = runtime.pid
        self.connection: C | None = None

    def __enter__(self) -> C:
        pool = self._pool
        pool.uses.add(self)
        try:
            self.connection = connection = pool.take()
        except BaseException:
            pool.uses.discard(self)
            raise
        return connection

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        connection, self.connection = self.connection, None
        if self._process == runtime.pid and connection is not None:
            try:
                if error is None or isinstance(error, Exception):
                    self._pool.take_back(connection)
                else:
                    connection.abandon()
            finally:
                self._pool.uses.discard(self)


_all: WeakSet[SqlitePool[Any]] = WeakSet()
_of_parent: set[str] = set()
"""The files that this process's parent used when it forked."""


def _keep_open(connection: object) -> None:
    """Let a connection never be closed by the garbage collector, not even at the end of the process."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def file_identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - it is asked for every use, and pathlib takes longer
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def refuse_beside_parent(path: str) -> None:
    """Raise `ConfigurationError` for a file that this process's parent used when it forked."""
    if path in _of_parent:
        raise ConfigurationError(
            f"{path}: this process was forked while its parent used the file, and SQLite cannot tell their locks "
            "apart. Nothing was read or written. Fork while no claim, consumer or relay of the parent is at work, or "
            "start such processes with multiprocessing's spawn or forkserver."
        )


def refuse_connection(connection: sqlite3.Connection) -> None:
    """`refuse_beside_parent` for a connection that the caller has opened."""

    def ask(sql: str) -> Iterable[Sequence[Any]]:
        cursor = connection.cursor()
        cursor.row_factory = None  # not the factory of the user's connection
        return cursor.execute(sql).fetchall()

    refuse_asked(ask)


def refuse_asked(ask: Callable[[str], Iterable[Sequence[Any]]]) -> None:
    """`refuse_beside_parent` for one that a library has opened, which performs a statement and returns its rows."""
    if _of_parent:
        for row in ask("PRAGMA database_list"):
            refuse_beside_parent(os.path.realpath(row[2]))


def _close_idle() -> None:
    for pool in list(_all):
        pool.close_idle()


def _leave_to_parent() -> None:
    for pool in list(_all):
        pool.leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_close_idle)
runtime.in_child(_leave_to_parent)
