"""Messages whose handler cannot do its work for now: how soon each of them is tried again."""

from __future__ import annotations

from collections.abc import Callable

from retrysafe.protocol.backoff import Backoff

RECOVERY = Backoff(base=0.5, cap=30.0)
"""Half of the pause is certain, so that what is down is not stormed."""
REMEMBERED = 10_000
"""The largest number of remembered messages; one that is forgotten begins with the shortest pause again."""


class Stalls:
    """Counts how often in a row each message was stalled. Kept in memory: a restarted process begins anew."""

    def __init__(self, longest: float, clock: Callable[[], float]) -> None:
        self._times: dict[bytes, tuple[int, float]] = {}
        self._longest, self._clock = longest, clock

    def pause(self, message: bytes, chance: float) -> float | None:
        """Seconds until a message that was stalled once more is tried again; ``chance`` is random in [0, 1).

        None: it has been stalled for too long.
        """
        now = self._clock()
        times, since = self._times.get(message, (0, now))
        if now - since > self._longest:
            return None
        if len(self._times) >= REMEMBERED:
            self._times.clear()
        self._times[message] = times + 1, since
        return RECOVERY.delay(times, 0.5 + chance / 2)

    def end(self, message: bytes) -> None:
        """Something else became of a message."""
        self._times.pop(message, None)
