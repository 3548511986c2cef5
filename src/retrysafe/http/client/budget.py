"""A budget of retries per host, so that retries never multiply an outage. Rules C13 and C14.

A bucket of tokens that requests fill and retries empty; see "Addressing Cascading Failures" in Google's Site
Reliability Engineering, and the retry throttling of gRPC (A6).
"""

from __future__ import annotations

from typing import NamedTuple

from retrysafe.locks import ProcessLock


class Bucket(NamedTuple):
    """Tokens in tenths, so that no rounding can add to what N requests may cost: 1.2·N + 10 attempts."""

    tenths: int = 100

    def deposited(self) -> Bucket:
        """After one more request."""
        return Bucket(min(1000, self.tenths + 2))

    def taken(self) -> Bucket | None:
        """After one more retry; None when there is no whole token for it."""
        return None if self.tenths < 10 else Bucket(self.tenths - 10)


class Budgets:
    """The buckets of all hosts; one object may serve any number of clients and threads of a process."""

    def __init__(self) -> None:
        self._lock = ProcessLock()
        self._buckets: dict[str, Bucket] = {}

    def deposit(self, origin: str) -> None:
        """A request to a host begins."""
        with self._lock:
            self._buckets[origin] = self._buckets.get(origin, Bucket()).deposited()

    def take(self, origin: str) -> bool:
        """Whether the host may be sent one more retry; if so, it is paid for."""
        with self._lock:
            left = self._buckets.get(origin, Bucket()).taken()
            if left is not None:
                self._buckets[origin] = left
            return left is not None

    def left(self, origin: str) -> float:
        """How many retries the host may be sent now."""
        return self._buckets.get(origin, Bucket()).tenths / 10
