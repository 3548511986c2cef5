"""``python -m benchmarks [NAME…] [--json FILE] [--quick]``: rows whose name contains a NAME, by default all.

Aims are shown as met or not; a noisy machine never makes the run fail. A row that cannot be measured is reported, the
others go on, and the exit code is 1 at the end.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path

from benchmarks import report
from benchmarks.measuring import FULL, QUICK, Figures, measure
from benchmarks.rows import Row

_GROUPS: tuple[tuple[str, str | None], ...] = (
    ("on_imports", None),
    ("on_memory", None),
    ("on_sqlite", None),
    ("on_psycopg", "RETRYSAFE_TEST_POSTGRESQL"),
    ("on_asyncpg", "RETRYSAFE_TEST_POSTGRESQL"),
    ("on_sweeping", "RETRYSAFE_TEST_POSTGRESQL"),
    ("on_consumers", "RETRYSAFE_TEST_RABBITMQ"),
    ("on_redis", "RETRYSAFE_TEST_REDIS"),
    ("on_dynamodb", "RETRYSAFE_TEST_DYNAMODB"),
    ("on_http", None),
    ("on_client", None),
    ("on_http_postgresql", "RETRYSAFE_TEST_POSTGRESQL"),
    ("on_http_redis", "RETRYSAFE_TEST_REDIS"),
    ("on_gateway", None),
    ("on_relay", "RETRYSAFE_TEST_RABBITMQ"),
    ("on_faststream_outbox", "RETRYSAFE_TEST_RABBITMQ"),
    ("on_inbox", "RETRYSAFE_TEST_RABBITMQ"),
)
"""Modules with rows, and the variable that leads to the service they need."""


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only rows whose name contains one of these")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures with the versions they belong to")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    options = parser.parse_args()
    print(report.header())
    effort = QUICK if options.quick else FULL
    results: list[tuple[Row, Figures]] = []
    failed: dict[str, str] = {}
    for row in _chosen(options.names, failed):
        try:
            figures = measure(row, effort)
        except Exception as error:  # noqa: BLE001 - whatever a row raises, the others are measured
            failed[row.name] = repr(error)
            print(f"failed: {row.name}: {error!r}", flush=True)
        else:
            print(report.line(row, figures), flush=True)
            results.append((row, figures))
    if options.json is not None:
        report.write(options.json, results, failed, _servers())
    if failed:
        sys.exit(f"{len(failed)} could not be measured: {', '.join(failed)}")


def _chosen(names: Sequence[str], failed: dict[str, str]) -> Iterator[Row]:
    """The rows that were asked for; a module of rows that cannot be imported is reported and noted in ``failed``."""
    for module, variable in _GROUPS:
        group = module.removeprefix("on_")
        if variable is not None and variable not in os.environ:
            print(f"skipped: {group}, {variable} is not set")
            continue
        try:
            offered: Callable[[], Sequence[Row]] = import_module(f"benchmarks.{module}").rows
        except ImportError as error:
            failed[group] = repr(error)
            print(f"failed: {group}: {error!r}", flush=True)
            continue
        yield from (row for row in offered() if not names or any(name in row.name for name in names))


def _servers() -> dict[str, str]:
    if "RETRYSAFE_TEST_POSTGRESQL" not in os.environ:
        return {}
    from benchmarks.postgresql import server_version

    return {"postgresql": server_version()}


if __name__ == "__main__":
    main()
