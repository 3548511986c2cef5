"""Check every cell and write the results: ``python -m tests.http.contract``. Needs PostgreSQL and Redis."""

from __future__ import annotations

import json
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from retrysafe.conformance import Report, Verdict
from tests.http.contract.cells import Cell, cells, checked
from tests.http.contract.results import RESULTS, document

AT_ONCE = 3
"""Processes, each with a cell of its own: a cell waits more than it computes."""


def _checked(cell: Cell) -> Report:
    with tempfile.TemporaryDirectory() as folder:
        return checked(cell, Path(folder))


def main() -> int:
    """Check them all; if any rule failed anywhere, write nothing: exit code 1."""
    there = [cell for cell in cells() if cell.cannot_be is None]
    reports: dict[Cell, Report] = {}
    with ProcessPoolExecutor(AT_ONCE) as pool:
        for cell, report in zip(there, pool.map(_checked, there), strict=True):
            reports[cell] = report
            print(cell.id, report.counts, flush=True)
            for result in report.of(Verdict.FAILED):
                print(result, flush=True)
    if not all(report.passed for report in reports.values()):
        return 1
    RESULTS.write_text(json.dumps(document(reports), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
