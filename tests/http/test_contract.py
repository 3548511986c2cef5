"""Every rule of the HTTP contract, over real connections, on every integration, store and mode that can be had.

A rule's own subtest fails under its ID; what can't be had in a cell is what the committed results say, with the reason.
"""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from retrysafe.conformance import RULES, Verdict
from tests.conftest import require
from tests.http.contract.cells import Cell, cells, checked
from tests.http.contract.results import RESULTS, committed, data

THERE = [cell for cell in cells() if cell.cannot_be is None]


@pytest.mark.parametrize("cell", THERE, ids=lambda cell: cell.id)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_rules(cell: Cell, tmp_path: Path, subtests: pytest.Subtests) -> None:
    if cell.store in ("postgresql", "redis"):
        require(cell.store)
    logging.getLogger("aiohttp.server").disabled = True
    report = checked(cell, tmp_path)
    known = committed()["cells"][cell.id]
    for result in report.results:
        with subtests.test(f"{cell.id}-{result.rule}"):
            assert result.verdict is not Verdict.FAILED, str(result)
            assert data(result) == known[result.rule], f"python -m tests.http.contract writes {RESULTS.name} anew"
