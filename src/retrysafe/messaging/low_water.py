"""Where relays begin to read: above what has left, which a database may keep for as long as somebody might see it.

A snapshot that is held open keeps every message that was removed in the indexes, and each look at a bucket reads over
all of them. So relays read from a low-water mark on. A number that was drawn early can be committed late, so the mark
is no cursor: it is the oldest message of a full look some seconds ago, and every full look takes it back to what it
finds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from retrysafe.ports import OutboxStore, Steps
from retrysafe.programs.drivers import ask
from retrysafe.types import Queued

EVERY = 5.0
"""Seconds between two full looks: who commits later than that after drawing its number waits so long at most."""


class LowWater:
    """The mark of one relay."""

    def __init__(self, outbox: OutboxStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._outbox, self._clock = outbox, clock
        self.mark = self._oldest = self._highest = 0
        self._next = 0.0

    def is_due(self) -> bool:
        """Whether it is time for a full look; whoever asks first is to take it."""
        now = self._clock()
        if now < self._next:
            return False
        self._next = now + EVERY
        return True

    def steps(self) -> Steps[None]:
        """Look from the beginning on. The mark follows one look later, and goes back at once."""
        above = self._highest + 1
        oldest = yield from ask(self._outbox.oldest())
        oldest = above if oldest is None else oldest
        self.mark, self._oldest = min(self._oldest, oldest), oldest

    def took(self, queue: Sequence[Queued]) -> None:
        """These were read."""
        self._highest = max([self._highest, *(queued.id for queued in queue)])

    def reset(self) -> bool:
        """Read from the beginning again; whether that is something new."""
        before, self.mark, self._oldest = self.mark, 0, 0
        return before > 0
