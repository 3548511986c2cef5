"""Statements of a caller's transaction that fail halfway, on SQLite: a full disk, an interruption, a lock.

After each, SQLite may have rolled back the statement alone or all of the transaction. Either way the record is there
exactly if the work is, also where the work passes over the error.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from retrysafe import Boundary, RetrysafeError
from tests.proving.effort import effort
from tests.proving.plugin import Record
from tests.proving.proofs import Proof

PAGE = 4096
LARGE = b"x" * 3 * PAGE
WHOLE = ["head", "line", "note"]
Arm = Callable[[sqlite3.Connection, int], object]
"""Lets the ``number``-th chance to fail be taken."""


def fill_disk(tx: sqlite3.Connection, number: int) -> None:
    (pages,) = tx.execute("PRAGMA page_count").fetchone()
    tx.execute(f"PRAGMA max_page_count = {pages + number}")


def interrupt(tx: sqlite3.Connection, number: int) -> None:
    left = iter(range(number * effort(17, 1)))
    tx.set_progress_handler(lambda: next(left, None) is None, 1)


FAULTS: dict[str, tuple[Arm, tuple[int, ...]]] = {
    "disk full": (fill_disk, (84,)),
    "statement interrupted": (interrupt, (4, 43)),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.execute("CREATE TABLE orders (key TEXT, part TEXT, body BLOB)")
    return tmp_path / "shop.db"


@pytest.fixture
def boundary(file: Path) -> Iterator[Boundary[Any]]:
    made = Boundary("orders", store=f"sqlite:///{file}", effects="transactional", observers=())
    with made.claim("the schema is there") as claim:
        claim.result = 0
    yield made
    made.close()


def place(boundary: Boundary[Any], tx: sqlite3.Connection, key: str, *, careless: bool) -> bool:
    """Write all parts of an order in a transaction, unless that was done; tell whether this commit is acknowledged."""
    with boundary.claim(key, tx=tx) as claim:
        if claim.replayed:
            return True
        tx.execute("INSERT INTO orders VALUES (?, 'head', ?)", (key, LARGE))
        with suppress(*([sqlite3.Error] if careless else [])):
            tx.execute("INSERT INTO orders VALUES (?, 'line', ?)", (key, LARGE))
        tx.execute("INSERT INTO orders VALUES (?, 'note', '')", (key,))  # of another transaction, if that was undone
        claim.result = LARGE.decode()
    tx.commit()
    return True


def attempt(boundary: Boundary[Any], file: Path, key: str, arm: Arm | None, number: int, *, careless: bool) -> bool:
    with closing(sqlite3.connect(file, timeout=0)) as tx:
        tx.execute("BEGIN")
        if arm is not None:
            arm(tx, number)
        try:
            return place(boundary, tx, key, careless=careless)
        except (sqlite3.Error, RetrysafeError):
            tx.set_progress_handler(None, 1)
            tx.rollback()
            return False


def committed(file: Path, key: str) -> tuple[list[str], int]:
    """The parts of an order, and the number of completed records beside that of the fixture."""
    with closing(sqlite3.connect(file)) as connection:
        parts = [part for (part,) in connection.execute("SELECT part FROM orders WHERE key = ? ORDER BY 1", (key,))]
        (records,) = connection.execute("SELECT count(*) FROM retrysafe_records WHERE state = 'completed'").fetchone()
    return parts, records - 1


@pytest.mark.slow
@pytest.mark.fault(4, 43, 84)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("careless", [False, True])
def test_record_and_work_stay_together_wherever_a_statement_fails(
    fault: str, careless: bool, boundary: Boundary[Any], file: Path, proof: Record
) -> None:
    arm, rows = FAULTS[fault]
    done = failed = 0
    for number in range(20_000):
        key = f"order {number}"
        passed = attempt(boundary, file, key, arm, number, careless=careless)
        parts, records = committed(file, key)
        written = "head" in parts
        assert records - done == written, (number, parts, records)
        assert written or not passed, "a commit that was interrupted may count, but none that was acknowledged is lost"
        assert careless or parts in ([], WHOLE)
        failed += not passed or parts != WHOLE
        if passed and parts == WHOLE:
            break
        assert attempt(boundary, file, key, None, 0, careless=False)
        parts, done = committed(file, key)
        assert ("head" in parts, done) == (True, records + (not written))
    assert failed > 3, "no statement failed"
    proof(Proof("failing statements", "sqlite", "transactional, tx=", fault, failed, rows=rows))


@pytest.mark.fault(27)
@pytest.mark.parametrize("held", ["before the claim", "since the snapshot"])
def test_a_lock_of_another_connection_leaves_neither(
    held: str, boundary: Boundary[Any], file: Path, proof: Record
) -> None:
    with closing(sqlite3.connect(file, isolation_level=None, timeout=0)) as other:

        def lock(tx: sqlite3.Connection, _number: int) -> None:
            if held == "since the snapshot":
                tx.execute("SELECT * FROM orders").fetchall()
            other.execute("BEGIN IMMEDIATE")
            other.execute("INSERT INTO orders VALUES ('other', 'head', '')")
            if held == "since the snapshot":
                other.execute("COMMIT")

        assert not attempt(boundary, file, "k", lock, 0, careless=False)
        assert committed(file, "k") == ([], 0)
        if other.in_transaction:
            other.execute("COMMIT")
    assert attempt(boundary, file, "k", None, 0, careless=False)
    assert committed(file, "k") == (WHOLE, 1)
    proof(Proof("failing statements", "sqlite", "transactional, tx=", f"locked, {held}", 1, rows=(27,)))
