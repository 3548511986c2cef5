"""OpenTelemetry: what retrysafe decides, as metrics and spans. Needs the extra ``otel``.

The key of an operation, its hash, its scope and the ids of attempts are never attributes of a metric. A span has the
key as logs have it, redacted to eight digits of its hash, so that one can be found from the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary, ref

import retrysafe
from retrysafe import runtime
from retrysafe.claims.heartbeat import clock
from retrysafe.errors import InProgress
from retrysafe.extras import NeedsExtra
from retrysafe.observability.metrics import (
    ATTEMPTS,
    BEGINNINGS,
    BUCKETS,
    CLAIMS,
    COUNTERS,
    DECISIONS,
    ENDINGS,
    GAUGES,
    IN_PROGRESS,
    STORE_DURATION,
    WORK_DURATION,
    Measure,
)
from retrysafe.protocol.events import Event

with NeedsExtra("otel", "opentelemetry"):
    from opentelemetry import context, metrics, trace
    from opentelemetry.metrics import CallbackOptions, Observation
    from opentelemetry.trace import Status, StatusCode, Tracer

MOST = 200
"""The largest number of values of one attribute of a metric; the others are "_OTHER", and memory stays bounded."""

Labels = dict[str, str | bool]
_NO_EVENTS = frozenset({"received", "store_request", "waiting"})
_NO_FAILURE = ("", "completed")


class OpenTelemetryObserver:
    """Counts every event, measures store and work, and puts a span around each attempt; for ``observers=``.

    The providers are by default the global ones, which may be set up later. Spans and log lines of the guarded work
    nest under the span of its attempt. One observer serves any number of boundaries.
    """

    def __init__(
        self,
        meter_provider: metrics.MeterProvider | None = None,
        tracer_provider: trace.TracerProvider | None = None,
    ) -> None:
        self._instruments = _instruments_of(meter_provider)
        self._tracer = trace.get_tracer("retrysafe", retrysafe.__version__, tracer_provider)

    def is_enabled(self, name: str, /) -> bool:
        return name in _COUNTED_BY or name in _SHOWN_BY

    def __call__(self, event: Event, /) -> None:
        """Count what is told of no attempt: what passed unguarded, and what a person did."""
        self._instruments.count(event, self._instruments.labels(event))

    def watch(self, received: Event, /) -> AttemptWatch:
        """Begin the span of an attempt."""
        return AttemptWatch(self._instruments, self._tracer, received)


class AttemptWatch:
    """Measures one attempt and traces it. It is held by its claim alone, so nothing is left of one that never ends."""

    __slots__ = (
        "__weakref__",
        "_began",
        "_closed",
        "_decided",
        "_ending",
        "_error_type",
        "_instruments",
        "_outer",
        "_pid",
        "_span",
        "_store",
        "_waits",
        "labels",
    )

    def __init__(self, instruments: _Instruments, tracer: Tracer, received: Event) -> None:
        self.labels = instruments.labels(received)
        self._instruments = instruments
        self._store = str(received.fields["store"])
        self._pid = runtime.pid
        self._began: float | None = None
        self._decided = ""
        self._ending = ""
        self._error_type = ""
        self._waits = 0
        self._closed = False
        self._outer = context.get_current()
        self._span = tracer.start_span(
            f"retrysafe claim {self.labels['retrysafe.operation']}", self._outer, attributes=_identity(received)
        )
        context.attach(trace.set_span_in_context(self._span, self._outer))

    @property
    def is_running(self) -> bool:
        """True if its work runs, in this process and not in the one that this was forked from."""
        return not self._closed and self._pid == runtime.pid

    def __call__(self, event: Event, /) -> None:
        name, fields = event.name, event.fields
        if name == "store_request":
            self._record_request(fields)
        elif name in BEGINNINGS:
            self._began = clock()
            self._instruments.runs(self)
        elif name == "waiting":
            self._waits += 1
        if name in DECISIONS:
            self._decided = name
        elif name in ENDINGS or (name == "lease_lost" and not self._ending):
            self._ending = name
            self._error_type = str(fields.get("error_type", ""))
        self._instruments.count(event, self.labels)
        if name not in _NO_EVENTS and not self._closed:
            self._span.add_event(name, {f"retrysafe.{field}": _value(value) for field, value in fields.items()})

    def _record_request(self, fields: Mapping[str, Any]) -> None:
        seconds, step = fields["seconds"], fields["step"]
        labels = {"retrysafe.step": step, "retrysafe.answered": fields["answered"], "retrysafe.store": self._store}
        self._instruments.store_duration.record(seconds, self.labels | labels)
        if step == "settle" and self._began is not None:
            self._instruments.work_duration.record(max(0.0, clock() - seconds - self._began), self.labels)
            self._began = None

    def close(self, error: BaseException | None, /) -> None:
        """End the span in the process that began it, and give the context back if it is still the span's."""
        if trace.get_current_span() is self._span:
            context.attach(self._outer)
        if self._pid != runtime.pid:
            return
        self._closed = True
        self._count_end(error)
        self._end_span(error)

    def _count_end(self, error: BaseException | None) -> None:
        if self._decided in BEGINNINGS:
            self._instruments.add(ATTEMPTS, self.labels, self._ending or "error", self._error_type)
        elif not self._decided:
            self._instruments.add(CLAIMS, self.labels, "error", type(error).__name__)

    def _end_span(self, error: BaseException | None) -> None:
        span = self._span
        span.set_attribute("retrysafe.outcome", self._decided or "error")
        if self._ending:
            span.set_attribute("retrysafe.ending", self._ending)
        if self._waits:
            span.set_attribute("retrysafe.waits", self._waits)
        failed = error is not None and not isinstance(error, InProgress)
        error_type = type(error).__name__ if failed else self._error_type
        if error_type:
            span.set_attribute("error.type", error_type)
        if failed or self._ending not in _NO_FAILURE:
            span.set_status(Status(StatusCode.ERROR, self._ending or self._decided or error_type))
        span.end()


class _Instruments:
    """The instruments of one meter provider, shared by all observers that use it."""

    def __init__(self, provider: metrics.MeterProvider | None) -> None:
        meter = metrics.get_meter("retrysafe", retrysafe.__version__, provider)
        self._counters = {c.name: meter.create_counter(c.name, c.unit, c.text) for c in COUNTERS}
        self._gauges = {gauge: meter.create_gauge(gauge.name, gauge.unit, gauge.text) for gauge in GAUGES}
        self.store_duration = _histogram(meter, STORE_DURATION)
        self.work_duration = _histogram(meter, WORK_DURATION)
        self._names: dict[str, set[str]] = {}
        self._running: set[ref[AttemptWatch]] = set()
        self._groups: set[tuple[tuple[str, str | bool], ...]] = set()
        meter.create_observable_up_down_counter(
            IN_PROGRESS.name, [self._count_running], IN_PROGRESS.unit, IN_PROGRESS.text
        )

    def labels(self, event: Event) -> Labels:
        found: Labels = {
            "retrysafe.boundary": self._few("boundary", event.boundary),
            "retrysafe.operation": self._few("operation", event.operation),
        }
        if "effects" in event.fields:
            found["retrysafe.effects"] = event.fields["effects"]
        return found

    def count(self, event: Event, labels: Labels) -> None:
        """Move every counter of the event; how attempts end is counted once, at their end."""
        name, fields = event.name, event.fields
        for counter in _COUNTED_BY.get(name, ()):
            if counter.name != ATTEMPTS and counter.counts(event):
                outcome = fields[counter.field] if counter.field else name if counter.outcome else ""
                amount = fields[counter.amount] if counter.amount else 1
                self.add(counter.name, labels, outcome, fields.get("error_type", ""), amount)
        for gauge in _SHOWN_BY.get(name, ()):
            about = {**labels, f"retrysafe.{gauge.by}": self._few(gauge.name, fields[gauge.by])} if gauge.by else labels
            self._gauges[gauge].set(fields[gauge.field], about)

    def add(self, counter: str, labels: Labels, outcome: str, error_type: str, amount: float = 1) -> None:
        if outcome:
            labels = {**labels, "retrysafe.outcome": self._few(counter, outcome)}
        if error_type:
            labels = {**labels, "error.type": self._few("error.type", error_type)}
        self._counters[counter].add(amount, labels)

    def _few(self, attribute: str, value: str) -> str:
        """A value that a label may have: names beyond the bound share one series."""
        seen = self._names.setdefault(attribute, set())
        if value not in seen:
            if len(seen) >= MOST:
                return "_OTHER"
            seen.add(value)
        return value

    # Sets of weak references change and are copied in one step of the interpreter, so that no lock is needed, which
    # a fork or a signal handler could find taken.

    def runs(self, watch: AttemptWatch) -> None:
        """Count an attempt as running until it says otherwise, or is there no more."""
        self._groups.add(tuple(watch.labels.items()))
        self._running.add(ref(watch, self._running.discard))

    def _count_running(self, options: CallbackOptions) -> Iterable[Observation]:
        counts = dict.fromkeys(self._groups.copy(), 0)
        for reference in self._running.copy():
            watch = reference()
            if watch is not None and watch.is_running:
                group = tuple(watch.labels.items())
                counts[group] = counts.get(group, 0) + 1
        return [Observation(count, dict(group)) for group, count in counts.items()]


_COUNTED_BY = {
    name: [counter for counter in COUNTERS if name in counter.events]
    for name in {name for counter in COUNTERS for name in counter.events}
}
_SHOWN_BY = {gauge.event: [one for one in GAUGES if one.event == gauge.event] for gauge in GAUGES}
_by_provider: WeakKeyDictionary[metrics.MeterProvider, _Instruments] = WeakKeyDictionary()
_of_the_global_one: list[_Instruments] = []


def _instruments_of(provider: metrics.MeterProvider | None) -> _Instruments:
    """The instruments of a provider, made once: an observable instrument cannot be made twice."""
    if provider is None:
        if not _of_the_global_one:
            _of_the_global_one.append(_Instruments(None))
        return _of_the_global_one[0]
    found = _by_provider.get(provider)
    if found is None:
        found = _by_provider[provider] = _Instruments(provider)
    return found


def _histogram(meter: metrics.Meter, measure: Measure) -> metrics.Histogram:
    return meter.create_histogram(measure.name, measure.unit, measure.text, explicit_bucket_boundaries_advisory=BUCKETS)


def _identity(received: Event) -> dict[str, str]:
    """Return the attributes of an attempt's span from the beginning; the key as it is in logs."""
    _, boundary, operation, key, attempt, fields = received
    return {
        "retrysafe.boundary": boundary,
        "retrysafe.operation": operation,
        "retrysafe.effects": fields["effects"],
        "retrysafe.store": fields["store"],
        "retrysafe.key": key,
        "retrysafe.attempt": attempt,
    }


def _value(value: object) -> str | bool | int | float | list[str]:
    if isinstance(value, str | bool | int | float):
        return value
    return [str(part) for part in value] if isinstance(value, tuple) else str(value)
