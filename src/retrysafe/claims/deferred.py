"""Outcomes that a store did not take at once: the heartbeat puts them again until their lease ends.

The work is over and its caller has the result. Settling is conditional on the state, the attempt and the token of the
record, so an outcome that comes late is stored if the attempt still owns its record, and fenced if it does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from retrysafe.protocol.backoff import SETTLING
from retrysafe.protocol.requests import Steps

LAST_TRY = 5.0
"""Seconds in which what is left is tried once more when its boundary is closed or its process or event loop ends."""


class Deferred(NamedTuple):
    """One outcome: how it is settled, and up to when on the holder's clock.

    ``concluded`` is told in the end whether the record was the attempt's own; None: the store never answered.
    """

    until: float
    settle: Callable[[], Steps[bool]]
    concluded: Callable[[bool | None], None]


class Outcomes:
    """The outcomes that are left, and when the next one is tried: they have one store, and so one pause.

    One after the other, in an order by chance: one that always fails must not stand before the others.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._left: dict[Deferred, None] = {}
        self._failures = 0
        self._next = 0.0

    def __len__(self) -> int:
        return len(self._left)

    def add(self, one: Deferred) -> None:
        """Have it tried after a pause."""
        if not self._left:
            self._failures = 0
            self._pause()
        self._left[one] = None

    def due(self) -> float:
        """The time at which something is to be done."""
        left = list(self._left)
        return min(self._next, *(one.until for one in left)) if left else float("inf")

    def take_turn(self) -> Deferred | None:
        """The one to be tried now, if it is time for one; those whose lease has ended are given up."""
        now = self._clock()
        for one in list(self._left):
            if one.until <= now:
                self.conclude(one, None)
        return next(iter(self.shuffle()), None) if self._next <= now else None

    def shuffle(self) -> list[Deferred]:
        """All that are left."""
        import random

        left = list(self._left)
        return random.sample(left, len(left))

    def conclude(self, one: Deferred, done: bool | None) -> None:
        """It is settled, or given up. The store has answered, so that the next one is tried at once."""
        self._failures = 0
        if one in self._left:
            del self._left[one]
            one.concluded(done)

    def postpone(self) -> None:
        """The store has not answered: the next try is after a pause that grows with every failure."""
        self._failures += 1
        self._pause()

    def give_up(self) -> None:
        """Conclude all that are left."""
        for one in list(self._left):
            self.conclude(one, None)

    def _pause(self) -> None:
        import random

        self._next = self._clock() + SETTLING.delay(self._failures, random.random())
