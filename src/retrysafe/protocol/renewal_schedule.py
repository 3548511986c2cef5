"""When leases are renewed: a pure schedule without clock, thread or I/O."""

from __future__ import annotations

from collections import OrderedDict, defaultdict

from retrysafe.protocol.records import Ownership

PER_LEASE = 3
"""A lease is renewed when a third of it has passed."""
LOOKS_PER_LEASE = 6
"""Which leases are new is looked at so often: before the first renewal of any of them is due."""
RETRIES_PER_LEASE = 12
"""A renewal that failed is tried again after a twelfth of the lease."""


class Beats:
    """Which held claims are due for renewal, and when the next one will be.

    Claims with the same pause fall due in the order in which they were added, so each pause has a
    queue and no heap is needed. Times are seconds on one monotonic clock.
    """

    def __init__(self) -> None:
        self._queues: defaultdict[float, OrderedDict[Ownership, float]] = defaultdict(OrderedDict)

    def add(self, held: Ownership, now: float) -> float:
        """Schedule ``held``; return when it is due."""
        self.drop(held)
        return self._after(held, now, held.clocks.lease / 1e6 / PER_LEASE)

    def add_new(self, held: Ownership, now: float) -> float:
        """Schedule ``held``, which began to be held since the last look; return when it is due."""
        self.drop(held)
        return self._after(held, now, held.clocks.lease / 1e6 / LOOKS_PER_LEASE)

    def retry(self, held: Ownership, now: float) -> float:
        """Schedule ``held`` again soon, after a renewal that failed; return when it is due."""
        self.drop(held)
        return self._after(held, now, held.clocks.lease / 1e6 / RETRIES_PER_LEASE)

    def _after(self, held: Ownership, now: float, pause: float) -> float:
        due = now + pause
        self._queues[pause][held] = due
        return due

    def drop(self, held: Ownership) -> None:
        """Forget ``held``, whether it is known or not."""
        for per_lease in (PER_LEASE, LOOKS_PER_LEASE, RETRIES_PER_LEASE):
            queue = self._queues[held.clocks.lease / 1e6 / per_lease]
            if queue.pop(held, None) is not None:
                return

    def due(self, now: float) -> list[Ownership]:
        """The claims to renew now; each is scheduled again from now."""
        ready: list[Ownership] = []
        for queue in self._queues.values():
            for held, when in queue.items():
                if when > now:
                    break
                ready.append(held)
        for held in ready:
            self.add(held, now)
        return ready

    def next_due(self) -> float | None:
        """When the next renewal is due, or None when nothing is held."""
        heads = [next(iter(queue.values())) for queue in self._queues.values() if queue]
        return min(heads, default=None)
