"""A bound on how many callers use something at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue


class Permits:
    """A number of permits for threads, first come, first served: a semaphore on a queue that is written in C.

    Arguments:
        count: how many there are.
    """

    def __init__(self, count: int) -> None:
        self._free: SimpleQueue[None] = SimpleQueue()
        for _ in range(count):
            self._free.put(None)

    def take(self, seconds: float, otherwise: Callable[[], Exception]) -> None:
        """Take a permit; raises what ``otherwise`` makes when none becomes free within ``seconds``."""
        try:
            self._free.get(timeout=seconds)
        except Empty:
            raise otherwise() from None

    def give_back(self) -> None:
        self._free.put(None)

    @contextmanager
    def held(self, seconds: float, otherwise: Callable[[], Exception]) -> Iterator[None]:
        """`take` a permit for a block."""
        self.take(seconds, otherwise)
        try:
            yield
        finally:
            self.give_back()
