"""The watchdog of a subscription: it sees partitions that have messages of which none arrives."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

STALLED = 60.0
"""Seconds without progress after which a consumer connects anew: longer than clients take to recover by themselves."""
RECONNECTS = 3
"""Connections that brought nothing for a partition before the subscription ends."""


class _Seen(NamedTuple):
    lag: int
    received: int
    since: float
    reconnects: int


class Watchdog:
    """Compares how far partitions are behind with what was received of them. Instants are seconds of one clock.

    A partition has progressed when it has nothing to give, when one of its messages is in memory, when something of it
    arrived, or when fewer messages are left than at the last look.
    """

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def look(
        self, lag: Mapping[str, int], received: Mapping[str, int], held: Collection[str], now: float
    ) -> dict[str, int]:
        """The partitions without progress for `STALLED` seconds: how often a new connection has not helped already."""
        before, self._seen, stalled = self._seen, {}, {}
        for place, left in lag.items():
            seen, count = before.get(place), received.get(place, 0)
            if seen is None or not left or place in held or count != seen.received or left < seen.lag:
                seen = _Seen(left, count, now, 0)
            elif now - seen.since >= STALLED:
                stalled[place] = seen.reconnects
                seen = _Seen(left, count, now, seen.reconnects + 1)
            self._seen[place] = seen._replace(lag=left)
        return stalled
