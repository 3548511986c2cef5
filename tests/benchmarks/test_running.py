"""A run of the benchmarks goes on whatever a row does, and what it found can be compared, judged and shown."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as running
from benchmarks import aims, measuring, report
from benchmarks.figures import spread
from benchmarks.limits import limit_of
from benchmarks.results import RECORDED, read, rows_of
from benchmarks.rows import FLOOR, OURS
from tests.benchmarks import planted
from tests.tables import each_row

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run `python -m benchmarks` on planted rows, and read what it wrote."""
    monkeypatch.setattr(running, "MODULES", ("tests.benchmarks.nothing", "tests.benchmarks.planted"))
    monkeypatch.setattr(running, "SECONDS", 10)

    def run(*names: str) -> dict[str, Any]:
        monkeypatch.setattr(sys, "argv", ["benchmarks", "--quick", "--results", str(tmp_path), *names])
        with pytest.raises(SystemExit, match=r"could not be measured: tests\.benchmarks\.nothing"):
            running.main()
        (path,) = tmp_path.glob("*.json")
        return read(path)

    return run


@pytest.mark.slow
@pytest.mark.one_of("slow tests")
def test_rows_that_fail_hang_or_need_what_is_not_there_leave_the_others(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.delenv("RETRYSAFE_TEST_DYNAMODB", raising=False)
    (shown := tmp_path / "shown").mkdir()
    monkeypatch.setenv(planted.FOLDER, str(shown))
    found = run()
    assert list(rows_of(found)) == ["planted/works", "planted/a rival is missing"]
    failed = found["failed"]
    assert "ModuleNotFoundError" in failed["tests.benchmarks.nothing"]
    assert "no such server" in failed["planted/breaks"]
    assert failed["planted/hangs"] == "not done after 10 s"
    assert [path.name for path in shown.iterdir()] == ["taken down"]
    assert failed["planted/dies"] == "exit code 7"
    assert failed["planted/needs a service"] == "RETRYSAFE_TEST_DYNAMODB not set"
    assert "no such rival" in failed["rival in planted/a rival is missing"]
    assert "failed: planted/breaks" in capsys.readouterr().out


@pytest.mark.slow
def test_a_row_says_wall_cpu_and_spread_of_every_contender(run: Run) -> None:
    row = rows_of(run("works"))["planted/works"]
    assert row["contenders"].keys() == {OURS, FLOOR}
    for contender in row["contenders"].values():
        assert len(contender["spent"]) == len(contender["cpu"]) == 3
    found = spread(row, "ratio")
    assert found is not None
    assert found.low <= found.median <= found.high < 1  # ours hashes ten times as much


@pytest.mark.slow
def test_output_of_a_run_tells_no_machine_by_name(run: Run) -> None:
    found = run("works", "loses")
    assert found["machine"].keys() == {"cores", "processor", "architecture", "system", "load before"}
    assert "No such file or directory: 'nowhere.db'" in found["failed"]["planted/loses a file"]
    assert tempfile.gettempdir() not in json.dumps(found["failed"])


def test_a_run_of_some_rows_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--record", "works"])
    with pytest.raises(SystemExit, match="2"):
        running.main()


@pytest.mark.slow
def test_round_trips_are_counted_at_the_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    with planted.answering() as address:
        monkeypatch.setenv("RETRYSAFE_TEST_REDIS", address)
        (row,) = (row for row in planted.rows() if row.name == "planted/asks")
        trips = measuring.round_trips(row, (OURS, FLOOR))
    assert trips == {OURS: 2, FLOOR: 1}


# ---------------------------------------------------------------- what is made of a run


def result(row: str, ours: float, floor: float) -> dict[str, Any]:
    """A row with one turn."""
    sides = {
        name: {"spent": [value], "cpu": [value], "round_trips": None} for name, value in ((OURS, ours), (FLOOR, floor))
    }
    return {"name": row, "beside": "by hand", "unit": "s", "contenders": sides, "errors": {}}


@each_row(("ours", "verdict"), [(2.0, "met"), (2.2, "missed")])
def test_an_aim_is_met_or_missed(ours: float, verdict: str) -> None:
    aim = aims.Aim("row", "ratio", 0.5, None, "")
    assert aims._judged(aim, result("row", ours, 1.0)).verdict == verdict


@each_row(
    ("figure", "value", "smaller", "ours", "said"),
    [
        ("ratio", 0.5, 0.4, 2.0, ""),
        ("ratio", 0.5, 0.4, 2.4, "≥ 0.40 of the floor: met"),
        ("ratio", 0.5, 0.4, 2.6, "≥ 0.40 of the floor: missed, too"),
        ("times", 2.0, 2.4, 2.3, "≤ 2.40 × the floor: met"),
        ("times", 2.0, 2.4, 2.5, "≤ 2.40 × the floor: missed, too"),
        ("times", 2.0, None, 2.5, "none is set"),
    ],
)
def test_a_row_that_misses_its_aim_is_held_to_a_smaller_one(
    figure: str, value: float, smaller: float | None, ours: float, said: str
) -> None:
    judged = aims._judged(aims.Aim("row", figure, value, smaller, ""), result("row", ours, 1.0))
    assert judged.fallback == said
    assert judged.meets_smaller != ("missed" in said or smaller is None)


def test_the_summary_counts_the_smaller_aims_that_are_met() -> None:
    judged = [
        aims._judged(aims.Aim("row", "ratio", 0.5, 0.4, ""), result("row", ours, 1.0)) for ours in (2.0, 2.4, 2.6)
    ]
    *lines, counted = report.summary(judged, {})
    assert lines[2] == " missed: row: 0.42 of the floor, aim ≥ 0.50 of the floor; smaller aim ≥ 0.40 of the floor: met"
    assert counted == "1 aims are met, 2 are missed (1 of them meet a smaller aim), 0 were not measured"


def test_an_aim_whose_row_is_missing_is_not_met() -> None:
    assert {one.verdict for one in aims.judge({})} == {"not measured"}


def test_two_runs_are_compared_by_their_ratios() -> None:
    row = "http memory ×16/fresh"
    before, after = (
        {"machine": {"processor": "one"}, "rows": [result(row, ours, 1.0), result(only, 1.0, 1.0)]}
        for ours, only in ((4.0, "gone"), (1.0, "new"))
    )
    shown = "\n".join(report.compared(before, after))
    assert f"{row:<60}       0.25       1.00    +300% !" in shown
    assert "only before: gone" in shown
    assert "only after: new" in shown
    assert f"missed before, met now: {row}, aim ≥ 0.50 of the floor by CPU" in shown


def test_every_aim_has_a_row_or_is_known_to_have_none() -> None:
    rows = {row.name for module in running.MODULES for row in running.import_module(module).rows()}
    without = {aim.row for aim in aims.AIMS} - rows
    assert without == {"drain of 10 million messages to RabbitMQ"}


def test_every_aim_with_a_row_has_a_smaller_one_that_is_easier_to_meet() -> None:
    rows = {row.name: row for module in running.MODULES for row in running.import_module(module).rows()}
    for aim in aims.AIMS:
        if aim.row in rows and not rows[aim.row].long:
            assert aim.smaller is not None, aim.row
            assert aim.is_met(aim.value, aim.smaller), aim.row
            assert not aim.is_met(aim.smaller, aim.value), aim.row


def test_every_aim_has_a_profile_for_the_run_that_misses_it() -> None:
    assert all(limit_of(aim.row).text for aim in aims.AIMS)
    with pytest.raises(LookupError, match="no profile"):
        limit_of("a new row")


def test_the_page_shows_every_aim_of_the_recorded_run() -> None:
    page = Path(__file__).parents[2].joinpath("docs/reference/performance.md").read_text(encoding="utf-8")
    for one in aims.judge(rows_of(read(RECORDED))):
        (line,) = (line for line in page.splitlines() if line.startswith(f"| `{one.aim.row}` | {one.aim.text} |"))
        assert f"{one.verdict}" in line
        assert f"| {one.fallback} |" in line or not one.fallback
        paragraphs = [line for line in page.splitlines() if line.startswith(f"- `{one.aim.row}`: ")]
        assert (one.verdict == "met") == (not paragraphs)
