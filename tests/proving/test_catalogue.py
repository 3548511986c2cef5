"""The catalogue of faults is kept: every row has a test or a reason, and every marker and break a row."""

from __future__ import annotations

import pytest

from tests.proving.breaks.table import all_breaks
from tests.proving.catalogue import FAULTS
from tests.proving.injected import injected, marked
from tests.tables import each_row

BREAKS = all_breaks().values()
BROKEN = {row for one in BREAKS for row in one.rows}


def test_the_rows_are_numbered_from_1_to_90() -> None:
    assert list(FAULTS) == list(range(1, 91))


def test_every_row_has_a_test_or_a_reason() -> None:
    tests = injected()
    for row, fault in FAULTS.items():
        if fault.unmet:
            assert row not in tests, f"row {row} is said to be {fault.unmet!r}, and has a test: take that away"
        else:
            assert row in tests or fault.documented, (
                f"no test is marked with row {row}, {fault.fault!r}: "
                "mark one, or say in tests/proving/faults.toml why not"
            )


def test_every_injected_row_has_a_break_or_a_reason() -> None:
    tests = injected()
    for row, fault in FAULTS.items():
        if fault.nothing_to_remove:
            assert row not in BROKEN, f"row {row} has a break: it is no longer true that nothing can be removed"
        elif row in tests:
            assert row in BROKEN, (
                f"no break takes away the defence against row {row}, {fault.fault!r}: "
                "write one in tests/proving/breaks, or say in tests/proving/faults.toml why there is nothing to remove"
            )


def test_markers_name_rows_that_exist() -> None:
    assert {row: tests for row, tests in injected().items() if row not in FAULTS} == {}


def test_breaks_name_rows_that_exist() -> None:
    assert {one.name: one.rows for one in BREAKS if not set(one.rows) <= set(FAULTS)} == {}


def test_markers_are_read_wherever_they_may_stand() -> None:
    source = """
import pytest
pytestmark = [pytest.mark.fault(1), pytest.mark.prove]
CASES = [pytest.param(1, marks=pytest.mark.fault(2)), 3]

@pytest.mark.parametrize("case", CASES)
def test_a(case): ...

@pytest.mark.fault(4, 5)
class TestB:
    @pytest.mark.parametrize("case", [pytest.param(1, marks=[pytest.mark.fault(6)])])
    async def test_c(self, case): ...

    def helper(self): ...

ROWS = (7, 8)

@pytest.mark.fault(*ROWS)
def test_d(): ...
"""
    assert marked(source, "test_x.py") == {"test_a": [1, 2], "TestB::test_c": [1, 4, 5, 6], "test_d": [1, 7, 8]}


@each_row(
    "source",
    [
        "import pytest\n@pytest.mark.fault(*ROWS)\ndef test_a(): ...",
        "import pytest\nROWS = (1, 'x')\n@pytest.mark.fault(*ROWS)\ndef test_a(): ...",
        "import pytest\n@pytest.mark.fault()\ndef test_a(): ...",
        "import pytest\n@pytest.mark.fault(1)\ndef helper(): ...",
        "import pytest\nfault = pytest.mark.fault\n@fault(1)\ndef test_a(): ...",
        "import pytest\ndef test_a():\n    mark = pytest.mark.fault(1)",
    ],
)
def test_a_marker_that_cannot_be_read_is_an_error(source: str) -> None:
    with pytest.raises(ValueError, match=r"test_x\.py:\d+: "):
        marked(source, "test_x.py")


def test_each_cell_is_a_sentence_at_most() -> None:
    for fault in FAULTS.values():
        for cell in (fault.fault, fault.seen, fault.defence, fault.left):
            assert len(cell) <= 120, f"row {fault.row}: {cell}"
            assert cell.count(". ") == 0, f"row {fault.row}: {cell}"
            assert cell.endswith(".") or not cell, f"row {fault.row}: {cell}"
