"""Connections that can only fail, as after a failover, are closed; what was asked is tried on a new one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, closing
from functools import partial
from typing import Any

import psycopg
import psycopg_pool
import pytest
import sqlalchemy
from sqlalchemy import event
from sqlalchemy.ext.asyncio import create_async_engine

from retrysafe import Boundary, StoreUnavailable
from retrysafe.backends.registry import connect
from retrysafe.backends.sql.drivers import pool as pools
from retrysafe.protocol.requests import Query
from tests.conftest import absent
from tests.faults.conftest import Making
from tests.faults.helpers import driven, own_database, unique, until
from tests.faults.proxies.framing_redis import RedisFraming
from tests.faults.proxies.proxy import Proxy
from tests.faults.redis_servers import Server, installed
from tests.faults.servers import MariaDB
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
MYSQL: dict[str, Callable[[str], Any]] = {
    "pymysql": str,
    "engine on pymysql": sqlalchemy.create_engine,
    "asyncmy": str,
    "async engine on asyncmy": create_async_engine,
}
READ_ONLY, WRITABLE = (
    "ALTER DATABASE {0} SET default_transaction_read_only = on",
    "ALTER DATABASE {0} RESET default_transaction_read_only",
)


def _set(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True, options="-c default_transaction_read_only=off") as admin:
        admin.execute(statement.format(url.rpartition("/")[2]).encode())


WAYS = [(way, effects) for way in STORES for effects in ("keyed", "transactional")]


async def _claimed(boundary: Boundary, key: str, *, is_async: bool) -> bool:
    if is_async:
        async with boundary.claim(key) as claim:
            return not claim.replayed
    with boundary.claim(key) as claim:
        return not claim.replayed


@asynccontextmanager
async def _using(store: Any, boundary: Boundary, *, is_async: bool) -> AsyncIterator[Callable[[str], Awaitable[bool]]]:
    yield partial(_claimed, boundary, is_async=is_async)
    await boundary.aclose() if is_async else boundary.close()
    if hasattr(store, "dispose"):
        await store.dispose() if is_async else store.dispose()


@pytest.mark.slow
@each_row("way, effects", WAYS)
async def test_a_spell_without_writes(way: str, effects: str, database: str, make: Making) -> None:
    """After it the first claim succeeds, also on a connection that was only read by meanwhile."""
    is_async = way.startswith("async")
    with ExitStack() as stack:
        store = STORES[way](database, stack)
        async with _using(store, make(store, effects=effects), is_async=is_async) as claimed:
            _set(database, READ_ONLY)
            try:
                with pytest.raises(StoreUnavailable, match="read-only"):
                    await claimed("during")
                asked = Query("SELECT 1", {}, writes=False)
                await connect(store).aclient()(asked) if is_async else connect(store).client()(asked)
            finally:
                _set(database, WRITABLE)
            assert await claimed("after")


@pytest.mark.slow
@each_row("way, effects", WAYS)
async def test_a_column_is_changed_under_a_prepared_plan(way: str, effects: str, database: str, make: Making) -> None:
    is_async = way.startswith("async")
    with ExitStack() as stack:
        store = STORES[way](database, stack)
        async with _using(store, make(store, effects=effects), is_async=is_async) as claimed:
            for number in range(12):  # psycopg prepares a statement when it is put for the sixth time
                assert await claimed(f"{number // 2}") is not bool(number % 2)
            for kind in ("varchar", "text"):
                _set(database, f"ALTER TABLE retrysafe_records ALTER COLUMN attempt TYPE {kind}")
                assert await claimed(f"before {kind}")
                assert not await claimed(f"before {kind}")


@pytest.mark.slow
@each_row("library, effects", [(library, effects) for library in MYSQL for effects in ("keyed", "transactional")])
async def test_a_spell_without_writes_on_mysql(library: str, effects: str, own_mariadb: MariaDB, make: Making) -> None:
    is_async = library.startswith("async")
    url = own_mariadb.url.replace("retrysafe@", "app@")
    with closing(mysql_connection(own_mariadb.url, autocommit=True)) as admin, admin.cursor() as cursor:
        connect(own_mariadb.url).migrate()
        store = MYSQL[library](driven(url, library.rpartition(" ")[2]))
        async with _using(store, make(store, effects=effects), is_async=is_async) as claimed:
            cursor.execute("SET GLOBAL init_connect = 'SET SESSION TRANSACTION READ ONLY'")
            with pytest.raises(StoreUnavailable, match="READ ONLY"):
                await claimed("during")
            asked = Query("SELECT 1", {}, writes=False)
            await connect(store).aclient()(asked) if is_async else connect(store).client()(asked)
            cursor.execute("SET GLOBAL init_connect = ''")
            assert await claimed("after")


@pytest.mark.slow
@each_row("is_async", [False, True])
async def test_a_redis_that_was_demoted_behind_its_address(is_async: bool, make: Making) -> None:
    if not installed():
        absent("no redis-server to start")
    with (
        closing(Server("--appendonly", "yes")) as old,
        closing(Server("--appendonly", "yes")) as new,
        closing(Proxy(("127.0.0.1", old.port), RedisFraming)) as proxy,
    ):
        url = f"redis://127.0.0.1:{proxy.port}/0"
        async with _using(url, make(url, effects="keyed"), is_async=is_async) as claimed:
            assert await claimed("before")
            old.client.replicaof("127.0.0.1", new.port)
            proxy.upstream = ("127.0.0.1", new.port)
            assert await claimed("after")
            assert not await claimed("after")


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

    claimed = partial(_claimed, boundary, is_async=is_async)
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
