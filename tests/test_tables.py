"""A table is one test that runs every row and names those that fail; what is slow and not marked fails."""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = """
import asyncio, subprocess, sys, time
import pytest
from tests.tables import each_row

@each_row("number", [1, 2, 3])
def test_one_fails(number):
    assert number != 2

@each_row("a, b", [(1, 2), (3, 4)], ids=["first", "second"])
async def test_two_fail(a, b):
    pytest.fail("in vain")

@each_row("a", [1, 2])
@each_row("b", "xy")
def test_of_two_axes(a, b, tmp_path):
    assert tmp_path.is_dir() and (a, b) != (2, "y")

@each_row("number", [1, 2])
def test_a_row_is_skipped(number):
    if number == 1:
        pytest.skip("no server")

@each_row("number", [1, 2])
def test_all_are_skipped(number):
    pytest.skip("no server")

def test_starts_a_process():
    subprocess.run([sys.executable, "-c", ""])

def test_sleeps():
    time.sleep(0.1)

async def test_waits_for_a_timer():
    await asyncio.sleep(0.1)

@pytest.mark.slow
async def test_is_marked():
    await asyncio.sleep(0.1)
    subprocess.run([sys.executable, "-c", ""])
"""


@pytest.mark.slow
def test_rows_that_fail_are_named_and_what_is_slow_is_marked(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(test_it=TESTS)
    pytester.makeini("[pytest]\nasyncio_mode = auto\naddopts = -p pytest_asyncio.plugin -p tests.slowness")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    ended = pytester.runpytest_subprocess("-m", "not slow", timeout=200)
    ended.assert_outcomes(passed=1, failed=6, skipped=1, deselected=1)
    told = ended.stdout.str()
    for line in (
        "row 1: 2",
        "2 of 2 rows failed",
        "row 0: first",
        "row 1: second",
        "row 1: 'y'",
        "row 1: 2",
        "mark it slow: it has used subprocess.Popen",
        "mark it slow: it has used time.sleep",
        "mark it slow: it has used asyncio.sleep",
    ):
        assert line in told, line
