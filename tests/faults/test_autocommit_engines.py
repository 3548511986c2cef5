"""Engines that commit by themselves are refused for transactions, before the work; those that can begin one are not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psycopg_pool
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import NullPool

from retrysafe import ConfigurationError
from retrysafe.messaging import Relay
from retrysafe.messaging.brokers.memory.publisher import MemoryPublisher
from tests.faults.conftest import Making
from tests.faults.helpers import driven, rows_of

Kept = Callable[[Any], Any]


@pytest.fixture
def kept() -> Iterator[Kept]:
    """Ends engines and pools after the test."""
    made: list[Any] = []

    def keep(one: Any) -> Any:
        made.append(one)
        return one

    yield keep
    for one in made:
        one.dispose() if hasattr(one, "dispose") else one.close()


@pytest.fixture(params=["sqlite", "psycopg", "pymysql"])
def url(request: pytest.FixtureRequest) -> str:
    """A database as SQLAlchemy names it."""
    if request.param == "sqlite":
        return str(request.getfixturevalue("sqlite_url"))
    return driven(
        request.getfixturevalue("migrated" if request.param == "psycopg" else "mysql_migrated"), request.param
    )


DECLARED: dict[str, Callable[[str, Kept], Any]] = {
    "by the engine": lambda url, keep: keep(sqlalchemy.create_engine(url, isolation_level="AUTOCOMMIT")),
    "by an option": lambda url, keep: keep(sqlalchemy.create_engine(url)).execution_options(
        isolation_level="AUTOCOMMIT"
    ),
    "below a sessionmaker": lambda url, keep: sessionmaker(
        keep(sqlalchemy.create_engine(url, isolation_level="AUTOCOMMIT"))
    ),
}


@pytest.mark.parametrize("way", DECLARED)
def test_one_that_says_so_is_refused_when_the_boundary_is_built(way: str, url: str, make: Making, kept: Kept) -> None:
    store = DECLARED[way](url, kept)
    with pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
        make(store, effects="transactional")
    with make(store).claim("key") as claim:
        claim.result = "leases do not mind"


async def test_an_async_one_as_well(migrated: str, make: Making) -> None:
    engine = create_async_engine(driven(migrated, "asyncpg"), isolation_level="AUTOCOMMIT")
    for store in (engine, async_sessionmaker(engine)):
        with pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
            make(store, effects="transactional")
    await engine.dispose()


@pytest.mark.parametrize("url", ["psycopg", "pymysql"], indirect=True)
@pytest.mark.parametrize("session", [False, True])
def test_one_whose_connections_tell_is_refused_before_the_work(
    session: bool, url: str, make: Making, kept: Kept
) -> None:
    engine = kept(sqlalchemy.create_engine(url, connect_args={"autocommit": True}, poolclass=NullPool))
    boundary = make(sessionmaker(engine) if session else engine, effects="transactional")
    with pytest.raises(ConfigurationError, match="Nothing was run"), boundary.claim("key"):
        pytest.fail("the work was begun")


def test_a_relay_does_not_hold_messages_with_one(migrated: str, kept: Kept) -> None:
    """Its lock on them would be gone at once, and another relay would publish the same."""
    engine = kept(
        sqlalchemy.create_engine(driven(migrated, "psycopg"), connect_args={"autocommit": True}, poolclass=NullPool)
    )
    from retrysafe.messaging import Outbox

    with engine.execution_options(isolation_level="READ COMMITTED").begin() as tx:
        Outbox(engine, source="/shop").add(tx, "orders.placed", {})
    published = MemoryPublisher()
    with pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
        Relay(engine, published, observers=()).run_once()
    assert published.published == []


ABLE: dict[str, Callable[[str, Kept], Any]] = {
    "a pool of psycopg in autocommit mode": lambda url, keep: keep(
        psycopg_pool.ConnectionPool(url, min_size=0, max_size=4, open=True, kwargs={"autocommit": True})
    ),
    "an engine that was told otherwise": lambda url, keep: keep(
        sqlalchemy.create_engine(driven(url, "psycopg"), isolation_level="AUTOCOMMIT")
    ).execution_options(isolation_level="READ COMMITTED"),
}


@pytest.mark.parametrize("way", ABLE)
def test_one_that_can_begin_a_transaction_keeps_its_word(
    way: str, migrated: str, table: str, make: Making, kept: Kept
) -> None:
    boundary = make(ABLE[way](migrated, kept), effects="transactional")
    with suppress(ValueError), boundary.claim("key") as claim:
        sql = f"INSERT INTO {table} VALUES ('key', 'undone')"
        claim.tx.execute(sqlalchemy.text(sql) if hasattr(claim.tx, "exec_driver_sql") else sql)
        raise ValueError
    assert rows_of(migrated, table) == []
    with boundary.claim("key") as claim:
        assert not claim.replayed


# ---------------------------------------------------------------- engines whose listeners begin transactions


def sqlite_recipe(engine: Any) -> None:
    """As SQLAlchemy's documentation has it, so that savepoints work."""

    @sqlalchemy.event.listens_for(engine, "connect")
    def leave_it_to_us(driver: Any, record: Any) -> None:
        driver.isolation_level = None

    @sqlalchemy.event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")


def begins(engine: Any) -> None:
    """A listener that begins by itself."""

    @sqlalchemy.event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("START TRANSACTION")


def isolates(engine: Any) -> None:
    """A listener that gives every connection a level, and so ends AUTOCOMMIT."""

    @sqlalchemy.event.listens_for(engine, "engine_connect")
    def isolate(connection: Any) -> None:
        connection.execution_options(isolation_level="SERIALIZABLE")


def ends(engine: Any) -> None:
    """A listener that leaves no transaction."""

    @sqlalchemy.event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("SET autocommit = 1")


@pytest.mark.parametrize("url", ["pymysql"], indirect=True)
@pytest.mark.parametrize("joined", [False, True])
def test_a_listener_that_makes_everything_commit_at_once_is_found_out(
    joined: bool, url: str, make: Making, kept: Kept
) -> None:
    engine = kept(sqlalchemy.create_engine(url))
    ends(engine)
    boundary = make(engine, effects="transactional")
    refused = pytest.raises(ConfigurationError, match=r"(?i)in autocommit mode")
    with engine.connect() as tx, refused, boundary.claim("key", tx=tx) if joined else boundary.claim("key"):
        pytest.fail("the work was begun")


LISTENING = [
    ("sqlite", sqlite_recipe),
    ("psycopg", begins),
    ("psycopg", isolates),
    ("pymysql", begins),
    ("pymysql", isolates),
]


@pytest.mark.parametrize(("url", "listen"), LISTENING, indirect=["url"])
@pytest.mark.parametrize("effects", ["keyed", "transactional"])
def test_transactions_begun_by_listeners_are_committed(
    effects: str, url: str, listen: Callable[[Any], None], make: Making, kept: Kept
) -> None:
    """Else a claim would be gone with its connection, and every retry would run again."""
    engine = kept(sqlalchemy.create_engine(url))
    listen(engine)
    boundary = make(engine, effects=effects)
    runs = 0
    for _ in range(2):
        with boundary.claim("key") as claim:
            if not claim.replayed:
                runs += 1
                claim.result = "done"
    assert (runs, claim.result) == (1, "done")


@pytest.mark.parametrize("listen", [begins, isolates])
async def test_on_an_event_loop_too(listen: Callable[[Any], None], mysql_migrated: str, make: Making) -> None:
    engine = create_async_engine(driven(mysql_migrated, "asyncmy"))
    listen(engine.sync_engine)
    boundary = make(engine)
    runs = 0
    for _ in range(2):
        async with boundary.claim("key") as claim:
            if not claim.replayed:
                runs += 1
                claim.result = "done"
    assert (runs, claim.result) == (1, "done")
    await boundary.aclose()
    await engine.dispose()
