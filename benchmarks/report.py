"""The table for people and the figures for machines."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import retrysafe
from benchmarks.measuring import Figures
from benchmarks.rows import Row

_WIDTHS = (46, 11, 11, 10, 19, 21, 9)
_LIBRARIES = ("psycopg", "psycopg-pool", "asyncpg", "redis")


def header() -> str:
    """The first line of the table."""
    return _line("", "ours, µs", "floor, µs", "median", "min – max", "aim", "")


def line(row: Row, figures: Figures) -> str:
    """One line of the table."""
    low, high = min(figures.rounds), max(figures.rounds)
    aim = "" if row.aim is None else f"{'≥' if row.unit.more_is_better else '≤'} {row.aim:g}"
    return _line(
        row.name,
        f"{figures.ours * 1e6:.1f}",
        f"{figures.floor * 1e6:.1f}",
        f"{figures.median:.2f}",
        f"{low:.2f} – {high:.2f}",
        f"{aim} {row.unit.name}".strip(),
        {True: "met", False: "not met", None: ""}[_met(row, figures)],
    )


def write(
    path: Path, results: Sequence[tuple[Row, Figures]], failed: Mapping[str, str], servers: dict[str, str]
) -> None:
    """Write the figures with the versions they belong to, and what could not be measured with its error."""
    rows = [_plain(*result) for result in results]
    path.write_text(json.dumps({"versions": versions() | servers, "rows": rows, "failed": dict(failed)}, indent=1))


def versions() -> dict[str, str]:
    """What was measured, and on what."""
    found = {
        "retrysafe": retrysafe.__version__,
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }
    for name in _LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _plain(row: Row, figures: Figures) -> dict[str, Any]:
    return {
        "name": row.name,
        "unit": row.unit.name,
        "aim": row.aim,
        "met": _met(row, figures),
        "median": figures.median,
        "rounds": figures.rounds,
        "ours_seconds": figures.ours,
        "floor_seconds": figures.floor,
    }


def _met(row: Row, figures: Figures) -> bool | None:
    return None if row.aim is None else row.unit.met(figures.median, row.aim)


def _line(first: str, *rest: str) -> str:
    width, *widths = _WIDTHS
    aligned = (f"{text:>{width}}" for text, width in zip(rest, widths, strict=True))
    return f"{first:<{width}}{''.join(aligned)}".rstrip()
