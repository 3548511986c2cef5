"""Tests of what only `make prove` fetches are left to it, in one line, unless they are named; it never skips them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.helpers import ROOT
from tests.proving import effort

TESTS = """
import pytest
from tests.beside import unfetched

@pytest.mark.beside
def test_engine(): ...

@pytest.mark.beside
def test_of_what_is_not_there(): unfetched("no engine")

def test_other(): ...
"""


@pytest.mark.parametrize(
    ("arguments", "environment", "endings", "left"),
    [
        ([], {}, {"1 passed"}, True),
        (["-n", "2"], {"RETRYSAFE_REQUIRE_SERVICES": "1"}, {"1 passed"}, True),
        (["test_it.py"], {}, {"2 passed", "1 skipped"}, False),
        (["-m", "prove"], {effort.EFFORT: "full"}, {"1 passed", "1 failed"}, False),
    ],
    ids=["whole", "two-workers", "named", "full"],
)
def test_they_are_left_to_make_prove(
    arguments: list[str], environment: dict[str, str], endings: set[str], left: bool, tmp_path: Path
) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["tests.proving.plugin", "tests.beside"]\n')
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    own = {name: value for name, value in os.environ.items() if not name.startswith(("RETRYSAFE_", "PYTEST_"))}
    own |= {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", **environment}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, text=True, check=False)
    last = done.stdout.splitlines()[-1]
    assert {ending for ending in ("1 passed", "2 passed", "1 skipped", "1 failed") if ending in last} == endings
    assert done.stdout.count("2 tests of engines, in a browser and of load profiles left to make prove") == left
