"""The gateway's metrics for Prometheus: the decisions of its boundaries, and the results of requests.

Names are those that OpenTelemetry's exporter gives to `retrysafe.observability.metrics`. With several workers each
process writes into the directory that ``PROMETHEUS_MULTIPROC_DIR`` names, and the worker that is asked adds them up.
"""

from __future__ import annotations

import os
import struct
import time

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.multiprocess import MultiProcessCollector

from retrysafe.claims.observers import EVENTS
from retrysafe.observability.metrics import ATTEMPTS, BEGINNINGS, BUCKETS, CLAIMS, COUNTERS, DECISIONS, ENDINGS
from retrysafe.protocol.events import Event

DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"
CONTENT_TYPE = prometheus_client.CONTENT_TYPE_LATEST

_COUNTED_BY = {
    name: [counter for counter in COUNTERS if name in counter.events and counter.name != ATTEMPTS] for name in EVENTS
}

_READS, _PAUSE = 20, 0.01
"""The number of further reads while a worker's file is being made, and the pause in seconds."""


class Metrics:
    """The instruments of one worker."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        labels = ("retrysafe_boundary", "retrysafe_operation", "retrysafe_outcome")
        self._counters = {
            counter.name: Counter(counter.name.replace(".", "_"), counter.text, labels, registry=registry)
            for counter in COUNTERS
        }
        self.requests = Counter(
            "retrysafe_gateway_requests",
            "Requests, by the route's pattern, the status, and who answered: upstream, record or gateway.",
            ("route", "status", "answered_by"),
            registry=registry,
        )
        self.failures = Counter(
            "retrysafe_gateway_upstream_failures",
            "Requests that the upstream did not answer, by the error's name in RFC 9209.",
            ("route", "error"),
            registry=registry,
        )
        self.duration = Histogram(
            "retrysafe_gateway_upstream_duration_seconds",
            "How long the upstream took for a request and its whole response.",
            ("route",),
            buckets=BUCKETS,
            registry=registry,
        )

    def __call__(self, event: Event, /) -> None:
        self._count(event)

    def watch(self, received: Event, /) -> CountedAttempt:
        return CountedAttempt(self, received)

    def add(self, counter: str, event: Event, outcome: str) -> None:
        self._counters[counter].labels(event.boundary, event.operation, outcome).inc()

    def _count(self, event: Event) -> None:
        for counter in _COUNTED_BY.get(event.name, ()):
            if counter.counts(event):
                outcome = event.name if counter.outcome else ""
                self.add(counter.name, event, str(event.fields[counter.field]) if counter.field else outcome)

    def text(self) -> bytes:
        """All of it, of all workers."""
        if DIRECTORY not in os.environ:
            return prometheus_client.generate_latest(self._registry)
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        for _ in range(_READS):
            try:
                return prometheus_client.generate_latest(registry)
            except struct.error:  # the file of a worker that begins has no size for a moment
                time.sleep(_PAUSE)
        return prometheus_client.generate_latest(registry)


class CountedAttempt:
    """Counts one attempt once: how it was decided, and how it ended."""

    __slots__ = ("_decided", "_ending", "_metrics", "_received")

    def __init__(self, metrics: Metrics, received: Event) -> None:
        self._metrics = metrics
        self._received = received
        self._decided = self._ending = ""

    def __call__(self, event: Event, /) -> None:
        name = event.name
        if name in DECISIONS:
            self._decided = name
        elif name in ENDINGS or (name == "lease_lost" and not self._ending):
            self._ending = name
        self._metrics._count(event)

    def close(self, error: BaseException | None, /) -> None:
        if self._decided in BEGINNINGS:
            self._metrics.add(ATTEMPTS, self._received, self._ending or "error")
        elif not self._decided:
            self._metrics.add(CLAIMS, self._received, "error")
