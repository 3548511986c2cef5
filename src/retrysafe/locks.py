"""Locks that neither a fork nor an exception from a signal handler can leave locked.

Such an exception may be raised between any two steps of Python code, so also between taking a lock and noting it.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

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


class _Token:
    """Who has a place; when it is gone, the place is free, whatever happened to the code that was to give it back."""

    __slots__ = ("__weakref__",)


class Places:
    """A number of places, each for one at a time: who has which is known at the very moment when it is taken."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._taken: dict[int, weakref.ref[_Token]] = {}
        self._clearing = threading.Lock()
        self._given_back = threading.Event()

    @contextmanager
    def taken(self, timeout: float, otherwise: Callable[[], Exception]) -> Iterator[None]:
        """Have a place; raises what ``otherwise`` makes when none becomes free within ``timeout`` seconds."""
        token = _Token()
        mine = weakref.ref(token)
        try:
            if not self._take(mine, timeout):
                raise otherwise()
            yield
        finally:
            del token
            self._clear()
            self._given_back.set()

    def _take(self, mine: weakref.ref[_Token], timeout: float) -> bool:
        give_up_at = time.monotonic() + timeout
        while not self._has_taken(mine):
            left = give_up_at - time.monotonic()
            if left <= 0:
                return False
            self._given_back.clear()
            self._clear()
            if not self._has_taken(mine):
                self._given_back.wait(min(left, _LOOK))
        return True

    def _has_taken(self, mine: weakref.ref[_Token]) -> bool:
        return any(self._taken.setdefault(place, mine) is mine for place in range(self._count))

    def _clear(self) -> None:
        """Free the places whose holders are gone."""
        with self._clearing:
            for place, holder in tuple(self._taken.items()):
                if holder() is None:
                    del self._taken[place]
