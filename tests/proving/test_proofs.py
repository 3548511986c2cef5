"""The proofs of a run are written and read alike, and the run names its seed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.proving import proofs
from tests.proving.proofs import Proof

ROOT = Path(__file__).parents[2]
LOST = Proof("lost messages", "sqlite", "keyed", "reply lost", 3, rows=(14,))
PLUGIN = "from tests.proving.plugin import *\n"
TESTS = """
import pytest
from tests.proving.proofs import Proof

@pytest.mark.parametrize("row", [2, 14])
def test_something(chance, proof, row):
    proof(Proof("lost messages", "sqlite", "keyed", "reply lost", 5, rows=(row,)))

def test_that_fails(chance, proof):
    proof(Proof("kills", "", "", "server killed", 1, broken=1))
    raise AssertionError(chance.random())
"""
MARKED = """
import pytest

@pytest.mark.fault(50, 51)
@pytest.mark.parametrize("place", ["mysql-9-handler", "a broker"])
def test_of_a_marked_part(place):
    pass
"""


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "proofs.json"
    again, other = LOST._replace(injected=4, rows=(2,)), LOST._replace(store="redis", rows=())
    proofs.write(file, [one._asdict() for one in (LOST, other, again)], {"Redis": "8"}, {"passed": 2}, "-m prove")
    run = proofs.read(file)
    assert run is not None
    assert run.proofs == [other, LOST._replace(injected=7, rows=(2, 14))]
    assert (run.tests, run.versions["Redis"], run.command, run.effort) == ({"passed": 2}, "8", "-m prove", "short")


@pytest.mark.parametrize("store", ["mariadb", "mysql", "mysql+asyncmy", "mariadb, pymysql"])
def test_a_proof_belongs_to_a_store_whatever_its_driver(store: str) -> None:
    assert proofs.checked(LOST._replace(store=store)).kind == "mysql"


@pytest.mark.parametrize("unfit", [{"store": "postgres"}, {"mode": "tx="}, {"mode": "transactional tx="}])
def test_a_proof_that_no_part_of_the_page_would_show_is_refused(unfit: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="or leave it empty"):
        proofs.checked(LOST._replace(**unfit))


def test_without_a_file_there_was_no_run(tmp_path: Path) -> None:
    assert proofs.read(tmp_path / "proofs.json") is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "given"),
    [([], {}), (["-p", "xdist.plugin", "-n", "2"], {"RETRYSAFE_SEED": "7"})],
    ids=["new-seed", "two-workers-given-seed"],
)
def test_a_run_writes_what_its_tests_proved_and_names_its_seed(
    tmp_path: Path, workers: list[str], given: dict[str, str]
) -> None:
    (tmp_path / "conftest.py").write_text(PLUGIN)
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "tests/messaging").mkdir(parents=True)
    (tmp_path / "tests/messaging/test_marked.py").write_text(MARKED)
    file = tmp_path / "proofs.json"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RETRYSAFE_", "PYTEST_"))}
    environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment |= {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "RETRYSAFE_PROOFS": str(file), **given}
    quiet = ["-q", "-p", "no:cacheprovider", *workers]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *quiet],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    run = proofs.read(file)
    assert run is not None, done.stdout + done.stderr
    assert given in ({}, {"RETRYSAFE_SEED": str(run.seed)})
    assert f"seed: RETRYSAFE_SEED={run.seed}, effort: short" in done.stdout.splitlines()
    assert f"RETRYSAFE_SEED={run.seed} python -m pytest 'test_it.py::test_that_fails'" in done.stdout
    assert run.command == " ".join(quiet)
    assert run.tests == {"passed": 4, "failed": 1}
    assert run.proofs == [
        Proof("kills", "", "", "server killed", 1, broken=1),
        Proof("lost messages", "sqlite", "keyed", "reply lost", 10, rows=(2, 14)),
        Proof("messaging", "", "", "A message is delivered again", 1, rows=(50,)),
        Proof("messaging", "", "", "A publisher's confirmation is lost", 1, rows=(51,)),
        Proof("messaging", "mysql-9", "", "A message is delivered again", 1, rows=(50,)),
        Proof("messaging", "mysql-9", "", "A publisher's confirmation is lost", 1, rows=(51,)),
    ]
