"""Locks that neither a fork nor an exception from a signal handler can leave locked.

Such an exception may be raised between any two steps of Python code, so also between taking a lock and noting it.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any

_LOOK = 0.05
"""Seconds after which who waits for a place looks for himself, in case nobody has told him."""


class ProcessLock:
    """A lock of which every process has its own: a child must not wait for a thread that only its parent has."""

    def __init__(self) -> None:
        self._locks: dict[int, threading.Lock] = {}

    @property
    def mine(self) -> threading.Lock:
        """This process's lock, for ``with``: entered and left in one step each, unlike methods of ours would be."""
        return self._locks.setdefault(os.getpid(), threading.Lock())

    def __enter__(self) -> None:
        self.mine.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._locks[os.getpid()].release()


class Places:
    """A number of places, each for one at a time: who has which is known at the very moment when it is taken.

    Who came first is next, so that nobody waits in vain while others take places again and again.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._taken: dict[int, weakref.ref[Any]] = {}
        self._clearing = threading.Lock()
        self._waiting: dict[weakref.ref[Any], threading.Event] = {}
        """In the order in which they came, and what tells each of them to look."""

    def taken(self, timeout: float, otherwise: Callable[[], Exception]) -> Place:
        """Have a place; raises what ``otherwise`` makes when none becomes free within ``timeout`` seconds."""
        return Place(self, timeout, otherwise)

    def take(self, mine: weakref.ref[Any], timeout: float) -> bool:
        """Take a place for its holder; False when none becomes free in time."""
        if not self._waiting and self._has_taken(mine):
            return True
        give_up_at = time.monotonic() + timeout
        told = self._waiting[mine] = threading.Event()
        try:
            while True:
                told.clear()
                self._clear()
                if mine in self._next() and self._has_taken(mine):
                    return True
                left = give_up_at - time.monotonic()
                if left <= 0:
                    return False
                told.wait(min(left, _LOOK))
        finally:
            self._waiting.pop(mine, None)
            self._tell()

    def _has_taken(self, mine: weakref.ref[Any]) -> bool:
        return any(self._taken.setdefault(place, mine) is mine for place in range(self._count))

    def _next(self) -> tuple[weakref.ref[Any], ...]:
        """Whose turn it is: of those who wait, as many as there are free places."""
        return tuple(self._waiting)[: self._count - len(self._taken)]

    def _tell(self) -> None:
        for waiting in self._next():
            if told := self._waiting.get(waiting):
                told.set()

    def _clear(self) -> None:
        """Free the places of holders who are gone, and let nobody wait for one who has gone from the queue."""
        with self._clearing:
            for place, holder in tuple(self._taken.items()):
                if holder() is None:
                    del self._taken[place]
            for waiting in tuple(self._waiting):
                if waiting() is None:
                    self._waiting.pop(waiting, None)

    def give_back(self, mine: weakref.ref[Any]) -> None:
        """Free the place of its holder, if it has one; it waits for none any more."""
        self._waiting.pop(mine, None)
        for place in range(self._count):
            if self._taken.get(place) is mine:
                del self._taken[place]
                if self._waiting:
                    self._tell()
                return


class Place:
    """A place, for ``with``. When this is gone, the place is free, whatever happened to the code that had it."""

    __slots__ = ("__weakref__", "_otherwise", "_places", "_timeout")

    def __init__(self, places: Places, timeout: float, otherwise: Callable[[], Exception]) -> None:
        self._places = places
        self._timeout = timeout
        self._otherwise = otherwise

    def __enter__(self) -> None:
        mine: weakref.ref[Place] = weakref.ref(self)
        try:
            if not self._places.take(mine, self._timeout):
                raise self._otherwise()
        except BaseException:  # a signal handler's too, which may have come between two steps of ours
            self._places.give_back(mine)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._places.give_back(weakref.ref(self))
