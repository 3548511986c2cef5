"""The clock of a service that has none to ask: this machine's, corrected by the ``Date`` of the service's answers.

An answer says that the server's clock stood within one second of its ``Date`` at some instant between sending
and receiving. Each such sample bounds the difference between the two clocks; what all samples allow is kept.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import NamedTuple, Protocol

from retrysafe.protocol.records import Finding, Micros

RESOLUTION: Micros = 1_000_000
"""A ``Date`` header tells whole seconds."""
DRIFT = 2000
"""A clock may gain or lose one part in so many: what an operating system may slew it by."""


class Bounds(NamedTuple):
    """The server's time minus this machine's, at the least and at the most, as known at a local instant."""

    least: Micros
    most: Micros
    at: Micros

    def age(self, local: Micros) -> Bounds:
        """The bounds at a later instant, wider because clocks drift apart."""
        drift = max(0, local - self.at) // DRIFT
        return Bounds(self.least - drift, self.most + drift, max(self.at, local))

    @property
    def width(self) -> Micros:
        """By how much the server's clock may be ahead of the least."""
        return self.most - self.least


def sample(sent: Micros, received: Micros, date: Micros) -> Bounds:
    """Bound the clock's offset by one answer, which was asked for and received at these local instants."""
    return Bounds(date - received, date + RESOLUTION - sent, received)


def narrow(known: Bounds | None, sample: Bounds) -> Bounds:
    """Narrow the bounds by one more sample; if they contradict each other, the clock was set, and the sample counts."""
    if known is None:
        return sample
    before = known.age(sample.at)
    after = sample.age(before.at)
    least, most = max(before.least, after.least), min(before.most, after.most)
    return Bounds(least, most, before.at) if least <= most else after


class Sightings:
    """For how long running records have been seen unchanged, by this process: the way to wait without a common clock.

    A process that has seen one version for a whole lease knows that the lease has passed, whatever any clock says.
    """

    def __init__(self, most: int = 10_000) -> None:
        self._seen: dict[bytes, tuple[int, Micros]] = {}
        self._most = most

    def unchanged_for(self, key: bytes, version: int, local: Micros) -> Micros:
        """Return the time since this version was first seen; versions seen long ago are forgotten, and count as new."""
        known = self._seen.get(key)
        if known is not None and known[0] == version:
            return local - known[1]
        if known is None and len(self._seen) >= self._most:
            self._seen.pop(next(iter(self._seen)), None)
        self._seen[key] = (version, local)
        return 0


_CLOCK = getattr(time, "CLOCK_BOOTTIME", None)


def steady() -> Micros:
    """Microseconds on a clock that is never set and, where the system has one, runs on during suspension."""
    return (time.monotonic_ns() if _CLOCK is None else time.clock_gettime_ns(_CLOCK)) // 1000


@lru_cache(maxsize=8)
def instant(date: str) -> Micros | None:
    """A ``Date`` header in microseconds since the Unix epoch; None when it cannot be read."""
    try:
        return round(parsedate_to_datetime(date).timestamp()) * 1_000_000
    except ValueError:
        return None


class Clock(Protocol):
    """The service's clock: never ahead of it, and behind by at most ``error``."""

    @property
    def corrected(self) -> bool:
        """True if the service has told its time."""
        ...

    @property
    def error(self) -> Micros:
        """By how much the service's clock may be ahead."""
        ...

    def local(self) -> Micros:
        """This machine's own time, which is never set."""
        ...

    def __call__(self) -> Micros:
        """The time."""
        ...


class OwnClock:
    """The clock of a service that reckons with its own time and answers with it: this one decides nothing."""

    corrected = True
    error: Micros = 0

    def local(self) -> Micros:
        return steady()

    def __call__(self) -> Micros:
        return time.time_ns() // 1000


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
        return self._bounds is not None

    @property
    def error(self) -> Micros:
        bounds = self._bounds
        return 0 if bounds is None else bounds.age(self.local()).width

    def __call__(self) -> Micros:
        """The time on the service's clock, in microseconds since the Unix epoch."""
        local, bounds = self.local(), self._bounds
        return local + (self._assumed if bounds is None else bounds.age(local).least)

    def note(self, sent: Micros, received: Micros, date: str | None) -> None:
        """Take note of the ``Date`` of an answer that was asked for and received at these local instants."""
        told = None if date is None else instant(date)
        if told is None:
            return
        with self._lock:
            self._bounds = narrow(self._bounds, sample(sent, received, told))


def finding_of(clock: Clock) -> Finding:
    if clock.corrected:
        return Finding("fact", "clock", f"corrected by the service's Date, to within {clock.error / 1e6:.1f} s")
    text = (
        "The answers carry no Date, so clocks cannot be corrected: a lease is taken over only by a process that "
        "has seen it unchanged for its whole length, and windows end by the clock of each machine."
    )
    return Finding("warn", "clock", text)
