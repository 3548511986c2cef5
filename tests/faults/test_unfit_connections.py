"""Connections that can only fail, as after a failover, are closed; what was asked is tried on a new one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import psycopg
import psycopg_pool
import pytest
import sqlalchemy
from sqlalchemy import event
from sqlalchemy.ext.asyncio import create_async_engine

from retrysafe import StoreUnavailable
from retrysafe.backends.registry import connect
from retrysafe.backends.sql.drivers import pool as pools
from retrysafe.protocol.requests import Query
from tests.faults.conftest import Making
from tests.faults.helpers import driven, own_database, unique, until
from tests.stores.ageing import mysql_connection
from tests.tables import each_row


@pytest.fixture(scope="module")
def database(migrated: str) -> Iterator[str]:
    """A database whose settings are the test's own."""
    with own_database(migrated) as url:
        yield url


def _alone(url: str) -> str:
    """A URL whose backend nothing else uses, so that no connection of before is kept."""
    return f"{url}?application_name={unique()}"


def _engine(url: str, stack: ExitStack) -> Any:
    engine = sqlalchemy.create_engine(driven(url, "psycopg"))
    stack.callback(engine.dispose)
    return engine


STORES: dict[str, Callable[[str, ExitStack], Any]] = {
    "psycopg": lambda url, stack: _alone(url),
    "pool": lambda url, stack: stack.enter_context(psycopg_pool.ConnectionPool(url, min_size=0, max_size=2, open=True)),
    "engine": _engine,
    "async psycopg": lambda url, stack: _alone(url),
    "asyncpg": lambda url, stack: driven(_alone(url), "asyncpg"),
    "async engine": lambda url, stack: create_async_engine(driven(url, "asyncpg")),
}
READ_ONLY, WRITABLE = (
    "ALTER DATABASE {0} SET default_transaction_read_only = on",
    "ALTER DATABASE {0} RESET default_transaction_read_only",
)


def _set(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True, options="-c default_transaction_read_only=off") as admin:
        admin.execute(statement.format(url.rpartition("/")[2]).encode())


@pytest.mark.slow
@each_row("way, effects", [(way, effects) for way in STORES for effects in ("keyed", "transactional")])
async def test_a_spell_without_writes(way: str, effects: str, database: str, make: Making) -> None:
    """After it the first claim succeeds, also on a connection that was only read by meanwhile."""
    is_async = way.startswith("async")
    with ExitStack() as stack:
        store = STORES[way](database, stack)
        boundary = make(store, effects=effects)

        async def claimed(key: str) -> bool:
            if is_async:
                async with boundary.claim(key) as claim:
                    return not claim.replayed
            with boundary.claim(key) as claim:
                return not claim.replayed

        _set(database, READ_ONLY)
        try:
            with pytest.raises(StoreUnavailable, match="read-only"):
                await claimed("during")
            asked = Query("SELECT 1", {}, writes=False)
            await connect(store).aclient()(asked) if is_async else connect(store).client()(asked)
        finally:
            _set(database, WRITABLE)
        assert await claimed("after")
        await boundary.aclose() if is_async else boundary.close()
        if is_async and hasattr(store, "dispose"):
            await store.dispose()


@pytest.mark.slow
@pytest.mark.fault(14)
@each_row(
    "library, level, effects",
    [
        (library, level, effects)
        for library, level in (("pymysql", None), ("pymysql", "READ COMMITTED"), ("asyncmy", None))
        for effects in ("keyed", "transactional")
    ],
)
async def test_an_engine_whose_connections_mysql_has_ended(
    library: str, level: str | None, effects: str, mysql_migrated: str, make: Making
) -> None:
    """As its wait_timeout does: SQLAlchemy passes the driver's error on where it sets the isolation level."""
    is_async = library == "asyncmy"
    made: Any = (create_async_engine if is_async else sqlalchemy.create_engine)(driven(mysql_migrated, library))
    ended: list[int] = []
    event.listen(made.sync_engine if is_async else made, "connect", lambda driver, _: ended.append(_thread_of(driver)))
    engine = made.execution_options(isolation_level=level) if level else made
    boundary = make(engine, effects=effects)

    async def claimed(key: str) -> bool:
        if is_async:
            async with boundary.claim(key) as claim:
                return not claim.replayed
        with boundary.claim(key) as claim:
            return not claim.replayed

    assert await claimed("first")
    with closing(mysql_connection(mysql_migrated)) as admin, admin.cursor() as cursor:
        for thread in ended:
            cursor.execute(f"KILL {thread}")
        until(lambda: not _living(cursor).intersection(ended))
    if level and effects == "transactional":  # SQLAlchemy sets the level before there is a transaction to begin again
        with pytest.raises(StoreUnavailable):
            await claimed("second")
    assert await claimed("second")
    await boundary.aclose() if is_async else boundary.close()
    await made.dispose() if is_async else made.dispose()


def _thread_of(driver: Any) -> int:
    """The number of a connection in the server."""
    return int(getattr(driver, "driver_connection", driver).thread_id())


def _living(cursor: Any) -> set[int]:
    cursor.execute("SELECT id FROM information_schema.processlist")
    return {int(row[0]) for row in cursor.fetchall()}


class _Pool(pools.Pool[object]):
    def __init__(self) -> None:
        super().__init__()
        self.closed: list[object] = []

    def connect(self) -> object:
        return object()

    def is_idle(self, connection: object, /) -> bool:
        return True

    def is_usable(self, connection: object, /) -> bool:
        return True

    def hang_up(self, connection: object, /) -> None:
        self.closed.append(connection)


def test_a_connection_has_an_age_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(pools, "monotonic", lambda: now)
    pool = _Pool()
    with pool.borrow() as first:
        pass
    now = 0.89 * pools.LONGEST_LIFE
    with pool.borrow() as again:
        assert again is first
    now = pools.LONGEST_LIFE
    with pool.borrow() as new:
        assert new is not first
    assert pool.closed == [first.connection]
    pool.close()
