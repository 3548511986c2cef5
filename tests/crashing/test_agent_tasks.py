"""Ten tasks for coding agents: the solutions hold when their process crashes at any call, and others are told apart."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from retrysafe.testing.agent_tasks import TASKS, crash
from retrysafe.testing.agent_tasks.__main__ import SOLUTIONS, load
from tests.docs.pages import ROOT
from tests.processes import environment

COMMAND = (sys.executable, "-m", "retrysafe.testing.agent_tasks")
SPOILT = """
import urllib.request
from uuid import uuid4

def charge_a_provider(state):
    headers = {"Idempotency-Key": str(uuid4())}
    urllib.request.urlopen(urllib.request.Request(state.bank, state.account.encode(), headers)).close()
"""


@pytest.fixture(scope="module")
def solutions(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The solutions as a user has them: what is called by our own files is not seen as a crash point."""
    return load(Path(shutil.copy(SOLUTIONS, tmp_path_factory.mktemp("solutions"))))


@pytest.mark.one_of("handlers that crash at every call", of=3)
@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_the_solution_holds_at_every_crash(
    task: str, solutions: ModuleType, tmp_path: Path, bank: tuple[str, str]
) -> None:
    report = crash(getattr(solutions, task), TASKS[task], tmp_path, bank)
    assert report.ok, str(report)


@pytest.mark.slow
def test_a_file_is_checked(tmp_path: Path) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        done = subprocess.run(
            (*COMMAND, *arguments), cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout

    code, told = run()
    assert (code, [name for name in TASKS if f"def {name}(state):" not in told]) == (0, [])
    assert run("--solutions") == (0, SOLUTIONS.read_text(encoding="utf-8"))
    (tmp_path / "spoilt.py").write_text(SPOILT)
    code, told = run("spoilt.py")
    assert (code, told.startswith("FAILS  charge_a_provider\n")) == (1, True)
    (tmp_path / "empty.py").touch()
    assert run("empty.py") == (2, "")
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(COMMAND, env=environment(), stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, ""), "as of a reader that has enough, such as head"


def test_the_page_has_ten_tasks() -> None:
    page = (ROOT / "docs" / "coding-agents.md").read_text(encoding="utf-8")
    assert len(TASKS) == 10
    assert [task for task in TASKS if f"`{task}`" not in page] == []
