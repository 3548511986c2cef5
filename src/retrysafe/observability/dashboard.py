"""A dashboard for Grafana over Prometheus, with a panel for every metric of `retrysafe.observability.metrics`.

The queries use the names that OpenTelemetry's Prometheus exporter gives the metrics. The JSON is what Grafana imports.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from retrysafe.observability.metrics import COUNTERS, GAUGES, IN_PROGRESS, STORE_DURATION, WORK_DURATION, Counter, Gauge

_OF = 'retrysafe_boundary=~"$boundary"'
_BOUNDARY = "retrysafe_boundary"
_SUBJECTS = ("outbox", "inbox", "client", "webhooks")
"""The second words of the names of metrics that have a row of their own."""
_FIRST, _KEYS = "At a glance", "Keys and attempts"
_LAGS = ("retrysafe.outbox.lag", "retrysafe.inbox.lag")
_WIDTH, _HEIGHT, _A_ROW = 8, 7, 3
"""The size of a panel in the grid of 24 columns, and how many are side by side."""


class Panel(NamedTuple):
    """One graph: a query, what tells its lines apart, the unit in Grafana's words, and whether it can be below zero."""

    title: str
    text: str
    expr: str
    legend: str
    unit: str = "short"
    signed: bool = False


def series(name: str, unit: str = "", kind: str = "") -> str:
    """The name of a metric in Prometheus; ``kind``: "total" of a counter, "bucket" of a histogram."""
    words = {"s": ["seconds"], "By": ["bytes"]}.get(unit, [])
    return "_".join((name.replace(".", "_"), *words, *[kind] * bool(kind)))


def _of_counter(counter: Counter) -> Panel:
    by = [_BOUNDARY, *["retrysafe_outcome"] * (counter.outcome or bool(counter.field))]
    metric = series(counter.name, counter.unit, "total")
    expr = f"sum by ({', '.join(by)}) (rate({metric}{{{_OF}}}[$__rate_interval]))"
    unit = "none" if counter.unit == "s" else "cps"
    return Panel(f"{counter.name}, per second", counter.text, expr, _legend(by), unit)


def _of_gauge(gauge: Gauge) -> Panel:
    by = [_BOUNDARY, *([f"retrysafe_{gauge.by}"] if gauge.by else [])]
    expr = f"max by ({', '.join(by)}) ({series(gauge.name, gauge.unit)}{{{_OF}}})"
    return Panel(gauge.name, gauge.text, expr, _legend(by), {"s": "s", "By": "bytes"}.get(gauge.unit, "short"))


def _ratio(title: str, text: str, part: str, whole: str) -> Panel:
    rates = [f"sum by ({_BOUNDARY}) (rate({one}{{{_OF}}}[$__rate_interval]))" for one in (part, whole)]
    return Panel(title, text, " / ".join(rates), _legend([_BOUNDARY]), "percentunit")


def _legend(by: Iterable[str]) -> str:
    return " ".join(f"{{{{{label}}}}}" for label in by)


def _glance() -> Iterator[Panel]:
    hits, misses = series("idempotency.cache.hits", kind="total"), series("idempotency.cache.misses", kind="total")
    claims = series("retrysafe.claims", kind="total")
    ran = f"sum by ({_BOUNDARY}) (rate({misses}{{{_OF}}}[$__rate_interval]))"
    hit = f"sum by ({_BOUNDARY}) (rate({hits}{{{_OF}}}[$__rate_interval]))"
    yield Panel(
        "Hit rate",
        "The share of replays in calls that were replayed or ran.",
        f"({hit} or 0 * {ran}) / ({ran} + ({hit} or 0 * {ran}))",
        _legend([_BOUNDARY]),
        "percentunit",
    )
    avoided, conflicts = (series(f"retrysafe.{name}", kind="total") for name in ("duplicates_avoided", "conflicts"))
    yield _ratio("Duplicate rate", "The share of calls that would have run an operation again.", avoided, claims)
    yield _ratio("Conflict rate", "The share of calls told that another attempt is in progress.", conflicts, claims)
    yield from (_of_gauge(one) for one in GAUGES if one.name in _LAGS)
    for measure in (STORE_DURATION, WORK_DURATION):
        bucket = series(measure.name, measure.unit, "bucket")
        inner = f"sum by (le, {_BOUNDARY}) (rate({bucket}{{{_OF}}}[$__rate_interval]))"
        expr = f"histogram_quantile(0.99, {inner})"
        yield Panel(f"{measure.name}, 99 %", measure.text, expr, _legend([_BOUNDARY]), "s")
    running = f"sum by ({_BOUNDARY}) ({series(IN_PROGRESS.name)}{{{_OF}}})"
    yield Panel(IN_PROGRESS.name, IN_PROGRESS.text, running, _legend([_BOUNDARY]))
    yield _waits()
    yield _growth()


def _waits() -> Panel:
    """Waits in the database: what it holds up is seen from here only as a claim that takes long."""
    told = _OF + ', retrysafe_step="claim"'
    buckets = series(STORE_DURATION.name, STORE_DURATION.unit, "bucket")
    all_of, quick = (
        f"sum by ({_BOUNDARY}) (rate({buckets}{{{told}, le={bound}}}[$__rate_interval]))"
        for bound in ('"+Inf"', '"0.1"')
    )
    return Panel(
        "Lock waits, per second",
        "Claims that took the store longer than 0.1 s. In PostgreSQL and MySQL a duplicate waits for the transaction "
        "that has its key; waits outside of the database are retrysafe.waits.",
        f"{all_of} - {quick}",
        _legend([_BOUNDARY]),
        "cps",
    )


def _growth() -> Panel:
    """Records that came, less those that sweepers removed, of all stores: a sweeper asks for no boundary."""
    began, undone, batched, gone = (
        f"(sum(rate({series(name, kind='total')}{chosen}[$__rate_interval])) or vector(0))"
        for name, chosen in (
            ("retrysafe.claims", '{retrysafe_outcome="started"}'),
            ("retrysafe.attempts", '{retrysafe_outcome=~"released|rolled_back"}'),
            ("retrysafe.inbox.batched", ""),
            ("retrysafe.records.removed", ""),
        )
    )
    return Panel(
        "Growth of records and inboxes, per second",
        "Of all boundaries: records and messages that came and were not released or rolled back, less those that "
        "sweepers removed, as far as these tell observers, which retrysafe sweep does not. Above zero for longer than "
        "a key is remembered, sweepers are missing or too slow. Redis and DynamoDB remove their records themselves.",
        f"{began} - {undone} + {batched} - {gone}",
        "all",
        "cps",
        signed=True,
    )


def rows() -> dict[str, list[Panel]]:
    found: dict[str, list[Panel]] = {_FIRST: [*_glance()], _KEYS: []}
    for metric in (*COUNTERS, *GAUGES):
        _, word, *_ = [*metric.name.split("."), ""]
        subject = "outbox" if metric.name.startswith("outbox.") else word
        row = subject.capitalize() if subject in _SUBJECTS else _KEYS
        found.setdefault(row, []).append(_of_counter(metric) if isinstance(metric, Counter) else _of_gauge(metric))
    return found


def dashboard() -> dict[str, Any]:
    placed: list[dict[str, Any]] = []
    top = 0
    for title, panels in rows().items():
        placed.append(
            _place(len(placed), {"type": "row", "title": title, "collapsed": False, "panels": []}, 24, 1, top)
        )
        for at, panel in enumerate(panels):
            line, column = divmod(at, _A_ROW)
            placed.append(_place(len(placed), _draw(panel), _WIDTH, _HEIGHT, top + 1 + line * _HEIGHT, column * _WIDTH))
        top += 1 + -(-len(panels) // _A_ROW) * _HEIGHT
    return {
        "uid": "retrysafe",
        "title": "retrysafe",
        "description": "What retrysafe decides, and what waits: printed by `retrysafe alerts --dashboard`.",
        "tags": ["retrysafe"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [_SOURCE, _CHOICE]},
        "annotations": {"list": []},
        "links": [],
        "panels": placed,
    }


def _place(number: int, panel: dict[str, Any], width: int, height: int, top: int, left: int = 0) -> dict[str, Any]:
    return {"id": number + 1, **panel, "gridPos": {"x": left, "y": top, "w": width, "h": height}}


def _draw(panel: Panel) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    target = {"refId": "A", "datasource": source, "expr": panel.expr, "legendFormat": panel.legend}
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.text,
        "datasource": source,
        "fieldConfig": {"defaults": {"unit": panel.unit, **({} if panel.signed else {"min": 0})}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [target],
    }


_SOURCE = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "hide": 0}
_CHOICE = {
    "name": "boundary",
    "label": "Boundary",
    "type": "query",
    "datasource": {"type": "prometheus", "uid": "${datasource}"},
    "query": f'label_values({{__name__=~"retrysafe_.+"}}, {_BOUNDARY})',
    "refresh": 2,
    "sort": 1,
    "multi": True,
    "includeAll": True,
    "allValue": ".*",
    "current": {"text": "All", "value": "$__all"},
    "hide": 0,
}
"""The variable that selects the boundaries; a relay or an outbox is the boundary "retrysafe.outbox"."""
