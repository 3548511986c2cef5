"""Check every cell and write the results: ``python -m tests.http.contract``. Needs PostgreSQL and Redis."""

from __future__ import annotations

import json
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from retrysafe.conformance import Verdict
from tests.http.contract.cells import cells, checked
from tests.http.contract.integrations import INTEGRATIONS
from tests.http.contract.results import RESULTS, data


def main() -> int:
    """Check them one after the other; exit code 1 if any rule failed anywhere, and nothing is written."""
    found: dict[str, dict[str, str]] = {}
    failed = 0
    for cell in cells():
        if cell.cannot_be is not None:
            continue
        with tempfile.TemporaryDirectory() as folder:
            report = checked(cell, Path(folder))
        for result in report.of(Verdict.FAILED):
            failed += 1
            print(f"{cell.id}: {result}", flush=True)
        print(cell.id, report.counts, flush=True)
        if report.passed:
            found[cell.id] = {result.rule: data(result) for result in report.results}
    if failed:
        return 1
    libraries = sorted({library for one in INTEGRATIONS.values() for library in one.versions})
    written = {"versions": {library: version(library) for library in libraries}, "cells": found}
    RESULTS.write_text(json.dumps(written, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
