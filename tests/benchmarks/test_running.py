"""A benchmark that cannot be measured is reported, and the others are measured all the same."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks import __main__ as running
from benchmarks.rows import RATIO, Row, Sides


def test_a_row_that_fails_and_one_that_cannot_be_imported_leave_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    group = ModuleType("benchmarks.on_three")
    group.__dict__["rows"] = lambda: [Row(name, sides, RATIO) for name, sides in (("no", broken), ("yes", idle))]
    monkeypatch.setitem(sys.modules, "benchmarks.on_three", group)
    monkeypatch.setattr(running, "_GROUPS", (("on_nothing", None), ("on_three", None)))
    figures = tmp_path / "figures.json"
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--quick", "--json", str(figures)])

    with pytest.raises(SystemExit, match="2 could not be measured: nothing, no"):
        running.main()

    assert "failed: no: RuntimeError('no such rival')" in capsys.readouterr().out
    written = json.loads(figures.read_text())
    assert [row["name"] for row in written["rows"]] == ["yes"]
    assert list(written["failed"]) == ["nothing", "no"]


@contextmanager
def broken() -> Iterator[Sides]:
    if sys.modules:
        raise RuntimeError("no such rival")
    yield Sides(work, work)


@contextmanager
def idle() -> Iterator[Sides]:
    yield Sides(work, work)


def work(keys: Sequence[str]) -> None:
    for key in keys:
        hash(key)
