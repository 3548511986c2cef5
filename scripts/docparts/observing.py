"""Events and metrics."""

from __future__ import annotations

import logging

from docparts.markdown import codes, table
from retrysafe.claims.observers import EVENTS
from retrysafe.observability import metrics
from retrysafe.observability.alerts import ALERTS, Alert
from retrysafe.observability.postgresql_alerts import QUERIES, WITHOUT_ROWS, remarks


def events() -> str:
    """One row per event: its log level, its fields, the literature's name, the metrics that it moves."""
    rows = [
        (
            f"`{name}`",
            logging.getLevelName(kind.level),
            kind.text,
            codes(kind.fields),
            codes((kind.alias,)),
            _moved(name),
        )
        for name, kind in EVENTS.items()
    ]
    return table(("name", "log level", "what it means", "fields", "alias", "metrics"), rows)


def alerts() -> str:
    """A runbook for each alert."""
    return "\n\n".join(map(_runbook, ALERTS))


def _runbook(alert: Alert) -> str:
    commands = "\n".join(alert.commands)
    return (
        f"## {alert.name}\n\n**{alert.severity}**: {alert.summary}.\n\n{alert.meaning}\n\n"
        f"```text\n{commands}\n```\n\nIt is over when this holds: {alert.over[0].lower()}{alert.over[1:]}\n\n"
        f"Fires after {alert.hold} of `{alert.expr}`." + _query(alert)
    )


def _query(alert: Alert) -> str:
    query = QUERIES.get(alert.name)
    if query is None:
        return f"\n\nNot from PostgreSQL: {WITHOUT_ROWS[alert.name]}"
    needs = f"{query.needs};" if query.needs else ""
    said = " ".join(remarks(query)).removesuffix(f" {needs}")
    return f"\n\nFrom PostgreSQL. {said}".rstrip() + f"\n\n```sql\n{query.sql};\n{needs}".rstrip() + "\n```"


def tables_tell() -> str:
    """List the alerts that the tables tell, and the reasons why they do not tell the others."""
    rows = [(f"[{name}](#{name.lower()})", reason) for name, reason in WITHOUT_ROWS.items()]
    return (
        f"{len(QUERIES)} of the {len(ALERTS)} alerts have a query. The others are about what leaves no row:\n\n"
        + table(("alert", "why the tables cannot tell"), rows)
    )


def _moved(event: str) -> str:
    if event == "store_request":
        return codes((metrics.STORE_DURATION.name,))
    return codes(name.removeprefix("retrysafe.") for name in metrics.instruments_of(event))


def instruments() -> str:
    """One row per metric: its kind, unit, meaning and attributes."""
    about = ("boundary", "operation", "effects")
    kinds = {metrics.IN_PROGRESS: "up/down counter"}
    rows = [
        (f"`{counter.name}`", "counter", f"`{counter.unit}`", counter.text, codes((*about, *_told_apart(counter))))
        for counter in metrics.COUNTERS
    ]
    rows += [
        (f"`{gauge.name}`", "gauge", f"`{gauge.unit}`", gauge.text, codes(("boundary", "operation")))
        for gauge in metrics.GAUGES
    ]
    rows += [
        (
            f"`{measure.name}`",
            kinds.get(measure, "histogram"),
            f"`{measure.unit}`",
            measure.text,
            codes((*about, *(name.removeprefix("retrysafe.") for name in measure.attributes))),
        )
        for measure in metrics.MEASURES
    ]
    return table(("metric", "kind", "unit", "what it says", "attributes"), rows)


def _told_apart(counter: metrics.Counter) -> list[str]:
    fields = {field for name in counter.events for field in EVENTS[name].fields}
    return ["outcome"] * bool(counter.outcome or counter.field) + ["error.type"] * ("error_type" in fields)
