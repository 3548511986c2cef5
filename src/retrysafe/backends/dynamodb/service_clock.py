"""The clock of a service that has none to ask: this machine's, corrected by the ``Date`` of the service's answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from functools import lru_cache

from retrysafe.protocol.clock_correction import Bounds, narrowed, sampled
from retrysafe.protocol.records import Micros

_CLOCK = getattr(time, "CLOCK_BOOTTIME", None)


def steady() -> Micros:
    """Microseconds on a clock that nobody sets and, where the system has one, that runs on during suspension."""
    return (time.monotonic_ns() if _CLOCK is None else time.clock_gettime_ns(_CLOCK)) // 1000


@lru_cache(maxsize=8)
def instant(date: str) -> Micros | None:
    """A ``Date`` header in microseconds since the Unix epoch; None when it cannot be read."""
    try:
        return round(parsedate_to_datetime(date).timestamp()) * 1_000_000
    except ValueError:
        return None


class ServiceClock:
    """Never ahead of the service's clock, behind by at most `error`, and going back only where the service does.

    The wall clock of this machine is asked once, for the time before the first answer; that it is wrong, or
    set later, makes no difference afterwards. Threads and event loops may share one.
    """

    def __init__(self, local: Callable[[], Micros] = steady, wall: Callable[[], int] = time.time_ns) -> None:
        self.local = local
        self._assumed = wall() // 1000 - local()
        self._bounds: Bounds | None = None
        self._lock = threading.Lock()

    @property
    def corrected(self) -> bool:
        """Whether the service has told its time."""
        return self._bounds is not None

    @property
    def error(self) -> Micros:
        """By how much the service's clock may be ahead of this one."""
        bounds = self._bounds
        return 0 if bounds is None else bounds.aged(self.local()).width

    def __call__(self) -> Micros:
        """The time on the service's clock, in microseconds since the Unix epoch."""
        local, bounds = self.local(), self._bounds
        return local + (self._assumed if bounds is None else bounds.aged(local).least)

    def told(self, sent: Micros, received: Micros, date: str | None) -> None:
        """Take note of the ``Date`` of an answer that was asked for and received at these local instants."""
        told = None if date is None else instant(date)
        if told is None:
            return
        with self._lock:
            self._bounds = narrowed(self._bounds, sampled(sent, received, told))
