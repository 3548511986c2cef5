"""A budget of retries per host, so that retries never multiply an outage. Rules C13 and C14.

A bucket of tokens that requests fill and retries empty; see "Addressing Cascading Failures" in Google's Site
Reliability Engineering, and the retry throttling of gRPC (A6).
"""

from __future__ import annotations

from typing import NamedTuple

from retrysafe.runtime import new_lock


class Bucket(NamedTuple):
    """Tokens in tenths, so that no rounding can add to what N requests may cost: 1.2·N + 10 attempts."""

    tenths: int = 100

    def deposit(self) -> Bucket:
        """After one more request."""
        return Bucket(min(1000, self.tenths + 2))

    def take(self) -> Bucket | None:
        """After one more retry; None when there is no whole token for it."""
        return None if self.tenths < 10 else Bucket(self.tenths - 10)


_MOST_HOSTS = 4096
_OTHERS = ""
"""The bucket of all hosts that have none of their own."""


class Budgets:
    """The buckets of all hosts; one object may serve any number of clients and threads of a process.

    The names of hosts must neither fill the memory nor win a spent budget back. So a bucket is forgotten only when it
    has as much as a new one; when there is no such bucket, hosts that are new share one.
    """

    def __init__(self, most: int = _MOST_HOSTS) -> None:
        self._lock = new_lock()
        self._most = most
        self._spent: dict[str, Bucket] = {}
        self._whole: dict[str, Bucket] = {}
        """Those that have as much as a new one, in the order of their last use."""

    def deposit(self, origin: str) -> None:
        """A request to a host begins."""
        with self._lock:
            self._keep(origin, self._bucket(origin).deposit())

    def take(self, origin: str) -> bool:
        """Tell whether the host may be sent one more retry; if so, it is paid for."""
        with self._lock:
            left = self._bucket(origin).take()
            if left is not None:
                self._keep(origin, left)
            return left is not None

    def left(self, origin: str) -> float:
        """Return the number of retries that the host may be sent now."""
        with self._lock:
            return self._bucket(origin).tenths / 10

    def _bucket(self, origin: str) -> Bucket:
        found = self._spent.get(origin)
        if found is None:
            full = len(self._spent) >= self._most
            found = self._spent.get(_OTHERS) if full else self._whole.get(origin)
        return found or Bucket()

    def _keep(self, origin: str, bucket: Bucket) -> None:
        if origin not in self._spent and len(self._spent) >= self._most:
            origin = _OTHERS
        self._whole.pop(origin, None)
        self._spent.pop(origin, None)
        if bucket.tenths < Bucket().tenths or origin == _OTHERS:
            self._spent[origin] = bucket
            return
        self._whole[origin] = bucket
        if len(self._whole) > self._most:
            del self._whole[next(iter(self._whole))]
