"""Everything through a real PgBouncer in transaction mode, whose two server connections change hands. FAULTS 30.

It gives every transaction the other server connection, and follows no prepared statement: what a driver prepares by
name after a few claims is unknown in the next one, or is another client's statement by that name.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from retrysafe import Boundary, ConfigurationError, InProgress, StoreUnavailable, current, wait
from retrysafe.admin.archive import JsonLines
from retrysafe.admin.sweeper import Sweeper
from retrysafe.backends.registry import connect, forget
from retrysafe.messaging import Inbox, InboxMessage, Outbox
from retrysafe.messaging.brokers.memory.publisher import AsyncMemoryPublisher, MemoryPublisher
from retrysafe.messaging.relay.operator import OutboxOperator
from retrysafe.messaging.relay.relay import Relay
from tests.django.aliases import add_alias, remove_alias
from tests.faults.conftest import Making
from tests.faults.helpers import (
    DEADLINE,
    Told,
    auntil,
    driven,
    fill,
    own_database,
    records_of,
    renewals_of,
    rows_of,
    until,
)
from tests.faults.servers import PgBouncer
from tests.messaging.inboxes import delivery, envelope
from tests.tables import each_row

pytestmark = pytest.mark.fault(30)

CALLERS = 20
EFFECTS = ["keyed", "transactional"]


@pytest.fixture
def pooled(pgbouncer: PgBouncer, migrated: str) -> Any:
    """A pool whose connections prepare nothing: this PgBouncer would not follow them."""
    with ConnectionPool(
        pgbouncer.url, kwargs={"prepare_threshold": None}, min_size=0, max_size=CALLERS, open=True
    ) as pool:
        yield pool


@pytest.mark.slow
@pytest.mark.parametrize("effects", EFFECTS)
def test_many_threads_on_two_server_connections(
    effects: str, pooled: Any, migrated: str, table: str, make: Making
) -> None:
    boundary = make(pooled, effects=effects, concurrency=wait(DEADLINE))

    @boundary.once(key="key")
    def charge(key: str) -> str:
        sql = f"INSERT INTO {table} VALUES ('{key}', 'receipt')".encode()
        if effects == "transactional":
            current().tx.execute(sql)
        else:
            with psycopg.connect(migrated, autocommit=True) as elsewhere:
                elsewhere.execute(sql)
        return f"receipt of {key}"

    def caller(number: int) -> list[str]:
        return [charge(f"key {(number + i) % 12}") for i in range(12)]

    with ThreadPoolExecutor(CALLERS) as callers:
        answers = [answer for answers in callers.map(caller, range(CALLERS)) for answer in answers]
    assert len(answers) == 12 * CALLERS
    assert len(set(answers)) == 12
    assert sorted(rows_of(migrated, table)) == sorted((f"key {i}", "receipt") for i in range(12))
    assert set(records_of(migrated, boundary.name)) == {("completed", 1)}


@pytest.mark.slow
def test_a_key_that_is_claimed_in_a_transaction_is_claimed_for_every_session(pooled: Any, make: Making) -> None:
    """The gate is the transaction's, not the session's, which the next client will have."""
    boundary = make(pooled, effects="transactional")
    with boundary.claim("key") as first:
        with pytest.raises(InProgress), pooled.connection() as other, boundary.claim("key", tx=other):
            pytest.fail("it is the first one's")
        first.result = "first"
    for _ in range(4):  # whichever server connection it is
        with pooled.connection() as other, boundary.claim("key", tx=other) as again:
            assert (again.replayed, again.result) == (True, "first")


@pytest.mark.slow
def test_a_rolled_back_claim_leaves_nothing_in_the_session(pooled: Any, make: Making) -> None:
    boundary = make(pooled, effects="transactional")
    session = "SELECT pg_backend_pid()"

    def fail() -> int:
        with pytest.raises(ZeroDivisionError), boundary.claim("key") as claim:
            used: int = claim.tx.execute(session).fetchone()[0]
            raise ZeroDivisionError
        return used

    first = fail()
    with pooled.connection() as one, pooled.connection() as other:  # both server connections
        free = next(held for held in (one, other) if held.execute(session).fetchone()[0] != first)
        free.commit()
        assert fail() != first


@pytest.mark.slow
def test_leases_are_renewed(pooled: Any, migrated: str, make: Making, told: Told) -> None:
    boundary = make(pooled, lease="3s")
    with ExitStack() as stack:
        claims = [stack.enter_context(boundary.claim(f"key {i}")) for i in range(6)]
        until(lambda: all(renewals_of(migrated, claim.attempt_id) >= 2 for claim in claims))
    assert told.names["completed"] == 6
    assert "lease_lost" not in told.names


MANY = 12
"""Claims after which every driver has prepared whatever it will, on both server connections."""


class Shop:
    """Claims many keys, one after another, and writes for each in the transaction, if there is one."""

    def __init__(self, migrated: str, table: str) -> None:
        self._url, self._table = migrated, table

    def _write(self, key: str) -> str:
        return f"INSERT INTO {self._table} VALUES ('{key}', 'receipt')"

    def sell(self, boundary: Boundary, write: Callable[[Any, str], object] | None, tx: Any = nullcontext) -> None:
        """Claim them on sync code; ``write`` performs a statement on the transaction."""
        for key in self._keys:
            with tx() as joined, boundary.claim(key, **({} if joined is None else {"tx": joined})) as claim:
                if write is not None:
                    write(claim.tx, self._write(key))
                claim.result = key
            if key in self._repeated:
                with boundary.claim(key) as again:
                    assert again.replayed
        self._judge(boundary, written=write is not None)

    async def asell(self, boundary: Boundary, write: Callable[[Any, str], Any] | None, tx: Any = nullcontext) -> None:
        """The same for async code."""
        for key in self._keys:
            async with tx() as joined, boundary.claim(key, **({} if joined is None else {"tx": joined})) as claim:
                if write is not None:
                    await write(claim.tx, self._write(key))
                claim.result = key
            if key in self._repeated:
                async with boundary.claim(key) as again:
                    assert again.replayed
        self._judge(boundary, written=write is not None)

    @property
    def _keys(self) -> list[str]:
        return [f"key {i:02}" for i in range(MANY)]

    @property
    def _repeated(self) -> list[str]:
        """Keys that are claimed again: a replay is one statement, after which claims are on the other connection."""
        return self._keys[::3]

    def _judge(self, boundary: Boundary, *, written: bool) -> None:
        assert records_of(self._url, boundary.name) == [("completed", 1)] * MANY
        assert sorted(rows_of(self._url, self._table)) == [(key, "receipt") for key in self._keys if written]


@pytest.fixture
def shop(migrated: str, table: str) -> Shop:
    return Shop(migrated, table)


def _by_driver(tx: Any, sql: str) -> Any:
    return tx.execute(sql)


def _by_sqlalchemy(tx: Any, sql: str) -> Any:
    return tx.exec_driver_sql(sql)


WRITES: dict[str, Any] = {"keyed": None, "transactional": _by_driver}


@pytest.mark.parametrize("effects", EFFECTS)
class TestNothingIsPreparedByName:
    """A user gives what he gives for PostgreSQL itself."""

    def test_a_url(self, effects: str, pgbouncer: PgBouncer, make: Making, shop: Shop, told: Told) -> None:
        shop.sell(make(pgbouncer.url, effects=effects), WRITES[effects])
        assert "result_not_stored" not in told.names

    @pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
    async def test_a_url_for_tasks(
        self, driver: str, effects: str, pgbouncer: PgBouncer, make: Making, shop: Shop, told: Told
    ) -> None:
        boundary = make(driven(pgbouncer.url, driver), effects=effects)
        await shop.asell(boundary, WRITES[effects])
        assert "result_not_stored" not in told.names
        await boundary.aclose()

    def test_a_pool_as_it_comes(self, effects: str, pgbouncer: PgBouncer, make: Making, shop: Shop) -> None:
        with ConnectionPool(pgbouncer.url, min_size=0, max_size=2, open=True) as pool:
            shop.sell(make(pool, effects=effects), WRITES[effects])

    async def test_an_async_pool_as_it_comes(
        self, effects: str, pgbouncer: PgBouncer, make: Making, shop: Shop
    ) -> None:
        async with AsyncConnectionPool(pgbouncer.url, min_size=0, max_size=2, open=False) as pool:
            boundary = make(pool, effects=effects)
            await shop.asell(boundary, WRITES[effects])
            await boundary.aclose()

    def test_an_engine_as_it_comes(self, effects: str, pgbouncer: PgBouncer, make: Making, shop: Shop) -> None:
        engine = create_engine(driven(pgbouncer.url, "psycopg"))
        shop.sell(make(engine, effects=effects), WRITES[effects] and _by_sqlalchemy)
        engine.dispose()

    def test_an_alias_of_django_that_prepares(
        self, effects: str, pgbouncer: PgBouncer, make: Making, shop: Shop
    ) -> None:
        place = {
            "HOST": "127.0.0.1",
            "CONN_MAX_AGE": None,
            "PORT": pgbouncer.port,
            "OPTIONS": {"prepare_threshold": 2, "server_side_binding": True},
        }
        alias = add_alias("postgresql", **place)
        write: Any = WRITES[effects] and (lambda tx, sql: tx.cursor().execute(sql))
        shop.sell(make(alias, effects=effects), write)
        remove_alias(alias)

    @pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
    async def test_an_async_engine(
        self, driver: str, effects: str, pgbouncer: PgBouncer, make: Making, shop: Shop
    ) -> None:
        engine = create_async_engine(
            driven(pgbouncer.url, driver), connect_args=UNPREPARED if driver == "asyncpg" else {}
        )
        boundary = make(engine, effects=effects)
        await shop.asell(boundary, WRITES[effects] and _by_sqlalchemy)
        await boundary.aclose()
        await engine.dispose()

    async def test_an_async_engine_with_names_that_are_never_used_again(
        self, effects: str, pgbouncer: PgBouncer, make: Making, shop: Shop
    ) -> None:
        """As SQLAlchemy's documentation has it for PgBouncer."""
        arguments = {
            "statement_cache_size": 0,
            "prepared_statement_cache_size": 0,
            "prepared_statement_name_func": lambda: f"a_{uuid.uuid4()}",
        }
        engine = create_async_engine(driven(pgbouncer.url, "asyncpg"), connect_args=arguments)
        boundary = make(engine, effects=effects)
        await shop.asell(boundary, WRITES[effects] and _by_sqlalchemy)
        await boundary.aclose()
        await engine.dispose()


UNPREPARED = {
    "statement_cache_size": 0,
    "prepared_statement_cache_size": 0,
    "prepared_statement_name_func": lambda: "",
}


def test_the_callers_connection_as_it_comes(pgbouncer: PgBouncer, make: Making, shop: Shop) -> None:
    with psycopg.connect(pgbouncer.url) as tx:
        shop.sell(make(pgbouncer.url, effects="transactional"), _by_driver, _on(tx))


async def test_the_callers_async_connection_as_it_comes(pgbouncer: PgBouncer, make: Making, shop: Shop) -> None:
    async with await psycopg.AsyncConnection.connect(pgbouncer.url) as tx:
        boundary = make(pgbouncer.url, effects="transactional")
        await shop.asell(boundary, _by_driver, _aon(tx))
        await boundary.aclose()


def _on(connection: Any) -> Callable[[], AbstractContextManager[Any]]:
    """Transactions on a connection."""

    @contextmanager
    def transaction() -> Iterator[Any]:
        with connection.transaction():
            yield connection

    return transaction


def _aon(connection: Any) -> Callable[[], AbstractAsyncContextManager[Any]]:
    """The same for async code."""

    @asynccontextmanager
    async def transaction() -> AsyncIterator[Any]:
        async with connection.transaction():
            yield connection

    return transaction


class TestNamesOfAsyncpg:
    """An open connection of asyncpg cannot stop preparing: it is refused before anything ran."""

    @pytest.mark.parametrize("effects", EFFECTS)
    async def test_of_a_pool(self, effects: str, pgbouncer: PgBouncer, make: Making) -> None:
        async with asyncpg.create_pool(pgbouncer.url, min_size=0, max_size=2) as pool:
            await _refused(make(pool, effects=effects))

    @pytest.mark.parametrize("effects", EFFECTS)
    async def test_of_an_engine(self, effects: str, pgbouncer: PgBouncer, make: Making) -> None:
        engine = create_async_engine(driven(pgbouncer.url, "asyncpg"))
        await _refused(make(engine, effects=effects))
        await engine.dispose()

    async def test_of_the_callers_connection(self, pgbouncer: PgBouncer, make: Making) -> None:
        tx = await asyncpg.connect(pgbouncer.url)
        boundary = make(driven(pgbouncer.url, "asyncpg"), effects="transactional")
        async with tx.transaction():
            await _refused(boundary, tx=tx)
        await tx.close()


async def _refused(boundary: Boundary, **joined: Any) -> None:
    with pytest.raises(ConfigurationError, match="statement_cache_size=0"):
        async with boundary.claim("key", **joined):
            pytest.fail("nothing runs")
    await boundary.aclose()


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_a_setting_that_a_pooler_does_not_take_is_refused(
    driver: str, pgbouncer: PgBouncer, make: Making
) -> None:
    setting = "?options=-c%20statement_timeout%3D5s" if driver == "psycopg" else "?statement_timeout=5000"
    boundary = make(driven(pgbouncer.url, driver) + setting)
    with pytest.raises(ConfigurationError, match="leave it out of store="):
        async with boundary.claim("key"):
            pytest.fail("nothing runs")
    await boundary.aclose()


def test_direct_connections_go_on_preparing(migrated: str, make: Making, shop: Shop) -> None:
    """It is worth half the time of a claim."""
    with psycopg.connect(migrated) as tx:
        shop.sell(make(migrated, effects="transactional"), _by_driver, _on(tx))
        named = tx.execute("SELECT count(*) FROM pg_prepared_statements").fetchone()
    assert named is not None
    assert named[0] >= 2


# ---------------------------------------------------------------- beside claims


@pytest.fixture
def database(migrated: str, pgbouncer: PgBouncer) -> Iterator[str]:
    """A database of the test's own, through PgBouncer from its first table on."""
    with own_database(migrated, migrated=False) as url:
        behind = pgbouncer.before(url)
        yield behind
        backend = connect(behind)
        backend.close()
        forget(backend)


@each_row("hold", ["transaction", "lease"])
def test_an_outbox_its_relay_and_its_operator(hold: Any, database: str) -> None:
    connect(database).migrate()
    outbox, publisher = Outbox(database, source="/shop", notify=True), MemoryPublisher()
    ids = _written(outbox, database)
    relay = Relay(database, publisher, hold=hold, batch=2, keep_published=True, observers=())
    while relay.run_once().published:
        pass
    assert sorted(one.id for one in publisher.published) == sorted(ids)
    operator = OutboxOperator(database, observers=(), actor="test")
    assert [operator.count() for _ in range(MANY)] == [{}] * MANY


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_a_relay_on_a_loop(driver: str, database: str) -> None:
    connect(database).migrate()
    ids, publisher = _written(Outbox(database, source="/shop"), database), AsyncMemoryPublisher()
    relay = Relay(driven(database, driver), publisher, batch=2, observers=())
    while (await relay.arun_once()).published:
        pass
    assert sorted(one.id for one in publisher.published) == sorted(ids)
    await connect(driven(database, driver)).aclose()


def _written(outbox: Outbox, url: str) -> list[str]:
    with psycopg.connect(url) as tx:
        return [outbox.add(tx, "orders", n, key=f"key {n}").id for n in range(3 * MANY)]


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_an_inbox(driver: str, database: str, make: Making) -> None:
    connect(database).migrate()
    boundary = make(driven(database, driver), effects="transactional")
    inbox, applied = Inbox(boundary), list[str]()

    @inbox.handler("stock")
    async def one(message: InboxMessage[Any]) -> None:
        if await inbox.aapply_if_newer(message.tx, "entity", int(message.envelope.id)):
            applied.append(message.envelope.id)

    @inbox.set_handler("stock, in sets", max_batch=3)
    async def several(messages: list[InboxMessage[Any]]) -> None:
        applied.extend(message.envelope.id for message in messages)

    for n in range(MANY):
        for _ in range(2):
            await one.ahandle(envelope(n + 1))
    for _ in range(2):
        await several.ahandle_many([delivery(n + 1) for n in range(3 * MANY)])
    assert applied == [str(n + 1) for n in range(MANY)] + [str(n + 1) for n in range(3 * MANY)]
    await boundary.aclose()


@pytest.mark.slow
@pytest.mark.parametrize("colour", ["psycopg", "asyncpg"])
def test_migrating_sweeping_archiving_and_rotating(colour: str, database: str, make: Making, tmp_path: Path) -> None:
    assert connect(database).migrate(2)
    boundary = make(database)
    with ExitStack() as stack:
        for n in range(MANY):
            stack.enter_context(boundary.claim(f"key {n}"))
        fill(database, 2 * MANY)
        archive = JsonLines(tmp_path / "archive")
        assert _swept(driven(database, colour), batch=5, archive=archive).archived == 2 * MANY
        fill(database, 1000)
        assert _swept(driven(database, colour), rotate=True).removed == 1000
        assert records_of(database, boundary.name) == [("running", 1)] * MANY


def _swept(url: str, **options: Any) -> Any:
    sweeper = Sweeper(url, pause="1ms", observers=(), **options)
    return asyncio.run(sweeper.arun_once()) if "asyncpg" in url else sweeper.run_once()


def test_nobody_is_listened_to_through_it(pgbouncer: PgBouncer) -> None:
    """Notifications to the session that listens end at PgBouncer."""
    relay = Relay(pgbouncer.url, MemoryPublisher(), listen=pgbouncer.url, observers=())
    with pytest.raises(ConfigurationError, match="the URL of PostgreSQL itself"):
        relay.run_once()
    with pytest.raises(ConfigurationError, match="the URL of PostgreSQL itself"), relay:
        pytest.fail("it does not run")


async def test_nobody_is_listened_to_through_it_from_a_loop(pgbouncer: PgBouncer) -> None:
    relay = Relay(pgbouncer.url, AsyncMemoryPublisher(), listen=pgbouncer.url, observers=())
    with pytest.raises(ConfigurationError, match="the URL of PostgreSQL itself"):
        await relay.arun_once()
    with pytest.raises(ConfigurationError, match="the URL of PostgreSQL itself"):
        async with relay:
            pytest.fail("it does not run")


@pytest.mark.parametrize("effects", EFFECTS)
@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_many_tasks_on_two_server_connections(
    driver: str, effects: str, pgbouncer: PgBouncer, migrated: str, make: Making, told: Told
) -> None:
    async with AsyncExitStack() as stack:
        pool: Any = await stack.enter_async_context(_unprepared(driver, pgbouncer.url))
        boundary: Boundary = make(pool, effects=effects, concurrency=wait(DEADLINE))
        ran: list[str] = []

        async def charge(key: str) -> Any:
            while True:
                with suppress(StoreUnavailable):
                    async with boundary.claim(key) as claim:
                        if not claim.replayed:
                            ran.append(key)
                            claim.result = f"receipt of {key}"
                    return claim.result

        answers = await asyncio.gather(*(charge(f"key {i % 12}") for i in range(6 * CALLERS)))
        assert len(set(answers)) == 12
        assert sorted(ran) == sorted(set(ran))
        await boundary.aclose()
    assert set(records_of(migrated, boundary.name)) == {("completed", 1)}
    assert "lease_lost" not in told.names


@pytest.mark.slow
@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_leases_of_tasks_are_renewed(
    driver: str, pgbouncer: PgBouncer, migrated: str, make: Making, told: Told
) -> None:
    async with AsyncExitStack() as stack:
        boundary = make(await stack.enter_async_context(_unprepared(driver, pgbouncer.url)), lease="6s")
        async with boundary.claim("a") as a, boundary.claim("b") as b:
            for claim in (a, b):
                await auntil(lambda: renewals_of(migrated, claim.attempt_id) >= 2)  # noqa: B023 - awaited here
        await boundary.aclose()
    assert told.names["completed"] == 2
    assert "lease_lost" not in told.names


def _unprepared(driver: str, url: str) -> Any:
    if driver == "asyncpg":
        return asyncpg.create_pool(url, statement_cache_size=0, min_size=0, max_size=CALLERS)
    kwargs = {"prepare_threshold": None}
    return AsyncConnectionPool(url, kwargs=kwargs, min_size=0, max_size=CALLERS, open=False)
