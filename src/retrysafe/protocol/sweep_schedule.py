"""When a sweeper works and when it rests: a pure schedule without clock, thread or I/O."""

from __future__ import annotations

from typing import NamedTuple

from retrysafe.protocol.backoff import Backoff

RECOVERY = Backoff(base=0.5, cap=60.0)
"""How a sweeper tries again when the store fails."""


class Sweeps(NamedTuple):
    """The pace of a sweeper, in seconds, and what it has met so far.

    After a full batch of records there are probably more: it rests for ``pause``, and at least as long as the batch
    took, so that a busy store has the other half of the time to itself. After any other batch it sleeps for about
    ``every``; then sweepers that were started together do not stay together.
    """

    batch: int
    pause: float
    every: float
    failures: int = 0

    def goes_on(self, took: float) -> tuple[Sweeps, float]:
        """The schedule after a full batch, and how long to rest."""
        return self._replace(failures=0), max(self.pause, took)

    def when_done(self, chance: float) -> tuple[Sweeps, float]:
        """The schedule when nothing was left, and how long to sleep; ``chance`` is random in [0, 1)."""
        return self._replace(failures=0), self.every * (0.75 + chance / 2)

    def failed(self, chance: float) -> tuple[Sweeps, float]:
        """The schedule after the store failed, and how long to rest."""
        rest = max(self.pause, RECOVERY.delay(self.failures, chance))
        return self._replace(failures=self.failures + 1), rest

    def first(self, chance: float) -> float:
        """How long a process that was forked rests first: its parent sweeps already, and so may its siblings."""
        return self.every * chance
