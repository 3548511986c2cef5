"""The kit's refusals, its reports of things that it cannot see, and its look at the result."""

from __future__ import annotations

import itertools
import os
import socket
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from retrysafe import Boundary, ConfigurationError
from retrysafe.backends.migrations import on_demand
from retrysafe.testing.crashing import Report, crash_points

pytestmark = pytest.mark.slow


class Files:
    """SQLite files with a table of charges."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._numbers = folder, itertools.count()

    def fresh(self) -> str:
        path = str(self._folder / f"{os.getpid()}-{next(self._numbers)}.db")
        with closing(sqlite3.connect(path)) as db, db:
            db.execute("CREATE TABLE charges (id TEXT, at REAL)")
        return path

    def explore(self, run: Callable[[str], object], **options: object) -> Report:
        return crash_points(run, fresh=self.fresh, check=lambda path: None, pairs=0, **options)  # type: ignore[arg-type]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def charge(path: str) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("INSERT INTO charges VALUES ('A', ?)", (time.time(),))


def charge_once(path: str) -> None:
    with closing(sqlite3.connect(path, isolation_level="IMMEDIATE")) as db, db:
        db.execute("BEGIN IMMEDIATE")
        if db.execute("SELECT 1 FROM charges").fetchone() is None:
            db.execute("INSERT INTO charges VALUES ('A', ?)", (time.time(),))


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    "run",
    [
        lambda path: sqlite3.connect(":memory:").execute("SELECT 1"),
        lambda path: Boundary("b", store="memory://", observers=()).claim("A").__enter__(),
    ],
    ids=["sqlite", "store"],
)
def test_state_in_memory_is_refused(run: Callable[[str], object], files: Files) -> None:
    with pytest.raises(ConfigurationError, match="needs state outside the process, and found"):
        files.explore(run)


@pytest.mark.one_of("words of the kit for crashes", of=3)
@pytest.mark.slow
def test_a_boundary_built_inside_on_a_new_file_has_no_state_in_memory(files: Files) -> None:
    """Its tables are planned in a database of ours in memory, once per process."""

    def run(path: str) -> None:
        on_demand.creation.cache_clear()
        boundary = Boundary("b", store=f"sqlite:///{path}.own", observers=())
        with boundary.claim("A"):
            pass
        boundary.close()

    files.explore(run)


def test_state_that_a_run_changes_in_memory_is_refused(files: Files) -> None:
    def run(state: list[str]) -> None:
        charge(state[0])
        state.append("charged")

    with pytest.raises(ConfigurationError, match="the value of fresh"):
        crash_points(run, fresh=lambda: [files.fresh()], check=lambda state: None)


def test_a_run_that_makes_other_calls_each_time_is_refused(files: Files) -> None:
    def run(path: str) -> None:
        with closing(sqlite3.connect(path)) as db:
            for digit in f"{os.getpid():b}":
                db.execute(f"SELECT {'odd' if digit == '1' else 'even'} FROM (SELECT 1 AS odd, 2 AS even)")

    with pytest.raises(ConfigurationError, match="two runs differed"):
        files.explore(run)


def test_a_run_without_any_call_is_refused(files: Files) -> None:
    with pytest.raises(ConfigurationError, match="saw no call that leaves the process"):
        files.explore(lambda path: None)


def test_a_run_that_fails_undisturbed_is_refused(files: Files) -> None:
    with pytest.raises(ConfigurationError, match="fails without any crash: OperationalError: no such table: nowhere"):
        files.explore(lambda path: sqlite3.connect(path).execute("SELECT * FROM nowhere"))


def test_an_invariant_that_never_holds_is_refused(files: Files) -> None:
    def check(path: str) -> None:
        raise AssertionError("never")

    with pytest.raises(ConfigurationError, match=r"fails after a run that nothing disturbed: check: .*never"):
        crash_points(charge_once, fresh=files.fresh, check=check)


def test_a_fresh_that_fails_is_told(files: Files) -> None:
    with pytest.raises(ConfigurationError, match=r"fresh\(\) failed"):
        crash_points(charge_once, fresh=lambda: 1 / 0, check=lambda path: None)


@pytest.mark.one_of("words of the kit for crashes", of=3)
def test_a_process_with_threads_is_not_forked_and_says_what_it_needs(files: Files) -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="somebody")
    thread.start()
    try:
        with pytest.raises(ConfigurationError, match=r"has threads \(somebody\).*at the top of a module"):
            files.explore(lambda path: charge(path))
        report = crash_points(charge_once, fresh=files.fresh, check=_one_charge, pairs=0)
    finally:
        end.set()
        thread.join()
    assert report.ok, str(report)
    assert len(report.boundaries) == 4


@pytest.mark.one_of("words of the kit for crashes", of=3)
def test_a_heartbeat_of_ours_does_not_keep_it_from_forking(files: Files) -> None:
    """As after an earlier test, whose boundary is still open."""
    boundary = Boundary("earlier", store=f"sqlite:///{files.fresh()}", observers=())
    with boundary.claim("A") as claim:
        assert any(thread.name == "retrysafe-heartbeat" for thread in threading.enumerate())
        report = files.explore(lambda path: charge_once(path))
        claim.result = "done"
    boundary.close()
    assert report.ok, str(report)


def _one_charge(path: str) -> None:
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT count(*) FROM charges").fetchone() == (1,)


# ---------------------------------------------------------------- what is seen


@pytest.mark.one_of("words of the kit for crashes", of=3)
def test_columns_that_differ_from_run_to_run_are_not_compared(files: Files) -> None:
    assert files.explore(charge_once).ok


@pytest.mark.one_of("words of the kit for crashes", of=3)
def test_rows_that_are_there_twice_are_found_without_a_check(files: Files) -> None:
    report = files.explore(charge)
    assert not report.ok
    assert "table charges: 2 rows instead of 1" in str(report)


def _lose_the_mark(path: str) -> None:
    with closing(sqlite3.connect(path)) as db:
        with db:
            first = db.execute("INSERT INTO charges SELECT 'mark', 0 WHERE NOT EXISTS (SELECT 1 FROM charges)").rowcount
        if first:
            with db:
                db.execute("INSERT INTO charges VALUES ('charge', 0)")


@pytest.mark.one_of("words of the kit for crashes", of=3)
def test_rows_that_are_missing_are_found_without_a_check(files: Files) -> None:
    report = files.explore(_lose_the_mark)
    assert "table charges: 1 rows instead of 2" in str(report)


def _spawn(path: str) -> None:
    charge_once(path)
    subprocess.run(["true"], check=True)


def _write(path: str) -> None:
    charge_once(path)
    Path(path).with_suffix(".txt").write_text("charged")


def _on_a_thread(path: str) -> None:
    thread = threading.Thread(target=charge_once, args=(path,))
    charge_once(path)
    thread.start()
    thread.join()


def _bare_socket(path: str) -> None:
    charge_once(path)
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as server,
        closing(socket.create_connection(server.getsockname())),
    ):
        pass


@pytest.mark.one_of("words of the kit for crashes", of=3)
@pytest.mark.parametrize(
    ("run", "told"),
    [
        (_spawn, "a process: true"),
        (_write, "a file opened for writing"),
        (_on_a_thread, "a call on a thread of its own"),
        (_bare_socket, "a connection to 127.0.0.1"),
    ],
)
def test_blind_spots_are_reported(run: Callable[[str], None], told: str, files: Files) -> None:
    report = files.explore(run)
    assert any(what.startswith(told) for what in report.unseen), report.unseen
    assert f"not explored: {told}" in str(report)
    assert "test_kit.py" in str(report.unseen)


class Printer:
    """A device that no library knows."""

    def print_receipt(self, path: str) -> None:
        with closing(sqlite3.connect(f"{path}.paper")) as paper, paper:
            paper.execute("CREATE TABLE IF NOT EXISTS receipts (id)")
            paper.execute("INSERT INTO receipts VALUES ('A')")


def _charge_and_print(path: str) -> None:
    charge_once(path)
    Printer().print_receipt(path)


@pytest.mark.one_of("words of the kit for crashes", of=3)
def test_calls_of_ones_own_can_be_watched(files: Files) -> None:
    report = files.explore(_charge_and_print, watch=("tests.crashing.test_kit:Printer.print_receipt",))
    assert [call.label for call in report.boundaries][-1] == "tests.crashing.test_kit:Printer.print_receipt"
    assert "2 effects asked for instead of 1" in str(report)


def _wait_for_ever(path: str) -> None:
    charge_once(path)
    with closing(sqlite3.connect(path)) as db:
        if db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'tried'").fetchone() == (1,):
            threading.Event().wait()
        db.execute("CREATE TABLE tried (id)")
        db.execute("DROP TABLE tried")


@pytest.mark.one_of("slow tests")
def test_a_retry_that_hangs_is_found(files: Files) -> None:
    report = files.explore(_wait_for_ever, patience=6)
    assert "a process hung" in str(report)


@pytest.mark.one_of("slow tests")
def test_a_lease_lapses_also_for_a_retry_that_opens_and_closes_its_own_boundary(files: Files) -> None:
    def run(path: str) -> None:
        with closing(Boundary("shop", store=f"sqlite:///{path}", observers=())) as shop, shop.claim("A") as claim:
            if not claim.replayed:
                charge_once(path)
                claim.result = "charged"

    report = files.explore(run)
    assert report.ok, str(report)
    assert "InProgress" not in str(report)


@pytest.mark.one_of("slow tests")
def test_pairs_follow_from_the_seed_and_crash_the_retry_too(files: Files) -> None:
    report = crash_points(_lose_the_mark, fresh=files.fresh, check=lambda path: None, pairs=8, seed=3)
    again = crash_points(_lose_the_mark, fresh=files.fresh, check=lambda path: None, pairs=8, seed=3)
    assert (report.pairs, report.seed) == (8, 3)
    pairs = [violation.point for violation in report.violations if violation.point.then is not None]
    assert pairs
    assert [violation.point for violation in again.violations] == [violation.point for violation in report.violations]


@pytest.mark.one_of("slow tests")
def test_state_that_all_runs_share_is_explored_one_point_at_a_time(tmp_path: Path) -> None:
    """Two at once would see each other's rows."""
    path = str(tmp_path / "shared.db")

    def fresh() -> str:
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute("CREATE TABLE IF NOT EXISTS charges (id TEXT, at REAL)")
            db.execute("DELETE FROM charges")
        return path

    report = crash_points(charge_once, fresh=fresh, check=_one_charge)
    assert report.ok, str(report)
