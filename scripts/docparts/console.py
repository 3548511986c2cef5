"""The time of the console's pages on a large store, as recorded by `tests.console.measuring`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from docparts import ROOT
from docparts.markdown import table

RECORDED = ROOT / "tests/console/pages.json"
_NAMES = {
    "`sqlite_autoindex_retrysafe_records_1`": "primary key",
    "`retrysafe_records_pkey`": "primary key",
    "`retrysafe_records_unknown`": "index of unknown keys",
    "Bitmap Heap Scan": "",
}


def pages() -> str:
    """Every page: its time, and how its statements read the records."""
    run = json.loads(RECORDED.read_text(encoding="utf-8"))
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    head = ("page", "SQLite", "PostgreSQL", "SQLite reads by", "PostgreSQL reads by: rows")
    rows = table(head, (_row(path, found) for path, found in run["pages"].items()))
    return (
        f"{run['rows']:,} records in each store, recorded {run['on']}. {versions}. A time is how long a page keeps a "
        "processor, in the console and the server together: it is the same on a machine that does something else too, "
        f"as this one did (its load was {run['load']} on {run['cores']} cores).\n\n{rows}"
    )


def _row(path: str, found: Mapping[str, Any]) -> tuple[str, ...]:
    lite, server = found["sqlite"], found["postgresql"]
    return (
        f"`{path}`",
        f"{lite['processor']:.0f} ms",
        f"{server['processor']:.0f} ms",
        _ways(lite, rows=False),
        _ways(server, rows=True),
    )


def _ways(one: Mapping[str, Any], *, rows: bool) -> str:
    named = ((_NAMES.get(way, way), number) for way, number in one["reads"].items())
    return ", ".join(f"{name}: {number:,}" if rows else name for name, number in named if name) or "–"
