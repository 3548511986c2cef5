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
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar
from weakref import finalize, ref

from retrysafe import forks
from retrysafe.errors import ConfigurationError, StoreUnavailable

_pools: set[_Pool[Any]] = set()
_in_use: set[str] = set()
"""The files that this process's parent used when it forked."""


class Kept(Protocol):
    """A connection that is lent to one use after another."""

    file: tuple[int, int] | None

    def settle(self) -> bool:
        """End what its use has left under way; whether it can be lent again."""
        ...

    def close(self) -> None: ...


C = TypeVar("C", bound=Kept)


class Connections(Generic[C]):
    """Connections to one file: opened when needed, and lent to one use at a time; the one used last first.

    Arguments:
        path: of the file.
        connect: opens a connection.
    """

    def __init__(self, path: str | os.PathLike[str], connect: Callable[[], C]) -> None:
        self.path = os.path.realpath(path)
        self.pool: _Pool[C] = _Pool(self.path)
        self._connect = connect
        self._closed = False
        self._file: tuple[int, int] | None = None
        """The file that the path led to when the connections were opened."""
        finalize(self, self.pool.end).atexit = False

    def lent(self) -> Lent[C]:
        """A connection, for ``with``. Raises `ConfigurationError` in a child that cannot use the file."""
        return Lent(self)

    def lend(self, use: Lent[C]) -> C:
        """The connection of a use that begins."""
        use.begin()
        self._refuse_another_file()
        lent = self.pool.lent
        lent[use.mine] = None
        self.pool.watch(use)
        try:
            lent[use.mine] = connection = self.pool.idle.pop()
        except IndexError:
            refuse_beside_parent(self.path)
            lent[use.mine] = connection = self._connect()
            connection.file = self._file = _identity(self.path)
        return connection

    def _refuse_another_file(self) -> None:
        """Raise `StoreUnavailable` if the path leads elsewhere: what is written to the open file, no other would find.

        The next use opens the file that is there then. The connections stay open: to close the last one of a file that
        has lost its name would remove the write-ahead log of the one that has it now.
        """
        if self._file is None or (found := _identity(self.path)) == self._file:
            return
        if found is None:
            raise StoreUnavailable(f"{self.path} was deleted while this process used it. Put it back.", unsent=True)
        self._file = None
        while self.pool.idle:
            forks.keep_for_ever([self.pool.idle.pop()])
        raise StoreUnavailable(f"{self.path} was replaced while this process used it.", unsent=True)

    def put_back(self, use: Lent[C]) -> None:
        """End a use: keep its connection, without a transaction, or close it. A child leaves its parent's alone."""
        forks.come_to_this_process()
        pool, usable = self.pool, False
        connection = pool.lent.get(use.mine)
        try:
            usable = connection is not None and connection.settle() and not self._closed
        finally:
            if connection is not None and connection.file != self._file:
                forks.keep_for_ever([connection])
            elif usable and connection is not None:
                pool.lent[use.mine] = None
                pool.idle.append(connection)
            elif connection is not None:
                connection.close()
            pool.lent.pop(use.mine, None)
            pool.watching.pop(use.mine, None)
            use.end()
        if self._closed:
            pool.close_idle()

    def close(self) -> None:
        """Close the idle ones; one in use is closed when it comes back."""
        self._closed = True
        self.pool.close_idle()


class Lent(forks.Use, Generic[C]):
    """One use of a connection, for ``with``."""

    __slots__ = ("connections",)

    def __init__(self, connections: Connections[C]) -> None:
        super().__init__()
        self.connections = connections

    def __enter__(self) -> C:
        try:
            return self.connections.lend(self)
        except BaseException:  # a signal handler's too, which may have come between two steps of ours
            self.connections.put_back(self)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.connections.put_back(self)


class _Pool(Generic[C]):
    """What is open of a `Connections`. It outlives that until all is closed, so that no fork overlooks it.

    Whatever the garbage collector finds, it finds in any thread, between any two steps, also in a child.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self.idle: deque[C] = deque()
        self.lost: deque[C] = deque()
        """Those whose use was cut off, by an exception of a signal handler."""
        self.lent: dict[ref[forks.Use], C | None] = {}
        """By use; None while it has none yet, or none any more."""
        self.watching: dict[ref[forks.Use], ref[forks.Use]] = {}
        """What tells when a use is gone. Of one that has ended nothing does: what a signal handler raised there, Python
        would print and forget."""
        _pools.add(self)

    def watch(self, use: forks.Use) -> None:
        """Close the connection of a use when that is gone, unless it has ended before."""
        mine = use.mine
        self.watching[mine] = ref(use, lambda _: self.close_lost(mine))

    def end(self) -> None:
        """Close all; nobody uses any, nor ever will."""
        self.close_idle()
        _pools.discard(self)

    def close_idle(self) -> None:
        """Close those that nobody uses; the next use opens another one."""
        for mine in [*self.lent]:
            if mine() is None:
                self.close_lost(mine)
        self._close(self.idle)

    def close_lost(self, mine: ref[forks.Use]) -> None:
        """Close the connection of a use that is gone, unless it was put back."""
        self.watching.pop(mine, None)
        if mine not in self.lent:
            return
        forks.come_to_this_process()
        if (connection := self.lent.pop(mine, None)) is not None:
            self.lost.append(connection)
        self._close(self.lost)

    def _close(self, unused: deque[C]) -> None:
        """Close them all, whatever closing one of them raises."""
        if not unused:
            return
        use, raised = forks.Use(), None
        with use:
            self.lent[use.mine] = None
            while unused:
                try:
                    self.lent[use.mine] = closing = unused.pop()
                    closing.close()
                except IndexError:  # another thread has taken the last one
                    break
                except BaseException as error:  # noqa: BLE001 - it is raised when the others are closed
                    raised = error
            self.lent.pop(use.mine, None)
        if raised is not None:
            raise raised

    def inherit(self) -> None:
        """In a child: leave alone what its parent used, and had no time to close."""
        kept = [*self.idle, *self.lost, *self.lent.values()]
        self.idle.clear()
        self.lost.clear()
        self.lent.clear()
        self.watching.clear()
        if kept:
            _in_use.add(self._path)
            forks.keep_for_ever(kept)  # to close one would roll back the parent's transaction


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - it is asked for every use, and pathlib takes longer
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


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


def _close_idle() -> None:
    forks.prepare_to_keep()
    with ExitStack() as every:  # whatever one of them raises
        for pool in _pools.copy():
            every.callback(pool.close_idle)


def _inherit() -> None:
    for pool in _pools.copy():
        pool.inherit()


forks.register(before=_close_idle, in_child=_inherit)
