"""SQLite connections that are kept open, of which a forked child inherits none.

SQLite notes for each process and file which locks it has. A child inherits the notes and not the locks. So a connection
that it opens beside an inherited one takes no lock, another process may remove the write-ahead log under it, and what
the child commits is lost without an error (https://www.sqlite.org/howtocorrupt.html, "Carrying an open database
connection across a fork()"). The notes end when the last inherited connection is closed. One that was in use cannot be
closed, since its transaction is the parent's: such a child is refused the file. So a fork waits for a moment in which
no other thread uses one.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from weakref import WeakSet

from retrysafe.errors import ConfigurationError
from retrysafe.locks import ProcessLock

PATIENCE = 1.0
"""Seconds for which a fork waits for the transactions of other threads."""

_everywhere: WeakSet[Connections] = WeakSet()
_inherited: dict[str, list[sqlite3.Connection]] = {}
"""By file: what nobody used when this process was forked, until this process opens the file."""
_in_use: set[str] = set()
"""The files that a thread of the parent used then."""
_closing = ProcessLock()


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
        self._open: dict[object, int] = {}
        """The connections, and a mark for each that is being opened, with the thread that used it last."""
        self._closed = False
        _everywhere.add(self)

    def take(self) -> sqlite3.Connection:
        """A connection, until `put_back`. Raises `ConfigurationError` in a child that cannot use the file."""
        try:
            connection = self._idle.pop()
        except IndexError:
            return self._opened()
        self._open[connection] = threading.get_ident()
        return connection

    def put_back(self, connection: sqlite3.Connection) -> None:
        """Keep it, without an open transaction, or close it if that fails; a child leaves its parent's alone."""
        if connection not in self._open:
            return
        usable = False
        try:
            if connection.in_transaction:
                connection.rollback()
            usable = not self._closed
        except sqlite3.Error:
            pass
        finally:
            if usable:
                self._idle.append(connection)
            else:
                self._end(connection)

    @contextmanager
    def lent(self) -> Iterator[sqlite3.Connection]:
        """`take` and `put_back`, for ``with``."""
        connection = self.take()
        try:
            yield connection
        finally:
            self.put_back(connection)

    def close(self) -> None:
        """Close the idle ones; one in use is closed when it comes back."""
        self._closed = True
        with suppress(IndexError):  # another thread may take the last one
            while True:
                self._end(self._idle.pop())

    def _opened(self) -> sqlite3.Connection:
        _come_to_this_process(self._path)
        mark, user = object(), threading.get_ident()
        self._open[mark] = user
        try:
            connection = self._connect()
            self._open[connection] = user
        finally:
            self._open.pop(mark, None)
        return connection

    def _end(self, connection: sqlite3.Connection) -> None:
        connection.close()
        self._open.pop(connection, None)

    def is_used_beside(self, thread: int) -> bool:
        """Whether another thread than this one uses a connection."""
        used = {**self._open}
        for connection in [*self._idle]:
            used.pop(connection, None)
        return any(user != thread for user in used.values())

    def inherit(self) -> None:
        """In a child: note what its parent had open."""
        idle, self._idle = self._idle, deque()
        used, self._open = self._open.keys() - idle, {}
        if idle:
            _inherited.setdefault(self._path, []).extend(idle)
        if used:
            _in_use.add(self._path)
            _keep_for_ever(used)


def _come_to_this_process(path: str) -> None:
    """Close what this process has inherited of a file, before it opens it."""
    if path in _in_use:
        raise ConfigurationError(
            f"{path}: this process was forked while its parent used the file, and SQLite cannot tell their locks "
            "apart. Nothing was read or written. Fork while no claim, consumer or relay of the parent is at work, or "
            "start such processes with multiprocessing's spawn or forkserver."
        )
    if path in _inherited:
        with _closing.mine:
            for connection in _inherited.get(path, ()):
                connection.close()
            _inherited.pop(path, None)


def _keep_for_ever(connections: Iterable[object]) -> None:
    """Let none be closed, not even at the end of the process: that would roll back the parent's transaction."""
    import ctypes

    for connection in connections:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def _wait_for_others() -> None:
    until, me = time.monotonic() + PATIENCE, threading.get_ident()
    while any(one.is_used_beside(me) for one in list(_everywhere)) and time.monotonic() < until:
        time.sleep(0.001)


def _inherit() -> None:
    for connections in list(_everywhere):
        connections.inherit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_wait_for_others, after_in_child=_inherit)
