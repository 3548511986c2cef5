"""A SQLite file that somebody else keeps locked: nobody waits for it longer than once, whatever he waits for before."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from retrysafe import StoreUnavailable
from retrysafe.backends.registry import connect
from retrysafe.backends.sql.drivers import sqlite, sqlite_async
from retrysafe.backends.sql.drivers.sqlite import SqliteClient, SqliteFile
from retrysafe.backends.sql.drivers.sqlite_async import MOST_AT_ONCE, AsyncSqliteClient
from retrysafe.backends.sql.drivers.sqlite_connection import Connection
from retrysafe.protocol.requests import Query, Rows

SHORT = 0.05
"""The shortest wait in seconds, which the tests wait out."""


class Clock:
    """Stands still until the test sets it."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in (sqlite, sqlite_async):
        monkeypatch.setattr(module, "time", made)
    return made


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = tmp_path / "store.db"
    connect(f"sqlite:///{path}").migrate()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY)")
    return str(path)


@pytest.fixture
def other(path: str) -> Iterator[sqlite3.Connection]:
    """Another process that writes, as SQLite sees it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield connection


def row(number: int) -> Query:
    return Query("INSERT INTO rows (id) VALUES (:id)", {"id": number})


def waits_of(connection: Any) -> float:
    """For other writers, as SQLite has it."""
    return float(connection.execute("PRAGMA busy_timeout").fetchone()[0]) / 1000


async def test_a_transaction_waits_for_the_file_as_long_as_is_left_of_its_turn(path: str, clock: Clock) -> None:
    """Its turn and then the file: twice as long as was promised."""
    client = AsyncSqliteClient(SqliteFile(path))

    async def waiting() -> float:
        async with client.transaction() as transaction:
            return waits_of(transaction.handle)

    async with client.transaction() as first:
        assert waits_of(first.handle) == 5.0
        second = asyncio.create_task(waiting())
        await asyncio.sleep(0)
        clock.now = 3.0
    assert await second == 2.0
    await client.aclose()


async def test_a_write_behind_a_read_waits_for_the_file_off_the_loop(path: str, other: sqlite3.Connection) -> None:
    client = AsyncSqliteClient(SqliteFile(path))
    read_first = Query("SELECT id FROM rows", {}, writes=False, otherwise=row(1))  # as the claim of a new key
    written = asyncio.ensure_future(client(read_first))
    await asyncio.sleep(0)
    other.execute("COMMIT")
    assert (await written).affected == 1
    await client.aclose()


def test_a_connection_that_comes_back_waits_as_long_as_ever(path: str) -> None:
    connection = SqliteFile(path).connect()
    connection.set_busy_timeout(2.0)
    assert waits_of(connection) == 2.0
    assert connection.reset()
    assert waits_of(connection) == 5.0
    connection.close()


def test_a_sync_transaction_too(path: str, clock: Clock) -> None:
    client, begins, found = SqliteClient(SqliteFile(path)), threading.Event(), list[float]()
    turn = client._turn

    class Noting:
        release = turn.release

        def acquire(self, timeout: float) -> bool:
            begins.set()
            return turn.acquire(timeout=timeout)

    def waiting() -> None:
        client._turn = Noting()  # type: ignore[assignment]
        with client.transaction() as transaction:
            found.append(waits_of(transaction.handle))

    with client.transaction() as first:
        assert waits_of(first.handle) == 5.0
        second = threading.Thread(target=waiting)
        second.start()
        assert begins.wait(60)
        clock.now = 3.0
    second.join(60)
    assert found == [2.0]
    client.close()


async def test_claims_behind_others_do_not_wait_again(
    path: str, other: sqlite3.Connection, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each group waited behind the one before: three hundred claims for half a minute."""
    waits, wait = list[float](), Connection.set_busy_timeout

    def noted(self: Connection, seconds: float) -> None:
        wait(self, seconds)
        if seconds != SHORT or not waits:  # and not when a connection comes back
            waits.append(seconds)
        clock.now = 1.0

    client = AsyncSqliteClient(SqliteFile(path, busy=SHORT))
    with monkeypatch.context() as patch:
        patch.setattr(Connection, "set_busy_timeout", noted)
        answers = await asyncio.gather(*(client(row(n)) for n in range(5 * MOST_AT_ONCE)), return_exceptions=True)
    assert {type(answer) for answer in answers} == {StoreUnavailable}
    assert waits == [SHORT] + [SHORT - 1.0] * 4
    other.execute("ROLLBACK")
    assert (await client(row(1))).affected == 1
    await client.aclose()


async def test_of_a_group_those_fail_that_have_waited_long_enough_and_the_rest_waits_on(
    path: str, other: sqlite3.Connection, clock: Clock
) -> None:
    client = AsyncSqliteClient(SqliteFile(path, busy=SHORT))

    async def put(number: int, now: float) -> Rows:
        clock.now = now
        return await client(row(number))

    early, late = asyncio.ensure_future(put(1, 0.0)), asyncio.ensure_future(put(2, 60.0))
    await asyncio.sleep(0)
    clock.now = 1.0
    with pytest.raises(StoreUnavailable):
        await early
    assert not late.done()
    other.execute("ROLLBACK")
    assert (await late).affected == 1
    assert other.execute("SELECT id FROM rows").fetchall() == [(2,)]
    await client.aclose()
