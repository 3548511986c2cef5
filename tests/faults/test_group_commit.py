"""Writes of async code to SQLite are committed in groups: what one of them meets, and what the group does."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from retrysafe.backends.registry import connect
from retrysafe.backends.sql.drivers.sqlite import SqliteFile
from retrysafe.backends.sql.drivers.sqlite_async import AsyncSqliteClient
from retrysafe.backends.sql.sqlite import SqliteStore
from retrysafe.protocol.records import ClaimRequest, Clocks
from retrysafe.protocol.requests import Query, Rows

CRASHED = 9
TABLES = """
    CREATE TABLE parents (id INTEGER PRIMARY KEY);
    CREATE TABLE rows (id INTEGER PRIMARY KEY);
    CREATE TABLE children (id INTEGER PRIMARY KEY, parent INTEGER REFERENCES parents DEFERRABLE INITIALLY DEFERRED);
"""
STATEMENTS: Counter[str] = Counter()
"""The statements performed on the writers' connections, by the first word."""


class Traced(SqliteFile):
    """A file whose connections keep to foreign keys, note their statements, and can end the process."""

    __slots__ = ()

    def connect(self) -> sqlite3.Connection:
        connection = super().connect()
        connection.execute("PRAGMA foreign_keys = ON")
        connection.create_function("crash", 0, lambda: os._exit(CRASHED))
        connection.set_trace_callback(lambda sql: STATEMENTS.update([sql.split()[0]]))
        return connection


@pytest.fixture
def file(tmp_path: Path) -> Traced:
    path = tmp_path / "store.db"
    connect(f"sqlite:///{path}")
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(TABLES)
    STATEMENTS.clear()
    return Traced(str(path))


@asynccontextmanager
async def writing(file: Traced) -> AsyncIterator[AsyncSqliteClient]:
    client = AsyncSqliteClient(file)
    try:
        yield client
    finally:
        await client.aclose()


def row(number: int, how: str = "INSERT") -> Query:
    return Query(f"{how} INTO rows (id) VALUES (:id)", {"id": number})


ORPHAN = Query("INSERT INTO children (id, parent) VALUES (1, 1)", {})
"""A statement that only the commit refuses."""


def stored(file: Traced) -> list[int]:
    with closing(sqlite3.connect(file.path)) as connection:
        return [number for (number,) in connection.execute("SELECT id FROM rows ORDER BY id")]


async def together(client: AsyncSqliteClient, *queries: Query) -> list[Rows | BaseException]:
    """Put the queries at once, so that they are one group."""
    return await asyncio.gather(*map(client, queries), return_exceptions=True)


async def test_writes_at_once_share_a_commit(file: Traced) -> None:
    async with writing(file) as client:
        await together(client, *map(row, range(64)))
    assert stored(file) == list(range(64))
    assert STATEMENTS["COMMIT"] == 1


async def test_writes_while_a_group_is_committed_gather_for_the_next(file: Traced) -> None:
    async with writing(file) as client:

        async def some(start: int) -> None:
            for number in range(start, start + 10):
                await client(row(number))

        await asyncio.gather(*(some(10 * i) for i in range(16)))
    assert stored(file) == list(range(160))
    assert STATEMENTS["COMMIT"] == 10


async def test_of_duplicates_in_a_group_one_wins(file: Traced) -> None:
    store, clocks = SqliteStore(), Clocks(30_000_000, 10**9, 10**9)
    requests = [ClaimRequest(b"k" * 32, "shop", "", "charge", b"", f"attempt {i}", "keyed", clocks) for i in range(20)]
    asks = [store.claim(request) for request in requests]
    async with writing(file) as client:
        # without the look that a leased claim begins with, which would meet the record before the group is formed
        answers = await asyncio.gather(*(client(ask.request.otherwise) for ask in asks))
    records = [ask.parse(answer) for ask, answer in zip(asks, answers, strict=True)]
    attempts = {record.attempt for record in records if record is not None and not hasattr(record, "limit")}
    assert attempts == {"attempt 0"}
    assert STATEMENTS["COMMIT"] == 1


async def test_a_commit_that_fails_fails_all_of_its_group(file: Traced) -> None:
    async with writing(file) as client:
        answers = await together(client, row(1), ORPHAN, row(2))
        assert all(isinstance(answer, sqlite3.IntegrityError) for answer in answers)
        assert stored(file) == []
        await client(row(3))
    assert stored(file) == [3]


async def test_a_statement_that_fails_takes_nothing_else_with_it(file: Traced) -> None:
    async with writing(file) as client:
        first, twice, other = await together(client, row(1), row(1), row(2))
        assert isinstance(twice, sqlite3.IntegrityError)
        assert not isinstance(first, BaseException)
        assert not isinstance(other, BaseException)
    assert stored(file) == [1, 2]


async def test_an_end_of_the_transaction_ends_its_group(file: Traced) -> None:
    """SQLite does so by itself when a disk is full, say; nothing behind it may be committed alone."""
    async with writing(file) as client:
        await client(row(0))
        answers = await together(client, row(1), row(0, "INSERT OR ROLLBACK"), row(2))
        assert all(isinstance(answer, sqlite3.IntegrityError) for answer in answers)
    assert stored(file) == [0]


async def test_a_cancelled_writer_takes_nothing_from_the_others(file: Traced) -> None:
    async with writing(file) as client:
        tasks = [asyncio.create_task(client(row(number))) for number in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        first, gone, last = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(gone, asyncio.CancelledError)
        assert {type(first), type(last)} == {Rows}
        await client(row(3))
    assert {0, 2, 3} <= set(stored(file))


def test_writes_left_when_the_loop_ends_are_done(file: Traced) -> None:
    client = AsyncSqliteClient(file)

    async def leaving() -> None:
        tasks = [asyncio.create_task(client(row(number))) for number in range(200)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in tasks)

    asyncio.run(leaving())
    client.abandon()
    assert stored(file) == list(range(200))


@pytest.mark.slow
def test_a_crash_in_a_group_leaves_nothing_of_it(file: Traced) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            asyncio.run(_crashing(file))
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == CRASHED
    assert stored(file) == [0]


async def _crashing(file: Traced) -> None:
    client = AsyncSqliteClient(file)
    await client(row(0))
    await together(client, row(1), row(2), Query("SELECT crash()", {}), row(3))
