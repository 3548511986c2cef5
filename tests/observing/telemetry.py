"""The real OpenTelemetry SDK with exporters in memory, and guarded work in both colours over a SQLite file."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, closing
from contextvars import Context
from pathlib import Path
from typing import Any
from uuid import uuid4

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer

from retrysafe import Boundary, Claim
from retrysafe.observability.otel import OpenTelemetryObserver

Labels = dict[str, Any]


class Telemetry:
    """An observer whose metrics and spans a test can read."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self._spans = InMemorySpanExporter()
        self.meters = MeterProvider([self._reader], shutdown_on_exit=False)
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self.tracer: Tracer = self.tracers.get_tracer("test")
        self.observer = OpenTelemetryObserver(self.meters, self.tracers)

    def close(self) -> None:
        self.meters.shutdown()
        self.tracers.shutdown()

    def points(self) -> dict[str, list[tuple[Labels, Any]]]:
        """Metric → its points; of a histogram, how many values it has."""
        found: dict[str, list[tuple[Labels, Any]]] = {}
        data = self._reader.get_metrics_data()
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.data.data_points:
                        value = point.value if isinstance(point, NumberDataPoint) else point.count
                        found.setdefault(metric.name, []).append((dict(point.attributes or {}), value))
        return found

    def total(self, metric: str, **labels: Any) -> Any:
        """The sum of a metric's points that have these attributes of ours."""
        wanted = {name.replace("error_type", "error.type"): value for name, value in labels.items()}
        wanted = {name if "." in name else f"retrysafe.{name}": value for name, value in wanted.items()}
        return sum(value for found, value in self.points().get(metric, ()) if wanted.items() <= found.items())

    def spans(self, prefix: str = "") -> list[ReadableSpan]:
        """The spans that have ended, in this order."""
        return [span for span in self._spans.get_finished_spans() if span.name.startswith(prefix)]


class Works:
    """Boundaries over one SQLite file, entered in one colour."""

    def __init__(self, folder: Path, telemetry: Telemetry, *, sync: bool) -> None:
        self.path = folder / "works.db"
        self.sync = sync
        self._telemetry = telemetry
        self._made: list[Boundary] = []

    def boundary(self, **terms: Any) -> Boundary:
        """A new boundary, observed."""
        terms.setdefault("observers", [self._telemetry.observer])
        made = Boundary(terms.pop("name", f"b-{uuid4().hex[:8]}"), store=f"sqlite:///{self.path}", **terms)
        self._made.append(made)
        return made

    @asynccontextmanager
    async def entered(self, claim: Claim) -> AsyncIterator[Claim]:
        """Enter a claim in the colour of this place."""
        if self.sync:
            with claim:
                yield claim
        else:
            async with claim:
                yield claim

    async def run(self, boundary: Boundary, key: str, result: Any = 1, payload: Any = None) -> Claim:
        """Guarded work that sets a result, or raises it."""
        async with self.entered(boundary.claim(key, payload=payload)) as claim:
            if not claim.replayed:
                if isinstance(result, BaseException):
                    raise result
                claim.result = result
        return claim

    def let_leases_lapse(self) -> None:
        """As if every attempt had been silent for longer than its lease."""
        self._write("UPDATE retrysafe_records SET lease_until = 1 WHERE state = 'running'")

    def give_away(self) -> None:
        """As if other attempts had taken every key over."""
        self._write("UPDATE retrysafe_records SET token = token + 1, attempt = 'another'")

    def _write(self, sql: str) -> None:
        with closing(sqlite3.connect(self.path, timeout=60)) as connection, connection:
            connection.execute(sql)

    async def close(self) -> None:
        for boundary in self._made:
            if self.sync:
                boundary.close()
            else:
                await boundary.aclose()


def attributes(span: ReadableSpan) -> Labels:
    """The attributes of a span."""
    return dict(span.attributes or {})


def events(span: ReadableSpan) -> list[str]:
    """The names of a span's events."""
    return [event.name for event in span.events]


async def apart(work: Coroutine[Any, Any, Any]) -> Any:
    """Do it as somebody else would: in a task that knows nothing of the claims around this one."""
    return await asyncio.get_running_loop().create_task(work, context=Context())
