"""``python -m benchmarks [NAME…]``: rows whose name contains a NAME, by default all.

Each row runs in a process of its own. One that cannot be measured, and a rival that cannot take part, is reported and
the others go on; the exit code is 1 at the end. A missed aim never makes a run fail: a noisy machine would.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path

from benchmarks import report, results, services
from benchmarks.aims import judge
from benchmarks.figures import Result
from benchmarks.isolating import RowFailed, measured
from benchmarks.rows import Row

MODULES = (
    "benchmarks.on_imports",
    "benchmarks.on_memory",
    "benchmarks.on_http",
    "benchmarks.on_wsgi",
    "benchmarks.on_sqlite",
    "benchmarks.on_steps",
    "benchmarks.on_psycopg",
    "benchmarks.on_asyncpg",
    "benchmarks.on_redis",
    "benchmarks.on_dynamodb",
    "benchmarks.on_growth",
    "benchmarks.on_sweeping",
    "benchmarks.on_loads",
    "benchmarks.on_relay",
    "benchmarks.on_cdc",
    "benchmarks.on_consumers",
    "benchmarks.on_receiving",
    "benchmarks.on_transactions",
    "benchmarks.on_inbox",
    "benchmarks.on_tasks",
    "benchmarks.on_client",
    "benchmarks.on_gateway",
    "benchmarks.on_crashing",
)
"""Each offers ``rows()``."""
MINUTES = 13
"""The time for a run without ``--full``: rows without a turn by then are reported."""
SECONDS, LONG = 120, 1800
"""The time for one row, and for one that only ``--full`` measures."""


def main() -> None:
    """Measure, print, write."""
    options = _options()
    if options.compare:
        print("\n".join(report.compared(*(results.read(path) for path in options.compare))))
        return
    effort = "quick" if options.quick else "full" if options.full else "usual"
    began = time.monotonic()
    failed: dict[str, str] = {}
    machine = results.machine()
    print(report.header(), flush=True)
    found: dict[str, Result] = {}
    for module, row in _chosen(options.names, failed, long=options.full):
        if not options.full and time.monotonic() - began > MINUTES * 60:
            failed[row.name] = f"had no turn within {MINUTES} minutes"
            continue
        try:
            found[row.name] = measured(module, row.name, effort, LONG if row.long else SECONDS)
        except RowFailed as error:
            failed[row.name] = str(error)
            print(f"failed: {row.name}: {error}", flush=True)
        else:
            print("\n".join(report.lines(found[row.name])), flush=True)
    failed |= _absent_rivals(found)
    run = results.run_of(found, failed, effort, time.monotonic() - began, machine)
    path = results.write(run, folder=options.results, recorded=results.RECORDED if options.record else None)
    print("\n".join(report.summary(judge(found), failed)))
    print(f"written to {path.name}")
    if failed:
        sys.exit(f"{len(failed)} could not be measured: {', '.join(failed)}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only rows whose name contains one of these")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument(
        "--full", action="store_true", help="more and longer rounds, and 10 million rows; takes about an hour"
    )
    parser.add_argument("--results", type=Path, default=results.HISTORY, metavar="FOLDER", help="where runs are kept")
    parser.add_argument("--record", action="store_true", help="this is the run that the docs show")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("A", "B"), help="show two runs side by side")
    options = parser.parse_args()
    if options.record and options.names:
        parser.error("--record takes a run of all rows")
    return options


def _chosen(names: Sequence[str], failed: dict[str, str], *, long: bool) -> Iterator[tuple[str, Row]]:
    """The rows that were asked for; a module of rows that cannot be imported is noted in ``failed``."""
    for module in MODULES:
        try:
            offered: Callable[[], Sequence[Row]] = import_module(module).rows
        except ImportError as error:
            failed[module] = repr(error)
            print(f"failed: {module}: {error!r}", flush=True)
            continue
        for row in offered():
            if (names and not any(name in row.name for name in names)) or (row.long and not long):
                continue
            if missing := services.missing(row.needs):
                failed[row.name] = f"{' and '.join(missing)} not set"
                print(f"failed: {row.name}: {failed[row.name]}", flush=True)
            else:
                yield module, row


def _absent_rivals(found: dict[str, Result]) -> dict[str, str]:
    return {f"{rival} in {row}": error for row, result in found.items() for rival, error in result["errors"].items()}


if __name__ == "__main__":
    main()
