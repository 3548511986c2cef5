"""Round trips are the cost: the statements that really reach a server, counted beneath the executor."""

from __future__ import annotations

import re
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import psycopg_pool
import pymysql
import pytest
import redis
import redis.asyncio

from retrysafe import Boundary, InProgress, Quota, QuotaExceeded
from retrysafe.backends import registry
from retrysafe.backends.redis.async_client import Wire
from retrysafe.backends.sql.drivers.sqlite import SqliteFile
from retrysafe.tasks.delivery import Call, TaskHandler, Told
from tests.conftest import absent
from tests.faults.redis_servers import Server, installed
from tests.stores.ageing import mysql_connection

SENT: list[str] = []
"""Statements in the order in which they were sent."""


@pytest.fixture(autouse=True)
def _nothing_sent() -> None:
    SENT.clear()


@pytest.fixture
def key() -> str:
    """A key that nobody has used."""
    return uuid.uuid4().hex


@pytest.fixture
def schema(postgresql: str) -> str:
    """The URL of a PostgreSQL that has the schema."""
    registry.connect(postgresql).migrate()
    return postgresql


@pytest.fixture(autouse=True)
def _note_psycopg(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cursor notes its statements, the executor's own as well as the user's."""
    for kind in (psycopg.Cursor, psycopg.AsyncCursor):
        generate = kind._execute_gen

        def noting(self: Any, query: Any, *args: Any, generate: Any = generate, **kwargs: Any) -> Any:
            SENT.append(_text(query))
            return generate(self, query, *args, **kwargs)

        monkeypatch.setattr(kind, "_execute_gen", noting)


def _text(query: Any) -> str:
    return query.decode() if isinstance(query, bytes) else str(query)


def _note_logged(logged: Any) -> None:
    SENT.append(logged.query)


def verbs() -> list[str]:
    """The first words of what was sent since the last look."""
    found = [statement.split(maxsplit=1)[0].rstrip(";") for statement in SENT]
    SENT.clear()
    return found


def claim(boundary: Boundary, key: str, tx: Any = None) -> bool:
    """Claim once; whether it was a replay."""
    with boundary.claim(key, payload="p", tx=tx) as claimed:
        if not claimed.replayed:
            claimed.result = "done"
    return claimed.replayed


async def aclaim(boundary: Boundary, key: str, tx: Any = None) -> bool:
    """The same for async code."""
    async with boundary.claim(key, payload="p", tx=tx) as claimed:
        if not claimed.replayed:
            claimed.result = "done"
    return claimed.replayed


TWO = Quota(rate="2/1h", outstanding=100)


def refused(boundary: Boundary, key: str, tx: Any = None) -> None:
    """Claim once more than the quota allows."""
    with pytest.raises(QuotaExceeded):
        claim(boundary, f"{key} refused", tx)


# ---------------------------------------------------------------- PostgreSQL


OWN = ["BEGIN", "WITH", "SAVEPOINT", "UPDATE", "COMMIT"]
"""A transaction of the boundary's own, without what the handler does in it."""


@pytest.fixture
def pool(schema: str) -> Iterator[psycopg_pool.ConnectionPool[Any]]:
    """A psycopg pool that notes every statement."""
    settings = {"autocommit": True}
    with psycopg_pool.ConnectionPool(schema, min_size=1, kwargs=settings, open=True) as opened:
        yield opened


def test_psycopg_leased(pool: psycopg_pool.ConnectionPool[Any], key: str) -> None:
    boundary = Boundary("trips", store=pool)
    claim(boundary, f"{key} first")  # asks for the schema's version, once per process
    SENT.clear()
    assert not claim(boundary, key)
    assert verbs() == ["WITH", "UPDATE"]
    assert claim(boundary, key)
    assert verbs() == ["WITH"]
    with boundary.claim(f"{key} steps") as claimed, psycopg.connect(pool.conninfo) as tx:
        for name in ("first", "rows"):
            SENT.clear()
            claimed.step(name, str, tx=tx)
    assert verbs() == ["WITH", "UPDATE"], "a step in the caller's transaction is one statement"
    boundary.close()


def test_a_retry_that_fails_for_good_looks_for_steps(pool: psycopg_pool.ConnectionPool[Any], key: str) -> None:
    boundary = Boundary("trips", store=pool, permanent=ValueError)
    claim(boundary, f"{key} first")
    for name, error, sent in (
        (key, OSError, ["WITH", "UPDATE"]),
        (key, OSError, ["WITH", "UPDATE", "UPDATE"]),
        (key, ValueError, ["WITH", "UPDATE", "SELECT", "UPDATE"]),
        (f"{key} other", ValueError, ["WITH", "UPDATE"]),
    ):
        SENT.clear()
        with pytest.raises(error), boundary.claim(name):
            raise error
        assert verbs() == sent
    boundary.close()


def test_psycopg_own_transaction(pool: psycopg_pool.ConnectionPool[Any], key: str) -> None:
    boundary = Boundary("trips", store=pool, effects="transactional")
    claim(boundary, f"{key} first")
    SENT.clear()
    assert not claim(boundary, key)
    assert verbs() == OWN[1:]  # psycopg begins beneath the cursors that are watched
    assert claim(boundary, key)
    assert verbs() == ["WITH", "ROLLBACK"]
    boundary.close()


def test_psycopg_callers_transaction(schema: str, key: str) -> None:
    boundary = Boundary("trips", store=schema, effects="transactional")
    with psycopg.connect(schema) as tx:
        claim(boundary, f"{key} first", tx)
        SENT.clear()
        assert not claim(boundary, key, tx)
        assert verbs() == ["WITH", "UPDATE"]
        assert claim(boundary, key, tx)
        assert verbs() == ["WITH"]
    boundary.close()


async def test_async_psycopg_leased(schema: str, key: str) -> None:
    settings = {"autocommit": True}
    async with psycopg_pool.AsyncConnectionPool(schema, min_size=1, kwargs=settings, open=False) as pool:
        boundary = Boundary("trips", store=pool)
        await aclaim(boundary, f"{key} first")
        SENT.clear()
        assert not await aclaim(boundary, key)
        assert verbs() == ["WITH", "UPDATE"]
        assert await aclaim(boundary, key)
        assert verbs() == ["WITH"]
        await boundary.aclose()


async def test_async_psycopg_callers_transaction(schema: str, key: str) -> None:
    boundary = Boundary("trips", store=schema, effects="transactional")
    async with await psycopg.AsyncConnection.connect(schema) as tx:
        await aclaim(boundary, f"{key} first", tx)
        SENT.clear()
        assert not await aclaim(boundary, key, tx)
        assert verbs() == ["WITH", "UPDATE"]
        assert await aclaim(boundary, key, tx)
        assert verbs() == ["WITH"]
    await boundary.aclose()


@pytest.fixture
def noted_asyncpg(schema: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A URL whose asyncpg connections note every statement."""
    connect = asyncpg.connect

    async def noting(*args: Any, **options: Any) -> Any:
        connection = await connect(*args, **options)
        connection.add_query_logger(_note_logged)
        return connection

    monkeypatch.setattr(asyncpg, "connect", noting)
    return schema.replace("postgresql", "postgresql+asyncpg", 1)


async def test_asyncpg_leased(noted_asyncpg: str, key: str) -> None:
    boundary = Boundary("trips", store=noted_asyncpg)
    await aclaim(boundary, f"{key} first")
    SENT.clear()
    assert not await aclaim(boundary, key)
    assert verbs() == ["WITH", "UPDATE"]
    assert await aclaim(boundary, key)
    assert verbs() == ["WITH"]
    await boundary.aclose()


async def test_asyncpg_own_transaction(noted_asyncpg: str, key: str) -> None:
    boundary = Boundary("trips", store=noted_asyncpg, effects="transactional")
    await aclaim(boundary, f"{key} first")
    SENT.clear()
    assert not await aclaim(boundary, key)
    assert verbs() == OWN
    assert await aclaim(boundary, key)
    assert verbs() == ["BEGIN", "WITH", "ROLLBACK"]
    await boundary.aclose()


async def test_asyncpg_callers_transaction(schema: str, key: str) -> None:
    boundary = Boundary("trips", store=schema.replace("postgresql", "postgresql+asyncpg", 1), effects="transactional")
    connection = await asyncpg.connect(schema)
    async with connection.transaction():
        await aclaim(boundary, f"{key} first", connection)
        connection.add_query_logger(_note_logged)
        SENT.clear()
        assert not await aclaim(boundary, key, connection)
        assert verbs() == ["WITH", "UPDATE"]
        assert await aclaim(boundary, key, connection)
        assert verbs() == ["WITH"]
    await connection.close()
    await boundary.aclose()


# ---------------------------------------------------------------- MySQL and MariaDB


@pytest.fixture
def mariadb(mysql: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a MariaDB that has the schema; every connection notes its statements, without their comments."""
    registry.connect(mysql).migrate()
    send = pymysql.connections.Connection.query

    def noting(self: Any, sql: Any, *args: Any) -> Any:
        SENT.append(re.sub(r"/\*.*?\*/ ?", "", sql))
        return send(self, sql, *args)

    monkeypatch.setattr(pymysql.connections.Connection, "query", noting)
    return mysql


def test_pymysql_leased(mariadb: str, key: str) -> None:
    boundary = Boundary("trips", store=mariadb)
    claim(boundary, f"{key} first")
    SENT.clear()
    assert not claim(boundary, key)
    assert verbs() == ["SELECT", "INSERT", "UPDATE"]
    assert claim(boundary, key)
    assert verbs() == ["SELECT"]
    boundary.close()


def test_pymysql_own_transaction(mariadb: str, key: str) -> None:
    boundary = Boundary("trips", store=mariadb, effects="transactional")
    claim(boundary, f"{key} first")
    SENT.clear()
    assert not claim(boundary, key)
    assert verbs() == ["START", "SAVEPOINT", "INSERT", "SAVEPOINT", "RELEASE", "UPDATE", "COMMIT"]
    assert claim(boundary, key)
    assert verbs() == ["START", "SAVEPOINT", "INSERT", "ROLLBACK"]
    boundary.close()


def test_pymysql_callers_transaction(mariadb: str, key: str) -> None:
    """A savepoint is what tells a transaction from the next one; setting and releasing it are a round trip each."""
    boundary = Boundary("trips", store=mariadb, effects="transactional")
    with closing(mysql_connection(mariadb)) as tx:
        claim(boundary, f"{key} first", tx)
        SENT.clear()
        assert not claim(boundary, key, tx)
        assert verbs() == ["SAVEPOINT", "INSERT", "RELEASE", "UPDATE"]
        assert claim(boundary, key, tx)
        assert verbs() == ["SAVEPOINT", "INSERT"]
        tx.commit()
        with closing(mysql_connection(mariadb)) as other:
            claim(boundary, f"{key} other", other)
            SENT.clear()
            with pytest.raises(InProgress):
                claim(boundary, f"{key} other", tx)
            assert verbs() == ["SAVEPOINT", "INSERT", "SELECT"]
    boundary.close()


# ---------------------------------------------------------------- SQLite: local statements


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a file whose connections note every statement."""
    opened = SqliteFile.connect

    def noting(self: SqliteFile) -> sqlite3.Connection:
        connection = opened(self)
        connection.set_trace_callback(SENT.append)
        return connection

    monkeypatch.setattr(SqliteFile, "connect", noting)
    return f"sqlite:///{tmp_path}/trips.db"


def test_sqlite_leased(file: str) -> None:
    boundary = Boundary("trips", store=file)
    claim(boundary, "first")
    SENT.clear()
    assert not claim(boundary, "k")
    assert verbs() == ["SELECT", "INSERT", "UPDATE"]
    assert claim(boundary, "k")
    assert verbs() == ["SELECT"]
    boundary.close()


def test_sqlite_writes_a_first_record_into_its_table_only(file: str) -> None:
    boundary = Boundary("trips", store=file)
    claim(boundary, "k")
    boundary.close()
    (insert,) = (statement for statement in SENT if statement.startswith("INSERT INTO retrysafe_records "))
    with closing(sqlite3.connect(file.removeprefix("sqlite:///"))) as database:
        database.text_factory = bytes  # an explanation shows keys as they are
        between = [step[3] for step in database.execute(f"EXPLAIN {insert}") if step[1] == b"OpenEphemeral"]
    assert between == [1], "one column: the instant that comes back"


def test_sqlite_task_that_may_have_come_before(file: str) -> None:
    """Its attempt is counted by two statements: by one as it begins, by one when it has ended."""
    boundary = Boundary("trips", store=file, effects="keyed")
    handler = TaskHandler(boundary, lambda order: order, "order", "test", {"operation": "charge"})

    def deliver(order: str) -> list[str]:
        SENT.clear()
        assert handler.deliver(Call((order,), {}, "id", "charge", ((order,), {}))).told is Told.RETURN
        return verbs()

    deliver("first")
    assert deliver("k") == ["INSERT", "SELECT", "INSERT", "UPDATE", "DELETE"]
    assert deliver("k") == ["INSERT", "SELECT", "DELETE"]
    boundary.close()


def test_sqlite_own_transaction(file: str) -> None:
    boundary = Boundary("trips", store=file, effects="transactional")
    claim(boundary, "first")
    SENT.clear()
    assert not claim(boundary, "k")
    assert verbs() == ["SELECT", "BEGIN", "SAVEPOINT", "INSERT", "SAVEPOINT", "RELEASE", "UPDATE", "COMMIT"]
    SENT.clear()
    assert claim(boundary, "k")
    assert verbs() == ["SELECT"], "a replay opens no transaction"
    boundary.close()


# ---------------------------------------------------------------- Redis


@contextmanager
def noted_redis(
    monkeypatch: pytest.MonkeyPatch, kind: Any, note: Callable[..., Any], name: str = "send_packed_command"
) -> Iterator[str]:
    """A server of the test's own: one that other tests use forgets its scripts when they tell it to."""
    if not installed():
        absent("no redis-server to start")
    with closing(Server("--appendonly", "yes")) as server, monkeypatch.context() as patch:
        patch.setattr(kind, name, note)
        yield server.url


@pytest.mark.slow
def test_redis(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    kind = redis.connection.AbstractConnection
    send = kind.send_packed_command

    def note(self: Any, *args: Any, **kwargs: Any) -> Any:
        SENT.append("EVALSHA")
        return send(self, *args, **kwargs)

    with noted_redis(monkeypatch, kind, note) as url:
        boundary = Boundary("trips", store=url)
        claim(boundary, f"{key} first")  # connects, and loads the scripts
        claim(boundary, f"{key} first")
        SENT.clear()
        assert not claim(boundary, key)
        assert len(verbs()) == 2
        assert claim(boundary, key)
        assert len(verbs()) == 1
        boundary.close()


@pytest.mark.slow
async def test_async_redis(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    send = Wire.send

    def note(self: Any, words: Any) -> Any:
        SENT.append("EVALSHA")
        return send(self, words)

    with noted_redis(monkeypatch, Wire, note, "send") as url:
        boundary = Boundary("trips", store=url)
        await aclaim(boundary, f"{key} first")
        await aclaim(boundary, f"{key} first")
        SENT.clear()
        assert not await aclaim(boundary, key)
        assert len(verbs()) == 2
        assert await aclaim(boundary, key)
        assert len(verbs()) == 1
        await boundary.aclose()


# ---------------------------------------------------------------- quotas: what counting costs beyond the above


@pytest.mark.parametrize("shared", [False, True])
def test_psycopg_quota(pool: psycopg_pool.ConnectionPool[Any], schema: str, key: str, shared: bool) -> None:
    """Nothing: the claim counts."""
    boundary = Boundary(f"trips {key}", store=pool, quota=TWO, effects="transactional" if shared else "keyed")
    with psycopg.connect(schema) as connection:
        tx = connection if shared else None
        claim(boundary, f"{key} first", tx)
        SENT.clear()
        assert not claim(boundary, key, tx)
        assert verbs() == ["WITH", "UPDATE"]
        assert claim(boundary, key, tx)
        assert verbs() == ["WITH"]
        refused(boundary, key, tx)
        assert verbs() == ["WITH", "SELECT", "SELECT"]
    boundary.close()


def test_sqlite_quota(file: str) -> None:
    """Nothing: the claim counts."""
    boundary = Boundary("trips", store=file, quota=TWO)
    claim(boundary, "first")
    SENT.clear()
    assert not claim(boundary, "k")
    assert verbs() == ["SELECT", "INSERT", "UPDATE"]
    assert claim(boundary, "k")
    assert verbs() == ["SELECT"]
    refused(boundary, "k")
    assert verbs() == ["SELECT", "INSERT", "SELECT", "SELECT"]
    boundary.close()


def test_pymysql_quota(mariadb: str, key: str) -> None:
    """One statement for a new key."""
    boundary = Boundary(f"trips {key}", store=mariadb, quota=TWO)
    claim(boundary, f"{key} first")
    SENT.clear()
    assert not claim(boundary, key)
    assert verbs() == ["SELECT", "SELECT", "INSERT", "UPDATE"]
    assert claim(boundary, key)
    assert verbs() == ["SELECT"]
    refused(boundary, key)
    assert verbs() == ["SELECT", "SELECT"]
    boundary.close()


def test_pymysql_quota_in_the_callers_transaction(mariadb: str, key: str) -> None:
    """One statement."""
    boundary = Boundary(f"trips {key}", store=mariadb, quota=TWO, effects="transactional")
    with closing(mysql_connection(mariadb)) as tx:
        claim(boundary, f"{key} first", tx)
        SENT.clear()
        assert not claim(boundary, key, tx)
        assert verbs() == ["SAVEPOINT", "SELECT", "INSERT", "RELEASE", "UPDATE"]
        assert claim(boundary, key, tx)
        assert verbs() == ["SAVEPOINT", "SELECT", "INSERT"]
        refused(boundary, key, tx)
        assert verbs() == ["SAVEPOINT", "SELECT"]
    boundary.close()


@pytest.mark.slow
def test_redis_quota(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    """One request, to the slot of the scope."""
    kind = redis.connection.AbstractConnection
    send = kind.send_packed_command

    def note(self: Any, *args: Any, **kwargs: Any) -> Any:
        SENT.append("EVALSHA")
        return send(self, *args, **kwargs)

    def walked(name: str) -> list[int]:
        """Count the commands of each of four claims, two of them of new keys and the last one refused."""
        counts: list[int] = []
        boundary = Boundary(f"trips {name}", store=url, quota=TWO)
        for ask in (claim, claim, claim, refused):
            SENT.clear()
            ask(boundary, f"{name} first" if not counts else name)
            counts.append(len(verbs()))
        boundary.close()
        return counts

    with noted_redis(monkeypatch, kind, note) as url:
        walked(f"{key} before")  # connects, and loads the scripts
        assert walked(key)[1:] == [3, 2, 2]
