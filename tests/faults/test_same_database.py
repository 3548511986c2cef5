"""One database under two names is one store: claims inside join its transaction; a transaction elsewhere is refused."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import psycopg
import psycopg_pool
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from retrysafe import ConfigurationError
from retrysafe.backends import identity
from retrysafe.backends.joining import join
from retrysafe.backends.registry import connect
from retrysafe.messaging import Outbox
from tests.faults.conftest import Making
from tests.faults.helpers import driven, own_database
from tests.stores.ageing import mysql_connection
from tests.tables import each_row

Kept = Callable[[Any], Any]


@pytest.fixture
def kept() -> Iterator[Kept]:
    """Ends engines and pools after the test."""
    made: list[Any] = []

    def keep(one: Any) -> Any:
        made.append(one)
        return one

    yield keep
    for one in reversed(made):
        one.dispose() if hasattr(one, "dispose") else one.close()


@pytest.fixture
def elsewhere(migrated: str) -> Iterator[str]:
    """Another database of the same server."""
    with own_database(migrated) as url:
        yield url


def engine_of(url: str) -> Any:
    return sqlalchemy.create_engine(
        url.replace("postgresql:", "postgresql+psycopg:").replace("mysql:", "mysql+pymysql:")
    )


def host_of(url: str, name: str) -> str:
    parts = urlsplit(url)
    assert parts.hostname is not None
    return parts._replace(netloc=parts.netloc.replace(parts.hostname, name)).geturl()


SPELLINGS: dict[str, Callable[[str, Kept], tuple[Any, Any]]] = {
    "a sessionmaker and its engine": lambda url, keep: (sessionmaker(e := keep(engine_of(url))), e),
    "two engines": lambda url, keep: (keep(engine_of(url)), keep(engine_of(url))),
    "an engine and its option engine": lambda url, keep: (e := keep(engine_of(url)), e.execution_options(echo=False)),
    "an engine and a URL": lambda url, keep: (keep(engine_of(url)), url),
    "postgresql and postgres": lambda url, keep: (url, url.replace("postgresql:", "postgres:")),
    "an address and a name": lambda url, keep: (host_of(url, "127.0.0.1"), host_of(url, "localhost")),
    "two names": lambda url, keep: (url, url + "?application_name=other&host=127.0.0.1"),
    "a pool and a URL": lambda url, keep: (
        keep(psycopg_pool.ConnectionPool(url, min_size=0, max_size=4, open=True)),
        url,
    ),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_claim_inside_joins_whatever_the_store_is_called(
    spelling: str, migrated: str, make: Making, kept: Kept
) -> None:
    outer, inner = SPELLINGS[spelling](migrated, kept)
    orders, stock = make(outer, effects="transactional"), make(inner, effects="transactional")
    mail = make(inner)
    with orders.claim("key") as order:
        with stock.claim("key") as reserved:
            assert reserved.tx is order.tx
        with pytest.raises(ConfigurationError, match="would not be rolled back with it"), mail.claim("key"):
            pytest.fail("a leased record cannot live there")


async def test_on_an_event_loop_too(migrated: str, make: Making) -> None:
    url = driven(migrated, "asyncpg")
    engine = create_async_engine(url)
    orders, stock, mail = make(engine, effects="transactional"), make(url, effects="transactional"), make(url)
    async with orders.claim("key") as order:
        with pytest.raises(ConfigurationError, match="would not be rolled back with it"):
            async with mail.claim("key"):
                pytest.fail("a leased record cannot live there")
        async with stock.claim("key") as reserved:
            assert reserved.tx is order.tx
    await engine.dispose()
    await stock.aclose()
    await mail.aclose()


def test_on_mysql_too(mysql_migrated: str, make: Making, kept: Kept) -> None:
    orders, stock = make(kept(engine_of(mysql_migrated)), effects="transactional"), make(mysql_migrated)
    refused = pytest.raises(ConfigurationError, match="would not be rolled back with it")
    with orders.claim("key"), refused, stock.claim("key"):
        pytest.fail("a leased record cannot live there")


@pytest.mark.parametrize("way", ["relative", "symlink", "engine"])
def test_a_file_is_itself_by_every_path(
    way: str, tmp_path: Path, make: Making, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    url = f"sqlite:///{tmp_path}/records.db"
    orders = make(url, effects="transactional")
    (tmp_path / "link.db").symlink_to(tmp_path / "records.db")
    ways: dict[str, Any] = {"relative": "sqlite:///./records.db", "symlink": f"sqlite:///{tmp_path}/link.db"}
    stock = make(ways.get(way) or kept(sqlalchemy.create_engine(url)), effects="transactional")
    with orders.claim("key") as order, stock.claim("key") as reserved:
        assert reserved.tx is order.tx


def test_another_database_of_the_server_is_another_store(migrated: str, elsewhere: str, make: Making) -> None:
    orders, stock = make(migrated, effects="transactional"), make(elsewhere, effects="transactional")
    mail = make(elsewhere)
    with orders.claim("key") as order, stock.claim("key") as reserved:
        assert reserved.tx is not order.tx
    with orders.claim("another"), mail.claim("another") as sent:
        sent.result = "sent"


def test_other_tables_of_the_database_are_another_store(migrated: str, make: Making, kept: Kept) -> None:
    """Their records would be written where nobody looks for them."""
    with own_database(migrated) as url:
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute("CREATE SCHEMA other")
        away = f"{url}?options=-csearch_path%3Dother"
        connect(away).migrate()
        orders, stock = make(url, effects="transactional"), make(away, effects="transactional")
        with orders.claim("key") as order, stock.claim("key") as reserved:
            assert reserved.tx is not order.tx
        orders.close()
        stock.close()
        connect(away).close()


# ---------------------------------------------------------------- a transaction that was handed over


def psycopg_connection(url: str, kept: Kept) -> Any:
    return kept(psycopg.connect(url))


def sqlalchemy_session(url: str, kept: Kept) -> Any:
    return kept(Session(kept(engine_of(url))))


@pytest.mark.parametrize("made", [psycopg_connection, sqlalchemy_session])
def test_a_transaction_on_another_database_is_refused(
    made: Callable[[str, Kept], Any], migrated: str, elsewhere: str, make: Making, kept: Kept
) -> None:
    there = made(elsewhere, kept)
    boundary, outbox = make(migrated, effects="transactional"), Outbox(migrated, source="/shop")
    with pytest.raises(ConfigurationError, match="another database"), boundary.claim("key", tx=there):
        pytest.fail("not here")
    with pytest.raises(ConfigurationError, match="another database"):
        outbox.add(there, "orders.placed", {})


def test_a_file_on_mysql_or_sqlite_as_well(tmp_path: Path, mysql_migrated: str, make: Making) -> None:
    boundary = make(f"sqlite:///{tmp_path}/one.db", effects="transactional")
    make(f"sqlite:///{tmp_path}/other.db")
    for name in (f"{tmp_path}/other.db", ":memory:"):
        refused = pytest.raises(ConfigurationError, match="another database")
        with closing(sqlite3.connect(name)) as tx, refused, boundary.claim("key", tx=tx):
            pytest.fail("not here")
    on_mysql = make(mysql_migrated, effects="transactional")
    away = urlsplit(mysql_migrated)._replace(path="/information_schema").geturl()
    refused = pytest.raises(ConfigurationError, match="another database")
    with closing(mysql_connection(away)) as tx, refused, on_mysql.claim("key", tx=tx):
        pytest.fail("not here")


async def test_in_async_code_too(migrated: str, elsewhere: str, make: Making) -> None:
    engine = create_async_engine(driven(elsewhere, "asyncpg"))
    outbox = Outbox(driven(migrated, "asyncpg"), source="/shop")
    async with engine.begin() as there:
        with pytest.raises(ConfigurationError, match="another database"):
            await outbox.aadd(there, "orders.placed", {})
    await engine.dispose()
    await connect(driven(migrated, "asyncpg")).aclose()


def test_a_transaction_of_sync_code_is_asked_although_the_store_is_for_async_code(
    migrated: str, elsewhere: str, make: Making, kept: Kept
) -> None:
    """A pool or engine of another event loop cannot be asked: what may be elsewhere is refused."""
    url = driven(migrated, "asyncpg")
    engine = create_async_engine(url)
    there, here = psycopg_connection(elsewhere, kept), psycopg_connection(migrated, kept)
    for store in (url, engine):
        with pytest.raises(ConfigurationError, match="Nothing was written"):
            Outbox(store, source="/shop").add(there, "orders.placed", {})
        boundary = make(store, effects="transactional")
        with pytest.raises(ConfigurationError, match="serves async code only"), boundary.claim("key", tx=there):
            pytest.fail("not here")
    Outbox(url, source="/shop").add(here, "orders.placed", {})
    with kept(Session(engine.sync_engine)) as session:
        assert connect(engine).database._leads_to(cast("Any", join(connect(engine), session).place))
    here.rollback()


async def test_a_transaction_of_async_code_is_asked_although_the_store_is_for_sync_code(
    migrated: str, elsewhere: str, make: Making, kept: Kept
) -> None:
    boundary = make(kept(engine_of(migrated)), effects="transactional")
    there, here = [await psycopg.AsyncConnection.connect(url) for url in (elsewhere, migrated)]
    with pytest.raises(ConfigurationError, match="another database"):
        async with boundary.claim("key", tx=there):
            pytest.fail("not here")
    async with boundary.claim("key", tx=here) as claim:
        assert not claim.replayed
    for one in (there, here):
        await one.rollback()
        await one.close()


LEADS = "postgresql://shop@db/shop"


@each_row(
    "other",
    [
        f"{LEADS}?port=6432",
        f"{LEADS}?hostaddr=10.0.0.2",
        f"{LEADS}?user=other",
        f"{LEADS}?search_path=",
        f"{LEADS}?database=other",
        f"{LEADS}?options=-csearch_path%3Dother",
        "postgresql://shop@%2Fvar%2Frun/shop",
    ],
)
def test_a_url_that_may_lead_elsewhere_is_not_judged_by_its_look(other: str) -> None:
    assert identity.of_url("postgresql", other) is None
    assert identity.of_url("postgresql", f"{LEADS}?sslmode=require") == identity.of_url("postgresql", LEADS) is not None


def test_two_addresses_of_this_machine_may_be_two_servers() -> None:
    one, other = (identity.of_url("postgresql", f"postgresql://shop@{host}/shop") for host in ("127.0.0.1", "[::1]"))
    assert one != other


async def test_settings_of_asyncpg_in_the_url_lead_elsewhere(migrated: str, make: Making) -> None:
    with own_database(migrated) as url:
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute("CREATE SCHEMA other")
        connect(f"{url}?options=-csearch_path%3Dother").migrate()
        boundary = make(f"{driven(url, 'asyncpg')}?search_path=other", effects="transactional")
        tx = await psycopg.AsyncConnection.connect(url)
        with pytest.raises(ConfigurationError, match="another database"):
            async with boundary.claim("key", tx=tx):
                pytest.fail("not here")
        await tx.close()
        await boundary.aclose()


def test_a_database_is_asked_once(migrated: str, make: Making, kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    outbox, backend = Outbox(migrated, source="/shop"), connect(migrated)
    with kept(engine_of(migrated)).begin() as tx:
        outbox.add(tx, "orders.placed", {})
        monkeypatch.setattr(backend, "client", lambda: pytest.fail("it was asked again"))
        outbox.add(tx, "orders.placed", {})
        tx.rollback()


def test_stores_of_one_place_are_not_asked_at_all(migrated: str, kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    outbox, backend = Outbox(migrated, source="/shop"), connect(migrated)
    monkeypatch.setattr(backend, "client", lambda: pytest.fail("it was asked"))
    with kept(psycopg.connect(migrated)) as tx:
        outbox.add(tx, "orders.placed", {})
        tx.rollback()
