"""SQLite connections that are kept open, of which a forked child inherits none.

SQLite notes for each process and file which locks it has. A child inherits the notes and not the locks. So a connection
that it opens beside an inherited one takes no lock, another process may remove the write-ahead log under it, and what
the child commits is lost without an error (https://www.sqlite.org/howtocorrupt.html, "Carrying an open database
connection across a fork()").

So the idle connections are closed before a fork. While one is under way other threads begin no use of a connection, and
the fork waits for the uses that have begun. One that goes on for longer can be closed neither before the fork nor in
the child, since its transaction is the parent's: such a child is refused the file.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 - its lock would be held while a fork waits here, were it imported later
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType
from weakref import WeakSet, ref

from retrysafe.errors import ConfigurationError

PATIENCE = 1.0
"""Seconds for which a fork waits for the transactions of other threads."""

_everywhere: WeakSet[Connections] = WeakSet()
_forking: dict[int, threading.Event] = {}
"""The threads that are about to fork, and what tells others that it is done."""
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
        self._uses: set[ref[Lent]] = set()
        self._closed = False
        _everywhere.add(self)

    def lent(self) -> Lent:
        """A connection, for ``with``. Raises `ConfigurationError` in a child that cannot use the file."""
        return Lent(self)

    def lend(self, use: Lent) -> sqlite3.Connection:
        """Begin a use. One that would begin beside a fork waits for it, unless its thread is in another use already."""
        self._uses.add(use.mine)  # before it looks: so a fork sees this use, or this sees the fork
        while (forked := _fork_beside(use.thread)) is not None:
            self._uses.discard(use.mine)
            goes_on = any(one.is_used(by=use.thread) for one in _known()) or not forked.wait(PATIENCE)
            self._uses.add(use.mine)
            if goes_on:
                break
        use.has_begun = True
        try:
            use.connection = self._idle.pop()
        except IndexError:
            refuse_beside_parent(self._path)
            use.connection = self._connect()
        return use.connection

    def put_back(self, use: Lent) -> None:
        """End a use: keep its connection, without a transaction, or close it. A child leaves its parent's alone."""
        if use.mine not in self._uses:
            return
        connection, usable = use.connection, False
        try:
            if connection is not None:
                if connection.in_transaction:
                    connection.rollback()
                usable = not (self._closed or _forking)
        except sqlite3.Error:
            pass
        finally:
            if connection is not None:
                self._idle.append(connection) if usable else connection.close()
            use.connection = None
            self._uses.discard(use.mine)

    def close(self) -> None:
        """Close the idle ones; one in use is closed when it comes back."""
        self._closed = True
        self.close_idle()

    def close_idle(self) -> None:
        """Close those that nobody uses; the next use opens another one."""
        with suppress(IndexError):  # another thread may take the last one
            while True:
                self._idle.pop().close()

    def is_used(self, *, by: int | None = None, beside: int | None = None) -> bool:
        """Whether a thread uses a connection, or another thread than one does."""
        threads = [use.thread for mine in self._uses.copy() if (use := mine()) is not None]
        return by in threads if by is not None else any(thread != beside for thread in threads)

    def inherit(self) -> None:
        """In a child: leave alone what its parent used, and had no time to close."""
        uses = [use for mine in self._uses if (use := mine()) is not None and use.has_begun]
        kept = [*self._idle, *(use.connection for use in uses if use.connection is not None)]
        self._idle, self._uses = deque(), set()
        if uses or kept:
            _in_use.add(self._path)
            _keep_for_ever(kept)


class Lent:
    """One use of a connection, for ``with``. When this is gone the use has ended, whatever happened to its code."""

    __slots__ = ("__weakref__", "_connections", "connection", "has_begun", "mine", "thread")

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self.thread = threading.get_ident()
        self.mine: ref[Lent] = ref(self)
        self.connection: sqlite3.Connection | None = None
        self.has_begun = False
        """Whether it is more than one that waits for a fork."""

    def __enter__(self) -> sqlite3.Connection:
        try:
            return self._connections.lend(self)
        except BaseException:  # a signal handler's too, which may have come between two steps of ours
            self._connections.put_back(self)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connections.put_back(self)


def refuse_beside_parent(path: str) -> None:
    """Raise `ConfigurationError` for a file that this process's parent used when it forked."""
    if path in _in_use:
        raise ConfigurationError(
            f"{path}: this process was forked while its parent used the file, and SQLite cannot tell their locks "
            "apart. Nothing was read or written. Fork while no claim, consumer or relay of the parent is at work, or "
            "start such processes with multiprocessing's spawn or forkserver."
        )


def refuse_connection(connection: sqlite3.Connection) -> None:
    """The same for a connection that the caller has opened."""
    if _in_use:
        for _, _, path in connection.execute("PRAGMA database_list").fetchall():
            refuse_beside_parent(os.path.realpath(path))


def _fork_beside(thread: int) -> threading.Event | None:
    """What tells that another thread than this one has forked, if one is about to."""
    if not _forking:
        return None
    return next((forked for other, forked in _forking.copy().items() if other != thread), None)


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


def _before_fork() -> None:
    until, me = time.monotonic() + PATIENCE, threading.get_ident()
    _forking[me] = threading.Event()
    while any(one.is_used(beside=me) for one in _known()) and time.monotonic() < until:
        time.sleep(0.001)
    for one in _known():
        one.close_idle()


def _after_in_parent() -> None:
    if (forked := _forking.pop(threading.get_ident(), None)) is not None:
        forked.set()


def _after_in_child() -> None:
    _forking.clear()
    for one in _known():
        one.inherit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
