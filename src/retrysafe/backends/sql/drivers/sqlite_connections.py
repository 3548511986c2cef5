"""SQLite connections that are kept open, of which a forked child inherits none.

SQLite notes for each process and file which locks it has. A child inherits the notes and not the locks. So a connection
that it opens beside an inherited one takes no lock, another process may remove the write-ahead log under it, and what
the child commits is lost without an error (https://www.sqlite.org/howtocorrupt.html, "Carrying an open database
connection across a fork()").

So the idle connections are closed before a fork, which waits for those that are in use; being closed is a use, too. One
that is used for longer than a fork waits cannot be closed in the child either, since its transaction is the parent's:
such a child is refused the file.
"""

from __future__ import annotations

import os
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any
from weakref import WeakSet

from retrysafe import forks
from retrysafe.errors import ConfigurationError

_everywhere: WeakSet[Connections] = WeakSet()
_in_use: set[str] = set()
"""The files that this process's parent used when it forked."""


class Connections:
    """Connections to one file: opened when needed, and lent to one use at a time; the one used last first.

    Arguments:
        path: of the file.
        connect: opens a connection.
    """

    def __init__(self, path: str | os.PathLike[str], connect: Callable[[], sqlite3.Connection]) -> None:
        self._path = os.path.realpath(path)
        self._connect = connect
        self._idle: deque[sqlite3.Connection] = deque()
        self._closed = False
        _everywhere.add(self)

    def lent(self) -> Lent:
        """A connection, for ``with``. Raises `ConfigurationError` in a child that cannot use the file."""
        return Lent(self)

    def lend(self, use: Lent) -> sqlite3.Connection:
        """The connection of a use that begins."""
        use.begin()
        try:
            use.connection = self._idle.pop()
        except IndexError:
            refuse_beside_parent(self._path)
            use.connection = self._connect()
        return use.connection

    def put_back(self, use: Lent) -> None:
        """End a use: keep its connection, without a transaction, or close it. A child leaves its parent's alone."""
        forks.come_to_this_process()
        connection, usable = use.connection, False
        try:
            if connection is not None:
                if connection.in_transaction:
                    connection.rollback()
                usable = not self._closed
        except sqlite3.Error:
            pass
        finally:
            if usable and connection is not None:
                self._idle.append(connection)
            elif connection is not None:
                connection.close()
            use.connection = None
            use.end()
        if self._closed:
            self.close_idle()

    def close(self) -> None:
        """Close the idle ones; one in use is closed when it comes back."""
        self._closed = True
        self.close_idle()

    def close_idle(self) -> None:
        """Close those that nobody uses; the next use opens another one."""
        if not self._idle:
            return
        use = Lent(self)
        try:
            use.begin()
            with suppress(IndexError):  # another thread may take the last one
                while True:
                    use.connection = self._idle.pop()
                    use.connection.close()
        finally:
            use.connection = None
            use.end()

    def inherit(self) -> None:
        """In a child: leave alone what its parent used, and had no time to close."""
        uses = [use for use in forks.begun() if isinstance(use, Lent) and use.connections is self]
        kept = [*self._idle, *(use.connection for use in uses if use.connection is not None)]
        self._idle = deque()
        for use in uses:
            use.connection = None
        if uses or kept:
            _in_use.add(self._path)
            _keep_for_ever(kept)


class Lent(forks.Use):
    """One use of a connection, for ``with``."""

    __slots__ = ("connection", "connections")

    def __init__(self, connections: Connections) -> None:
        super().__init__()
        self.connections = connections
        self.connection: sqlite3.Connection | None = None

    def __enter__(self) -> sqlite3.Connection:
        try:
            return self.connections.lend(self)
        except BaseException:  # a signal handler's too, which may have come between two steps of ours
            self.connections.put_back(self)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.connections.put_back(self)


def refuse_beside_parent(path: str) -> None:
    """Raise `ConfigurationError` for a file that this process's parent used when it forked."""
    forks.come_to_this_process()
    if path in _in_use:
        raise ConfigurationError(
            f"{path}: this process was forked while its parent used the file, and SQLite cannot tell their locks "
            "apart. Nothing was read or written. Fork while no claim, consumer or relay of the parent is at work, or "
            "start such processes with multiprocessing's spawn or forkserver."
        )


def refuse_connection(connection: sqlite3.Connection) -> None:
    """The same for a connection that the caller has opened."""

    def ask(sql: str) -> Iterable[Sequence[Any]]:
        cursor = connection.cursor()
        cursor.row_factory = None  # whatever factory the user's connection has
        return cursor.execute(sql).fetchall()

    refuse_asked(ask)


def refuse_asked(ask: Callable[[str], Iterable[Sequence[Any]]]) -> None:
    """The same for one that a library has opened, which performs a statement and returns its rows."""
    forks.come_to_this_process()
    if _in_use:
        for row in ask("PRAGMA database_list"):
            refuse_beside_parent(os.path.realpath(row[2]))


def _known() -> list[Connections]:
    while True:
        try:
            return list(_everywhere)
        except RuntimeError:  # another thread has made one meanwhile
            continue


def _keep_for_ever(connections: Iterable[object]) -> None:
    """Let none be closed, not even at the end of the process: that would roll back the parent's transaction."""
    import ctypes

    for connection in connections:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def _close_idle() -> None:
    import ctypes  # noqa: F401 - a child, which may need it, would wait for ever if another thread were importing it

    for one in _known():
        one.close_idle()


def _inherit() -> None:
    for one in _known():
        one.inherit()


forks.register(before=_close_idle, in_child=_inherit)
