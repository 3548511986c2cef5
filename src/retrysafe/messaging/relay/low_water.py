"""The number from which relays read: above the messages that have left, which an open snapshot keeps.

A snapshot that is held open keeps every message that was removed in the indexes, and each look at a bucket reads over
all of them. So relays read from a low-water mark on. A number that was drawn early can be committed late, so the mark
is no cursor: it is the oldest message of a full look, and it is used when every transaction has ended that had written
into the table by the look after that. (Not by the same look: a transaction draws a number a moment before it can be
told from others.) Else the next message of its key, which can be written from the moment of that commit on, would
overtake it. A full look that finds a message below the mark takes it back to nothing, and so does a database that
fails: the server that answers next may have lost what the one before numbered. Where a database does not tell about
transactions, there is no mark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from retrysafe.protocol.message_stores import OutboxStore
from retrysafe.protocol.messages import Queued
from retrysafe.protocol.requests import Program, ask

EVERY = 5.0
"""Seconds between two full looks."""
SHARE = 20.0
"""The work between two full looks, as a multiple of a look's duration: it reads removed messages too."""


class LowWater:
    def __init__(self, outbox: OutboxStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._outbox, self._clock = outbox, clock
        self.mark = self._oldest = self._begun = self._highest = 0
        self._next = 0.0

    def is_due(self) -> bool:
        """Tell whether it is time for a full look; the first caller that is told so has to take it."""
        now = self._clock()
        if now < self._next:
            return False
        self._next = now + EVERY
        return True

    def steps(self) -> Program[None]:
        """Look from the beginning on. The mark follows when no one can write below it, and goes back at once."""
        above = self._highest + 1
        began = self._clock()
        look = yield from ask(self._outbox.look())
        now = self._clock()
        self._next = max(self._next, now + SHARE * (now - began))
        oldest = above if look.oldest is None else look.oldest
        if self._begun and look.ended >= self._begun:
            self.mark, self._oldest, self._begun = self._oldest, 0, 0
        if not self._oldest:
            self._oldest = oldest
        elif not self._begun:
            self._begun = look.begun
        if look.oldest is not None and look.oldest < self.mark:
            self.reset()  # numbers have begun anew, as when the table was emptied

    def record(self, queue: Sequence[Queued]) -> None:
        self._highest = max([self._highest, *[queued.id for queued in queue]])

    def reset(self) -> bool:
        """Read from the beginning again; whether that is something new."""
        before = self.mark
        self.mark = self._oldest = self._begun = self._highest = 0
        return before > 0
