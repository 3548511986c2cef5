"""A thinned matrix keeps every value of every axis, one that is drawn some cell; what is left is told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tests.proving import effort
from tests.proving.thinning import axes_of, sample

ROOT = Path(__file__).parents[2]
CELLS = {(a, b, c): axes_of({"a": a, "of two": (b, c)}) for a in range(12) for b in range(5) for c in range(3)}
TESTS = """
import pytest

@pytest.mark.thinned(0.25, whole=[0])
@pytest.mark.parametrize("a", range(4))
@pytest.mark.parametrize("b", "pqrs")
def test_cell(a, b): ...

@pytest.mark.drawn(0.3)
@pytest.mark.parametrize("c", range(10))
def test_drawn(c): ...

@pytest.mark.drawn(0.1)
@pytest.mark.parametrize("c", range(2))
def test_one_of_two(c): ...

@pytest.mark.drawn(0.5, of="single ones")
def test_this(): ...

@pytest.mark.drawn(0.5, of="single ones")
def test_that(): ...

@pytest.mark.drawn(0.1)
def test_other(): ...
"""


@pytest.mark.parametrize("seed", range(10))
def test_every_value_of_every_axis_is_kept(seed: int) -> None:
    kept = sample(CELLS, 0.1, (), Random(seed))
    assert len(kept) == round(0.1 * len(CELLS))
    assert frozenset().union(*(CELLS[cell] for cell in kept)) == frozenset().union(*CELLS.values())


def test_as_many_are_kept_as_it_takes() -> None:
    assert len(sample(CELLS, 0.0, (), Random(1))) == 12


def test_what_has_a_value_that_is_kept_whole_is_kept() -> None:
    kept = sample(CELLS, 0.0, {"7"}, Random(1))
    assert {cell for cell in CELLS if cell[0] == 7} <= kept


def test_each_seed_keeps_others_and_the_same_again() -> None:
    assert sample(CELLS, 0.2, (), Random(1)) == sample(CELLS, 0.2, (), Random(1)) != sample(CELLS, 0.2, (), Random(2))


@pytest.mark.drawn(0.35)
@pytest.mark.parametrize(
    ("arguments", "environment", "passed", "left"),
    [
        ([], {}, 13, 9),
        (["-n", "2"], {}, 13, 9),
        (["-m", "prove"], {}, 12, 9),
        (["-m", "prove"], {effort.EFFORT: "full"}, 30, 0),
        (["-k", "cell"], {}, 16, 0),
        (["test_it.py::test_cell"], {}, 16, 0),
        (["test_it.py::test_cell[p-3]"], {}, 1, 0),
    ],
    ids=["whole", "two-workers", "marked", "full", "by-keyword", "by-name", "one-cell"],
)
def test_a_run_says_what_it_leaves(
    arguments: list[str], environment: dict[str, str], passed: int, left: int, tmp_path: Path
) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["tests.proving.plugin", "tests.proving.thinning"]\n')
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    own = {name: value for name, value in os.environ.items() if not name.startswith(("RETRYSAFE_", "PYTEST_"))}
    own |= {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", **environment}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=tmp_path,
        env=own,
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"{passed} passed" in done.stdout, done.stdout + done.stderr
    for line in (
        f"{left} cells left to make prove: test_it.py::test_cell",
        "7 cells left to make prove: test_it.py::test_drawn",
    ):
        assert (line in done.stdout) == bool(left)
