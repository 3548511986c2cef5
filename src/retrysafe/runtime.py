"""State of one process, or of one event loop, and its renewal in a forked child.

A child has one thread of its parent's, and shares the sockets and files. So it makes its own clients, threads and
locks, and leaves what it has inherited alone: to close a connection would speak in the parent's name.

One hook runs in the child after a fork, and one before it, which closes idle SQLite connections, for which the file's
log is written back: some milliseconds. None of ours waits for another thread. The price: a child of a process that was
using a SQLite file at that moment is refused that file (`backends.sql.drivers.sqlite_pool`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import WeakSet

from retrysafe import lazy

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

pid = os.getpid()
"""The number of this process."""

_locks: WeakSet[Any] = WeakSet()
_adaptations: list[Callable[[], None]] = []
_inherited: list[object] = []
"""Clients of the parent process, kept from the garbage collector."""


def new_lock() -> threading.Lock:
    """A lock that is free in a forked child, whichever thread of the parent held it."""
    lock = threading.Lock()
    _locks.add(lock)
    return lock


def in_child(adapt: Callable[[], None]) -> None:
    """Have ``adapt`` called in each forked child."""
    _adaptations.append(adapt)


def inherit(*values: object) -> None:
    """Keep what belongs to the parent process from being closed by the garbage collector."""
    _inherited.extend(values)


class PerProcess(Generic[T]):
    """A value that each process makes when it first asks for it.

    Arguments:
        make: makes it.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._lock = new_lock()
        self._made: tuple[int, T] | None = None

    def __call__(self) -> T:
        """The value of this process."""
        made = self._made
        if made is None or made[0] != pid:
            made = self._make_once()
        return made[1]

    def _make_once(self) -> tuple[int, T]:
        with self._lock:
            self._leave_inherited()
            if self._made is None:
                self._made = pid, self._make()
            return self._made

    def _leave_inherited(self) -> None:
        if self._made is not None and self._made[0] != pid:
            inherit(self._made[1])
            self._made = None

    def pop(self) -> T | None:
        """Take the value of this process away, if it has one; the next call makes another one."""
        with self._lock:
            self._leave_inherited()
            made, self._made = self._made, None
        return None if made is None else made[1]


class PerLoop(Generic[T]):
    """A value that each event loop of each process makes when it first asks for it.

    Arguments:
        make: makes it, on the running loop.
        abandon: lets go of one whose event loop was closed over it, as `asyncio.run` does, and can do nothing any more.
    """

    def __init__(self, make: Callable[[], T], abandon: Callable[[T], object] = lambda value: None) -> None:
        self._make = make
        self._abandon = abandon
        self._made: dict[asyncio.AbstractEventLoop, tuple[int, T]] = {}

    def __call__(self) -> T:
        """The value of the running loop."""
        loop = lazy.asyncio.get_running_loop()
        made = self._made.get(loop)
        if made is None or made[0] != pid:
            if made is not None:
                inherit(made[1])
            self.abandon_closed()
            made = self._made[loop] = pid, self._make()
        return made[1]

    def abandon_closed(self) -> None:
        """Let go of the values of event loops that are closed."""
        for loop in [loop for loop in self.loops() if loop.is_closed()]:
            made = self._made.pop(loop, None)
            if made is not None and made[0] == pid:
                self._abandon(made[1])

    def loops(self) -> list[asyncio.AbstractEventLoop]:
        """The event loops that have a value, or had one when they were closed."""
        return list(self._made)

    def pop(self) -> T | None:
        """Take the value of the running loop away, if it has one."""
        made = self._made.pop(lazy.asyncio.get_running_loop(), None)
        if made is None:
            return None
        if made[0] != pid:
            inherit(made[1])
            return None
        return made[1]


class InstanceId:
    """A name for this process's consumer or relay, unique across processes.

    Arguments:
        prefix: its beginning.
    """

    def __init__(self, prefix: str = "") -> None:
        self._name = PerProcess(lambda: f"{prefix}{pid}:{os.urandom(8).hex()}")

    def __str__(self) -> str:
        return self._name()


def _begin_child() -> None:
    global pid
    pid = os.getpid()
    for lock in list(_locks):
        lock._at_fork_reinit()
    for adapt in _adaptations:
        adapt()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_child)
