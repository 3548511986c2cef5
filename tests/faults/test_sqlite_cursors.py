"""A cursor of ``claim.tx`` that is not read to its end: it ends with its claim, and keeps no other one waiting."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from retrysafe import Boundary
from tests.faults.test_sqlite_forks import forked

pytestmark = pytest.mark.fault(31)


class Cursor(sqlite3.Cursor):
    """A cursor of the caller's own class."""


def by_execute(tx: sqlite3.Connection) -> Any:
    """Some rows."""
    rows = tx.execute("SELECT name FROM stock")
    rows.fetchone()
    return rows


def by_a_cursor(tx: sqlite3.Connection) -> Any:
    """Some rows of a cursor that was asked for."""
    rows = tx.cursor()
    next(rows.execute("SELECT name FROM stock"))
    return rows


def by_a_cursor_of_ones_own(tx: sqlite3.Connection) -> Any:
    """Some rows of a cursor of another class."""
    rows = tx.cursor(Cursor)
    next(rows.execute("SELECT name FROM stock"))
    return rows


def by_a_blob(tx: sqlite3.Connection) -> Any:
    """A blob that is open."""
    blob = tx.blobopen("stock", "name", 1, readonly=True)
    blob.read(1)
    return blob


READS = [by_execute, by_a_cursor, by_a_cursor_of_ones_own, by_a_blob]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of a file with some rows."""
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.execute("CREATE TABLE stock (name TEXT)")
        connection.executemany("INSERT INTO stock VALUES (?)", [("lamp",), ("chair",), ("table",)])
        connection.commit()
    return tmp_path / "shop.db"


@pytest.fixture
def boundary(path: Path) -> Iterator[Boundary[Any]]:
    """Make a boundary with transactions of its own."""
    boundary = Boundary("shop", store=f"sqlite:///{path}", effects="transactional", observers=())
    yield boundary
    boundary.close()


def write_elsewhere(path: Path) -> None:
    """As another process does: who still reads what was there before can write no more."""
    with closing(sqlite3.connect(path)) as other:
        other.execute("INSERT INTO stock VALUES ('bed')")
        other.commit()


@pytest.mark.parametrize("read", READS)
def test_it_keeps_no_later_claim_from_writing(
    read: Callable[[sqlite3.Connection], Any], boundary: Boundary[Any], path: Path
) -> None:
    with boundary.claim("one") as claim:
        kept = read(claim.tx)
        claim.result = 1
    write_elsewhere(path)
    with boundary.claim("two") as claim:
        assert claim.tx.execute("SELECT count(*) FROM stock").fetchone() == (4,)
        claim.result = 1
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        kept.read(1) if isinstance(kept, sqlite3.Blob) else kept.fetchone()


@pytest.mark.parametrize("read", READS)
async def test_it_keeps_no_later_claim_of_a_task_from_writing(
    read: Callable[[sqlite3.Connection], Any], path: Path
) -> None:
    boundary = Boundary[Any]("shop", store=f"sqlite:///{path}", effects="transactional", observers=())
    async with boundary.claim("one") as claim:
        kept = read(claim.tx)
        claim.result = 1
    await asyncio.to_thread(write_elsewhere, path)
    async with boundary.claim("two") as claim:
        claim.result = 1
    assert kept is not None
    await boundary.aclose()


@pytest.mark.slow
@pytest.mark.parametrize("read", READS)
def test_a_child_inherits_no_connection_that_it_keeps_open(
    read: Callable[[sqlite3.Connection], Any], boundary: Boundary[Any], path: Path
) -> None:
    with boundary.claim("one") as claim:
        kept = read(claim.tx)
        claim.result = 1
    assert descriptors(path)
    assert forked(lambda: len(descriptors(path))) == 0
    assert kept is not None


def test_those_that_are_gone_are_forgotten(boundary: Boundary[Any]) -> None:
    """A transaction may be long."""
    with boundary.claim("one") as claim:
        for _ in range(100):
            claim.tx.execute("SELECT name FROM stock").fetchone()
        assert len(claim.tx._reading) < 10
        claim.result = 1


def descriptors(path: Path) -> list[int]:
    """Those that this process has of a file."""
    found = path.stat()
    return [number for number in range(3, 200) if _is_of(number, found)]


def _is_of(number: int, file: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.fstat(number), file)
    except OSError:
        return False
