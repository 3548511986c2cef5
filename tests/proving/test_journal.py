"""A run of proofs that was stopped goes on where it was, with the seed it had; a changed tree begins anew."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.proving import journal, proofs
from tests.proving.journal import Journal
from tests.tables import each_row

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TESTS = """\
import os
import pytest
from tests.proving.proofs import Proof

@pytest.mark.parametrize("number", range(5))
def test_proves(number, proof, chance):
    assert number < int(os.environ["STOPPED_AT"])
    proof(Proof("kills", "", "", "server killed", 1))
"""


def _run(folder: Path, stopped_at: int, *workers: str, tests: str = TESTS) -> tuple[int, proofs.Run]:
    (folder / "conftest.py").write_text("from tests.proving.plugin import *\n")
    (folder / "test_it.py").write_text(tests)
    (folder / "pytest.ini").write_text("[pytest]\n")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RETRYSAFE_", "PYTEST_"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *workers],
        cwd=folder,
        env={
            **kept,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
            "RETRYSAFE_PROOFS": str(folder / "proofs.json"),
            "RETRYSAFE_JOURNAL": str(folder / "journal.jsonl"),
            "STOPPED_AT": str(stopped_at),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    run = proofs.read(folder / "proofs.json")
    assert run is not None, done.stdout + done.stderr
    return done.returncode, run


@pytest.mark.one_of("the suite's own tools", of=2)
@pytest.mark.parametrize("workers", [(), ("-p", "xdist.plugin", "-n", "2")], ids=["alone", "workers"])
def test_passed_tests_are_not_run_again(tmp_path: Path, workers: tuple[str, ...]) -> None:
    ended, first = _run(tmp_path, 3, *workers)
    assert (ended, first.tests) == (1, {"passed": 3, "failed": 2})
    ended, second = _run(tmp_path, 9, *workers)
    assert (ended, second.tests, second.seed) == (0, {"passed": 5}, first.seed)
    assert [one.injected for one in second.proofs] == [5]
    ended, third = _run(tmp_path, 0, *workers)
    assert (ended, third.tests) == (0, {"passed": 5})


def test_a_test_has_not_passed_with_a_part_of_it(tmp_path: Path) -> None:
    parts = """\
def test_parts(subtests):
    with subtests.test("one"):
        pass
    with subtests.test("two"):
        assert False
"""
    assert _run(tmp_path, 0, tests=parts)[0] == 1
    assert list(Journal(tmp_path / "journal.jsonl").passed) == []


def test_a_journal_of_an_earlier_version_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text('{"tree": "0123", "seed": 7}\n{"test": "a test", "proofs": []}\n')
    assert (Journal(path).seed, Journal(path).passed) == (None, {})


def test_another_state_of_the_product_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal.jsonl"
    begun = Journal(path)
    begun.begin(7)
    begun.add("a test", [])
    assert (Journal(path).seed, list(Journal(path).passed)) == (7, ["a test"])
    monkeypatch.setattr(journal, "state", lambda test: "another")
    changed = Journal(path)
    assert (changed.seed, changed.passed) == (None, {})
    changed.begin(8)
    assert (Journal(path).seed, Journal(path).passed) == (8, {})


TREE = {
    "tests/conftest.py": "",
    "tests/data.json": "",
    "tests/far/__init__.py": "",
    "tests/far/conftest.py": "",
    "tests/far/helper.py": "from tests import (\n    near,\n)",
    "tests/far/test_one.py": "from tests import table\nfrom tests.far.helper import helped\nPROGRAM = 'tests.program'",
    "tests/near.py": "open('data.json')",
    "tests/other.py": "",
    "tests/program.py": "",
    "tests/table/__init__.py": "",
    "tests/table/found.py": "KILLER = 'tests/killing/test_it.py::test'",
    "tests/killing/test_it.py": "",
}


@each_row("changed", TREE)
def test_a_test_depends_on_what_it_names_and_on_what_that_names(
    changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also on what it names in a string or by its path, on a package's modules, on data, and on `conftest.py`."""
    monkeypatch.setattr(journal, "ROOT", tmp_path)
    monkeypatch.setattr(journal, "product", lambda: "as it is")
    for name in TREE:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(TREE[name])
    before = _state("tests/far/test_one.py::test")
    (tmp_path / changed).write_text(TREE[changed] + "# changed")
    assert (_state("tests/far/test_one.py::test") == before) == (changed == "tests/other.py")


def _state(test: str) -> str:
    for cached in (journal._state_of, journal._named_in, journal._digest):
        cached.cache_clear()
    return journal.state(test)


def test_a_line_that_was_cut_off_is_a_test_that_has_not_passed(tmp_path: Path) -> None:
    begun = Journal(tmp_path / "journal.jsonl")
    begun.begin(7)
    begun.add("a test", [])
    begun.add("another", [])
    text = begun.path.read_text()
    begun.path.write_text(text[:-5])
    again = Journal(begun.path)
    assert list(again.passed) == ["a test"]
    again.add("another", [])
    assert list(Journal(begun.path).passed) == ["a test", "another"]
