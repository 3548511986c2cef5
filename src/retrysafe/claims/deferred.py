"""Outcomes that a store did not take at once: the heartbeat puts them again until their lease ends.

The work is over and its caller has the result. Settling is conditional on the state, the attempt and the token of the
record, so an outcome that comes late is stored if the attempt still owns its record, and fenced if it does not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from retrysafe import lazy
from retrysafe.protocol.backoff import SETTLING
from retrysafe.protocol.requests import Program

LAST_TRY = 5.0
"""Seconds in which what is left is tried once more when its boundary is closed or its process or event loop ends."""


class Deferred(NamedTuple):
    """One outcome: how it is settled, and up to when on the holder's clock.

    ``concluded`` is told in the end whether the record was the attempt's own; None: the store never answered.
    """

    until: float
    settle: Callable[[], Program[bool]]
    concluded: Callable[[bool | None], None]


class DeferredQueue:
    """The outcomes that are left, and when the next one is tried: they have one store, and so one pause.

    They take turns, so that one that always fails stands before no other. Any thread may add one; the rest is for the
    one that tries them.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._left: deque[Deferred] = deque()
        self._ends = self._next = float("inf")
        """When the first lease ends, and when the next outcome is tried."""
        self._failures = 0

    def __len__(self) -> int:
        return len(self._left)

    def add(self, one: Deferred) -> None:
        """Have it tried after a pause."""
        if not self._left:
            self._failures = 0
            self._pause()
        self._ends = min(self._ends, one.until)
        self._left.append(one)

    def due(self) -> float:
        """The time at which something is to be done."""
        return min(self._next, self._ends) if self._left else float("inf")

    def turn(self) -> Deferred | None:
        """The one to be tried now, if it is time for one; those whose lease has ended are given up."""
        now = self._clock()
        if self._ends <= now:
            self._ends = float("inf")
            for _ in range(len(self._left)):
                one = self._left.popleft()
                if one.until <= now:
                    one.concluded(None)
                else:
                    self._ends = min(self._ends, one.until)
                    self._left.append(one)
        return self._left[0] if self._left and self._next <= now else None

    def conclude(self, done: bool) -> None:
        """The first one is settled; the store answers, so that the next one is tried at once."""
        self._failures = 0
        self._left.popleft().concluded(done)

    def postpone(self) -> None:
        """The store has not answered for the first one: the next try is after a pause that grows with every failure."""
        self._failures += 1
        self._left.rotate(-1)
        self._pause()

    def last_turns(self) -> Iterator[Deferred]:
        """All that are left, once more."""
        for _ in range(len(self._left)):
            yield self._left[0]

    def give_up(self) -> None:
        """Conclude all that are left."""
        while self._left:
            self._left.popleft().concluded(None)

    def _pause(self) -> None:
        self._next = self._clock() + SETTLING.delay(self._failures, lazy.random.random())
