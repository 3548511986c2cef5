"""Check every cell and write the results: ``python -m tests.http.contract``. Needs PostgreSQL and Redis."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from retrysafe.conformance import Report, Verdict
from tests.http.contract.cells import Cell, cells, checked
from tests.http.contract.results import RESULTS, document


def main() -> int:
    """Check them one after the other; if any rule failed anywhere, write nothing: exit code 1."""
    reports: dict[Cell, Report] = {}
    for cell in cells():
        if cell.cannot_be is not None:
            continue
        with tempfile.TemporaryDirectory() as folder:
            reports[cell] = checked(cell, Path(folder))
        print(cell.id, reports[cell].counts, flush=True)
        for result in reports[cell].of(Verdict.FAILED):
            print(result, flush=True)
    if not all(report.passed for report in reports.values()):
        return 1
    RESULTS.write_text(json.dumps(document(reports), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
