"""The times of renewals and sweeps: pure schedules without clock, thread or I/O."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from typing import NamedTuple

from retrysafe.protocol.backoff import Backoff
from retrysafe.protocol.records import Ownership

RECOVERY = Backoff(base=0.5, cap=60.0)
"""The pauses of a sweeper when the store fails."""


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

    def after_failure(self, chance: float) -> tuple[Sweeps, float]:
        """The schedule after the store failed, and how long to rest."""
        rest = max(self.pause, RECOVERY.delay(self.failures, chance))
        return self._replace(failures=self.failures + 1), rest

    def first(self, chance: float) -> float:
        """Return the first rest of a forked process: its parent sweeps already, and so may its siblings."""
        return self.every * chance


PER_LEASE = 3
"""A lease is renewed when a third of it has passed."""
LOOKS_PER_LEASE = 6
"""The number of looks for new leases in a lease's time: one comes before the first renewal of any of them is due."""
RETRIES_PER_LEASE = 12
"""A renewal that failed is tried again after a twelfth of the lease."""


class Beats:
    """The held claims that are due for renewal, and the time of the next one.

    Claims with the same pause fall due in the order in which they were added, so each pause has a
    queue and no heap is needed. Times are seconds on one monotonic clock.
    """

    def __init__(self) -> None:
        self._queues: defaultdict[float, OrderedDict[Ownership, float]] = defaultdict(OrderedDict)

    def add(self, ownership: Ownership, now: float) -> float:
        """Schedule ``ownership``; return when it is due."""
        self.drop(ownership)
        return self._after(ownership, now, ownership.clocks.lease / 1e6 / PER_LEASE)

    def add_new(self, ownership: Ownership, now: float) -> float:
        """Schedule ``ownership``, which began since the last look; return when it is due."""
        self.drop(ownership)
        return self._after(ownership, now, ownership.clocks.lease / 1e6 / LOOKS_PER_LEASE)

    def retry(self, ownership: Ownership, now: float) -> float:
        """Schedule ``ownership`` again soon, after a renewal that failed; return when it is due."""
        self.drop(ownership)
        return self._after(ownership, now, ownership.clocks.lease / 1e6 / RETRIES_PER_LEASE)

    def _after(self, ownership: Ownership, now: float, pause: float) -> float:
        due = now + pause
        self._queues[pause][ownership] = due
        return due

    def drop(self, ownership: Ownership) -> None:
        """Forget ``ownership``, whether it is known or not."""
        for per_lease in (PER_LEASE, LOOKS_PER_LEASE, RETRIES_PER_LEASE):
            queue = self._queues[ownership.clocks.lease / 1e6 / per_lease]
            if queue.pop(ownership, None) is not None:
                return

    def due(self, now: float) -> list[Ownership]:
        """The claims to renew now; each is scheduled again from now."""
        ready: list[Ownership] = []
        for queue in self._queues.values():
            for ownership, when in queue.items():
                if when > now:
                    break
                ready.append(ownership)
        for ownership in ready:
            self.add(ownership, now)
        return ready

    def next_due(self) -> float | None:
        """Return the time of the next renewal, or None when nothing is held."""
        heads = [next(iter(queue.values())) for queue in self._queues.values() if queue]
        return min(heads, default=None)
