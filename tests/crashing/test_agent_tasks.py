"""Ten tasks for coding agents: the solutions hold when their process crashes at any call."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from retrysafe.testing.crashing import crash_points
from tests.crashing.agent_tasks import SCHEMA, TASKS
from tests.crashing.bank import charges
from tests.crashing.conftest import make_database
from tests.crashing.planted import State
from tests.docs.pages import ROOT
from tests.faults.helpers import unique


@pytest.mark.one_of("handlers that crash at every call", of=3)
@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.__name__)
def test_the_solution_holds_at_every_crash(task: Callable[[State], Any], tmp_path: Path, bank: tuple[str, str]) -> None:
    address, ledger = bank
    template, expected = tmp_path / "template.db", TASKS[task]
    make_database(f"sqlite:///{template}")
    with closing(sqlite3.connect(template)) as db, db:
        db.executescript(SCHEMA)

    def fresh() -> State:
        name = unique("task")
        shutil.copyfile(template, tmp_path / f"{name}.db")
        return State(f"sqlite:///{tmp_path}/{name}.db", f"{address}/charges", name)

    def check(state: State) -> None:
        with closing(sqlite3.connect(state.url.removeprefix("sqlite:///"))) as db:
            assert db.execute(expected.query).fetchone() == expected.answer
        assert charges(ledger, state.account) in expected.charges

    report = crash_points(task, fresh=fresh, check=check, pairs=0)
    assert report.ok, str(report)


def test_the_page_has_ten_tasks() -> None:
    page = (ROOT / "docs" / "coding-agents.md").read_text(encoding="utf-8")
    assert len(TASKS) == 10
    assert [task.__name__ for task in TASKS if f"`{task.__name__}`" not in page] == []
