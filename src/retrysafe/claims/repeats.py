"""Messages that repeat during an outage, told once."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

QUIET = 60.0
"""Seconds in which a thing was not said, after which it is new: longer than the pauses between two tries."""
_REMEMBERED = 1000


class Repeats:
    """Tells a first time from the times that follow it. Threads may share it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: dict[Hashable, float] = {}

    def is_new(self, said: Hashable) -> bool:
        """Tell whether it was not reported for a minute; it counts as reported now."""
        now = self._clock()
        if len(self._last) >= _REMEMBERED:
            self._last.clear()
        last = self._last.get(said)
        self._last[said] = now
        return last is None or now - last > QUIET
