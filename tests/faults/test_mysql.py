"""The peculiarities of MySQL and MariaDB: locks, snapshots, implicit commits, settings, packets."""

from __future__ import annotations

import asyncio
import random
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import Any

import pymysql
import pytest

import retrysafe.backends.sql.drivers.asyncmy as asyncmy_executor
import retrysafe.backends.sql.drivers.deadline as deadline
import retrysafe.backends.sql.drivers.pool as pools
from retrysafe import (
    ConfigurationError,
    InProgress,
    LeaseLost,
    OutcomeUnknown,
    RetryTransaction,
    StoreUnavailable,
    current,
    wait,
)
from retrysafe.backends import migrations
from retrysafe.backends.driver import run
from retrysafe.backends.registry import connect
from retrysafe.backends.sql.drivers.pooled import InTransaction
from retrysafe.backends.sql.drivers.pymysql import PymysqlDriver
from retrysafe.backends.sql.mysql import MysqlStore, _findings
from retrysafe.protocol.procedures import find
from retrysafe.protocol.records import Filter
from retrysafe.protocol.requests import Query, Rows
from tests.conftest import absent
from tests.faults.conftest import Making
from tests.faults.helpers import (
    DEADLINE,
    NOT_NOW,
    Bank,
    Told,
    ask_sql,
    auntil,
    business_table,
    driven,
    records_of,
    rows_of,
    run_sql,
    seeded,
    unique,
    until,
)
from tests.faults.servers import MariaDB, mariadb_program
from tests.proving.effort import effort
from tests.stores.ageing import mysql_connection
from tests.stores.harnesses.sql import MysqlDialect
from tests.tables import each_row

_executor = partial(InTransaction, PymysqlDriver)

LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")


@pytest.fixture(params=["MariaDB", "MySQL"])
def url(request: pytest.FixtureRequest, mysql_migrated: str) -> Iterator[str]:
    """The server, spoken to as MariaDB is, and as MySQL is."""
    backend = connect(mysql_migrated)
    before = backend.store
    backend.store = MysqlDialect() if request.param == "MySQL" else before
    yield mysql_migrated
    backend.store = before


@pytest.fixture
def shop(mysql_migrated: str) -> Iterator[str]:
    """A business table."""
    with business_table(mysql_migrated) as name:
        yield name


@contextmanager
def session(url: str, level: str = "REPEATABLE READ") -> Iterator[Any]:
    """A connection of a user's own, in a transaction; what is not committed is rolled back."""
    with closing(mysql_connection(url)) as connection:
        connection.query(f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
        yield connection


def place(tx: Any, shop: str, key: str, receipt: str = "receipt") -> None:
    tx.query(f"INSERT INTO {shop} VALUES ('{key}', '{receipt}')")


# ---------------------------------------------------------------- duplicates in the caller's transaction


@pytest.mark.fault(27)
@pytest.mark.parametrize("level", LEVELS)
def test_a_duplicate_waits_for_no_lock_and_spoils_nothing(level: str, url: str, shop: str, make: Making) -> None:
    """27: had it waited, it would be for the transaction of this very thread."""
    boundary = make(url, effects="transactional")
    with session(url, level) as first, session(url, level) as second:
        second.query("SET innodb_lock_wait_timeout = 1")  # the end of a wait
        with boundary.claim("key", tx=first) as claim:
            place(first, shop, "key")
            claim.result = "receipt"
        place(second, shop, "before")
        with pytest.raises(InProgress), boundary.claim("key", tx=second):
            pytest.fail("it is another transaction's")
        place(second, shop, "after")
        with boundary.claim("other", tx=second) as claim:
            claim.result = "other"
        second.commit()
        first.commit()
    assert sorted(key for key, _ in rows_of(url, shop)) == ["after", "before", "key"]
    assert sorted(records_of(url, boundary.name)) == [("completed", 1), ("completed", 1)]


def test_an_uncommitted_answer_is_no_answer(url: str, shop: str, make: Making) -> None:
    """READ UNCOMMITTED shows a result that may still be rolled back, and the work with it."""
    boundary = make(url, effects="transactional")
    with session(url) as first, session(url, "READ UNCOMMITTED") as second:
        with boundary.claim("key", tx=first) as claim:
            place(first, shop, "key")
            claim.result = "receipt"
        with pytest.raises(InProgress), boundary.claim("key", tx=second):
            pytest.fail("it may be rolled back")
        first.rollback()
        with boundary.claim("key", tx=second) as claim:
            assert not claim.replayed
            place(second, shop, "key", "second")
            claim.result = "second"
        second.commit()
        with boundary.claim("key", tx=first) as claim:
            assert (claim.replayed, claim.result) == (True, "second")
    assert rows_of(url, shop) == [("key", "second")]


@pytest.mark.slow
@each_row("store", [MysqlStore, MysqlDialect])
def test_a_duplicate_waits_for_nothing_at_all(store: type[MysqlStore], server: MariaDB, make: Making) -> None:
    """The server counts the waits for locks; this one is nobody else's."""
    boundary = make(server.url, effects="transactional")
    connect(server.url).store = store()
    waits = "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_waits'"
    before = ask_sql(server.url, waits)[0]
    with session(server.url) as first, session(server.url) as second:
        with boundary.claim("key", tx=first) as claim:
            claim.result = 1
        for _ in range(3):
            with pytest.raises(InProgress), boundary.claim("key", tx=second):
                pytest.fail("it is another transaction's")
        first.commit()
        with boundary.claim("key", tx=second) as claim:
            assert claim.replayed
    assert ask_sql(server.url, waits)[0] == before


@each_row("level", ["READ COMMITTED", "REPEATABLE READ"])
def test_after_a_refused_claim_others_can_claim(level: str, url: str, make: Making) -> None:
    """A duplicate that was refused leaves no gap locked, in a table that is one gap.

    And one page: when a page is split, InnoDB turns a lock on a row at the edge into one on the gap.
    """
    run_sql(url, "TRUNCATE TABLE retrysafe_records")
    boundary = make(url, effects="transactional")
    with session(url, level) as first, session(url, level) as second, session(url, level) as third:
        third.query("SET innodb_lock_wait_timeout = 1")
        with boundary.claim("key", tx=first) as claim:
            claim.result = 1
        for _ in range(3):
            with pytest.raises(InProgress), boundary.claim("key", tx=second):
                pytest.fail("it is another transaction's")
        for i in range(20):
            with boundary.claim(f"other {i}", tx=third) as claim:
                claim.result = i
        third.commit()


@pytest.mark.fault(33)
def test_an_old_snapshot_does_not_hide_the_winner(url: str, shop: str, make: Making) -> None:
    """33: REPEATABLE READ shows the transaction what was there when it began."""
    boundary = make(url, effects="transactional")
    with session(url) as late:
        late.query(f"SELECT * FROM {shop}")  # the snapshot
        with session(url) as first:
            with boundary.claim("key", tx=first) as claim:
                place(first, shop, "key")
                claim.result = "receipt"
            first.commit()
        with boundary.claim("key", tx=late) as claim:
            assert (claim.replayed, claim.result) == (True, "receipt")
        late.commit()
    assert rows_of(url, shop) == [("key", "receipt")]


@pytest.mark.fault(33)
def test_an_old_snapshot_does_not_take_over_twice(url: str, shop: str, make: Making) -> None:
    """33: a released key is claimed by one of two transactions that both saw it released."""
    boundary = make(url, effects="transactional")
    with session(url) as tx:
        with suppress(ZeroDivisionError), boundary.claim("key", tx=tx) as claim:
            claim.not_executed()
            raise ZeroDivisionError
        tx.commit()
    assert records_of(url, boundary.name) == [("released", 1)]
    with session(url) as late:
        late.query("SELECT * FROM retrysafe_records LIMIT 1")
        with session(url) as first:
            with boundary.claim("key", tx=first) as claim:
                place(first, shop, "key")
                claim.result = "receipt"
            with pytest.raises(InProgress), boundary.claim("key", tx=late):
                pytest.fail("the first has it")
            first.commit()
        with boundary.claim("key", tx=late) as claim:
            assert (claim.replayed, claim.result) == (True, "receipt")
        late.commit()
    assert rows_of(url, shop) == [("key", "receipt")]


def test_a_replay_holds_up_no_other_replay(url: str, make: Making) -> None:
    boundary = make(url, effects="transactional")
    with boundary.claim("key") as claim:
        claim.result = 7
    with session(url) as one, session(url) as two:
        for tx in (one, two):
            with boundary.claim("key", tx=tx) as claim:
                assert (claim.replayed, claim.result) == (True, 7)


def test_snapshot_isolation_asks_for_the_whole_transaction(mysql_migrated: str, make: Making) -> None:
    """MariaDB 11.6 has it on by default: it will not write what changed since the snapshot."""
    boundary = make(mysql_migrated, effects="transactional")
    with session(mysql_migrated) as late:
        try:
            late.query("SET innodb_snapshot_isolation = ON")
        except pymysql.MySQLError:
            pytest.skip("this server has no innodb_snapshot_isolation")
        late.query("SELECT * FROM retrysafe_records LIMIT 1")
        with boundary.claim("key") as claim:
            claim.result = 1
        with pytest.raises(RetryTransaction), boundary.claim("key", tx=late):
            pytest.fail("it was claimed before")
        late.rollback()
        with boundary.claim("key", tx=late) as claim:
            assert claim.replayed


@pytest.mark.slow
@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
@pytest.mark.parametrize("keys", ["the same", "different"])
def test_fifty_transactions_at_once(
    keys: str, level: str, url: str, shop: str, make: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    """24: every effect once; transactions that claim different keys are never in each other's way."""
    monkeypatch.setattr(deadline, "DEADLINE", 60.0)  # a slow disk writes fifty logs one after the other
    boundary = make(url, effects="transactional")
    got: Counter[str] = Counter()
    start = threading.Barrier(50)

    def caller(number: int) -> None:
        chance = seeded(f"{keys} {number}")
        mine = [f"key {i}" if keys == "the same" else f"key {number} {i}" for i in range(6)]
        chance.shuffle(mine)
        with session(url, level) as tx:
            start.wait(DEADLINE)
            while mine:
                mine += _one(tx, mine.pop(0), chance)

    def _one(tx: Any, key: str, chance: random.Random) -> list[str]:
        try:
            with boundary.claim(key, tx=tx) as claim:
                if claim.replayed:
                    got["replayed"] += 1
                else:
                    place(tx, shop, key)
                    claim.result = key
            if claim.replayed or chance.random() < 0.7:
                tx.commit()
                return []
            tx.rollback()
            got["rolled back"] += 1
        except (InProgress, RetryTransaction) as error:
            got[type(error).__name__] += 1
            tx.rollback()
        return [key]

    with ThreadPoolExecutor(50) as pool:
        list(pool.map(caller, range(50)))
    placed = sorted(key for key, _ in rows_of(url, shop))
    assert placed == sorted(set(placed))
    assert len(placed) == (6 if keys == "the same" else 300)
    assert got["RetryTransaction"] == 0, got
    if keys == "different" and not isinstance(connect(url).store, MysqlDialect):
        assert set(got) == {"rolled back"}  # on MySQL, two of them may meet at one of its 65,536 gates


def test_waiting_duplicates_get_the_result(url: str, make: Making, told: Told) -> None:
    boundary = make(url, effects="transactional", concurrency=wait(DEADLINE))
    with session(url) as first, ThreadPoolExecutor(4) as pool:
        with boundary.claim("key", tx=first) as claim:
            claim.result = "receipt"

        def waiting(_: int) -> tuple[bool, Any]:
            with session(url) as tx, boundary.claim("key", tx=tx) as claim:
                return claim.replayed, claim.result

        waiters = [pool.submit(waiting, i) for i in range(4)]
        told.wait_for("waiting", 4)
        first.commit()
        assert [waiter.result(DEADLINE) for waiter in waiters] == [(True, "receipt")] * 4


# ---------------------------------------------------------------- transactions that end in the middle


ENDINGS: dict[str, Callable[[Any], Any]] = {
    "commit": lambda tx: tx.commit(),
    "DDL, which commits": lambda tx: (
        tx.query("CREATE TEMPORARY TABLE x_ddl (a int) ENGINE=InnoDB")
        or tx.query(f"CREATE TABLE {unique('ddl')} (a int)")
    ),
    "rollback": lambda tx: tx.rollback(),
}


@each_row("ending", ENDINGS)
def test_a_handler_that_ends_the_transaction_is_noticed(ending: str, url: str, make: Making) -> None:
    boundary = make(url, effects="transactional")
    with session(url) as tx:
        with pytest.raises(LeaseLost), boundary.claim("key", tx=tx) as claim:
            ENDINGS[ending](tx)
            claim.result = "too late"
        tx.commit()
    assert records_of(url, boundary.name) == ([] if ending == "rollback" else [("running", 1)])
    with (
        pytest.raises(ConfigurationError if ending == "rollback" else OutcomeUnknown),
        boundary.claim("other") as claim,
    ):
        ENDINGS[ending](claim.tx)
        claim.result = "too late"


def test_claims_may_end_in_the_order_in_which_they_began(url: str, make: Making) -> None:
    """A transaction with several claims, one after the other and one in the other."""
    boundary = make(url, effects="transactional")
    with session(url) as tx:
        with boundary.claim("outer", tx=tx) as outer:
            with boundary.claim("inner") as inner:
                inner.result = 1
            tx.query("SAVEPOINT theirs")
            tx.query("ROLLBACK TO SAVEPOINT theirs")
            outer.result = 2
        with boundary.claim("next", tx=tx) as following:
            following.result = 3
        tx.commit()
    assert records_of(url, boundary.name) == [("completed", 1)] * 3


@pytest.mark.fault(23, 24)
def test_a_deadlock_in_the_handler_is_run_again(mysql_migrated: str, shop: str, make: Making) -> None:
    """23, 24: own transactions are restarted from their beginning."""
    boundary = make(mysql_migrated, effects="transactional")
    place_ = f"INSERT INTO {shop} VALUES ('a', '0'), ('b', '0')"
    run_sql(mysql_migrated, f"ALTER TABLE {shop} MODIFY `key` VARCHAR(20) PRIMARY KEY")
    run_sql(mysql_migrated, place_)
    meeting, ran = threading.Barrier(2), Counter[str]()

    @boundary.once(key="mine")
    def add(mine: str, other: str) -> str:
        ran[mine] += 1
        current().tx.query(f"UPDATE {shop} SET receipt = receipt + 1 WHERE `key` = '{mine}'")
        if ran[mine] == 1 and sum(ran.values()) <= 2:
            meeting.wait(DEADLINE)
        current().tx.query(f"UPDATE {shop} SET receipt = receipt + 1 WHERE `key` = '{other}'")
        return mine

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(add, ("a", "b"), ("b", "a"))) == ["a", "b"]
    assert sum(ran.values()) == 3
    assert sorted(rows_of(mysql_migrated, shop)) == [("a", "2"), ("b", "2")]


@pytest.mark.parametrize("how", ["CONNECTION", "QUERY"])
def test_killed_by_an_administrator(how: str, mysql_migrated: str, shop: str, make: Making) -> None:
    boundary, threads = make(mysql_migrated, effects="transactional"), list[int]()

    @boundary.once(key="key")
    def charge(key: str, *, killed: bool) -> str:
        place(current().tx, shop, key)
        if killed:
            threads.append(thread := current().tx.thread_id())
            if how == "CONNECTION":
                run_sql(mysql_migrated, f"KILL CONNECTION {thread}")
            else:
                _kill_query(mysql_migrated, current().tx, thread)
        return "receipt"

    with pytest.raises((StoreUnavailable, pymysql.OperationalError)):
        charge("key", killed=True)
    assert rows_of(mysql_migrated, shop) == records_of(mysql_migrated, boundary.name) == []
    boundary.close()
    connected = f"SELECT 1 FROM information_schema.processlist WHERE id = {threads[0]}"
    until(lambda: not ask_sql(mysql_migrated, connected)[0])  # it has let its locks go
    again = make(mysql_migrated, effects="transactional", name=boundary.name)
    with again.claim("key") as claim:
        assert not claim.replayed


def _kill_query(url: str, tx: Any, thread: int) -> None:
    killer = threading.Thread(target=until, args=(lambda: _sleeping(url, thread),))
    killer.start()
    tx.query("SELECT * FROM retrysafe_schema WHERE SLEEP(30) = 0 FOR UPDATE")
    killer.join(DEADLINE)


def _sleeping(url: str, thread: int) -> bool:
    sql = f"SELECT 1 FROM information_schema.processlist WHERE id = {thread} AND info LIKE '%SLEEP(30)%'"
    if not ask_sql(url, sql)[0]:
        return False
    run_sql(url, f"KILL QUERY {thread}")
    return True


# ---------------------------------------------------------------- connections


def test_autocommit_is_refused(mysql_migrated: str, make: Making) -> None:
    boundary = make(mysql_migrated, effects="transactional")
    with closing(mysql_connection(mysql_migrated, autocommit=True)) as connection:
        with pytest.raises(ConfigurationError, match="autocommit"), boundary.claim("key", tx=connection):
            pytest.fail("it would commit alone")
        connection.begin()
        with boundary.claim("key", tx=connection) as claim:
            claim.result = 1
        connection.commit()


async def test_autocommit_is_refused_by_asyncmy(mysql_migrated: str, make: Making) -> None:
    import asyncmy

    boundary = make(mysql_migrated, effects="transactional")
    options = connect(mysql_migrated).access.asynchronous.args[0]  # type: ignore[union-attr]
    connection = await asyncmy.connect(**options, autocommit=True)
    with pytest.raises(ConfigurationError, match="autocommit"):
        async with boundary.claim("key", tx=connection):
            pytest.fail("it would commit alone")
    connection.close()


def test_autocommit_is_refused_by_sqlalchemy(mysql_migrated: str, make: Making) -> None:
    from sqlalchemy import create_engine

    engine = create_engine(driven(mysql_migrated, "pymysql"))
    with pytest.raises(ConfigurationError, match="engine in AUTOCOMMIT mode"):
        make(engine.execution_options(isolation_level="AUTOCOMMIT"), effects="transactional")
    boundary = make(engine, effects="transactional")
    refused = pytest.raises(ConfigurationError, match="autocommit")
    with engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        with refused, boundary.claim("key", tx=connection):
            pytest.fail("it would commit alone")
    engine.dispose()


def test_all_own_connections_are_in_use(mysql_migrated: str, make: Making, monkeypatch: pytest.MonkeyPatch) -> None:
    """34: no connection, so no claim and no effect."""
    monkeypatch.setattr(pools, "CHECKOUT", 0.1)
    boundary = make(mysql_migrated, effects="transactional")
    client = connect(mysql_migrated).client()
    held = [client.transaction() for _ in range(pools.MOST_CONNECTIONS)]
    for one in held:
        one.__enter__()
    with pytest.raises(StoreUnavailable, match="connections of the store"), boundary.claim("key"):
        pytest.fail("it has not been claimed")
    for one in held:
        one.__exit__(None, None, None)
    with boundary.claim("key") as claim:
        assert not claim.replayed


async def test_a_cancelled_request_disturbs_no_later_one(mysql_migrated: str) -> None:
    """32: wherever it is cancelled."""
    options = connect(mysql_migrated).access.asynchronous.args[0]  # type: ignore[union-attr]
    client = asyncmy_executor.AsyncmyDriver(options, pools.Size(1))
    for turns in range(1, 12):
        task = asyncio.create_task(client(Query("SELECT 'mine'", {}, writes=False)))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError, StoreUnavailable):
            await task
        assert (await client(Query("SELECT 'yours'", {}, writes=False))).rows == [("yours",)]
    await client.aclose()


@pytest.mark.slow
@each_row("driver", ["pymysql", "asyncmy"])
async def test_a_server_that_never_answers(driver: str, make: Making, monkeypatch: pytest.MonkeyPatch) -> None:
    """18: it accepts the connection, and says nothing."""
    monkeypatch.setattr(deadline, "DEADLINE", 0.1)
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        boundary = make(f"mysql+{driver}://me@127.0.0.1:{silent.getsockname()[1]}/shop")
        with pytest.raises(StoreUnavailable):
            if driver == "pymysql":
                with boundary.claim("key"):
                    pytest.fail("it has not been claimed")
            else:
                async with boundary.claim("key"):
                    pytest.fail("it has not been claimed")
        await boundary.aclose()


@pytest.mark.slow
@each_row("driver", ["pymysql", "asyncmy"])
async def test_a_server_that_falls_silent(
    driver: str, server: MariaDB, make: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    """18: the statement is sent, and no answer comes."""
    boundary = make(driven(server.url, driver))
    await _claim_once(boundary, driver, "before")
    monkeypatch.setattr(deadline, "DEADLINE", 0.2)
    server.signal(signal.SIGSTOP)
    try:
        with pytest.raises(StoreUnavailable):
            await _claim_once(boundary, driver, "during")
    finally:
        server.signal(signal.SIGCONT)
        monkeypatch.undo()
    await _claim_once(boundary, driver, "after")
    await boundary.aclose()


@pytest.mark.slow
@each_row("driver", ["pymysql", "asyncmy"])
async def test_idle_connections_that_the_server_closed(driver: str, server: MariaDB, make: Making) -> None:
    """They are not lent again: a transaction is not asked twice."""
    boundary = make(driven(server.url, driver), effects="transactional")
    await _claim_once(boundary, driver, "before")
    idle = "SELECT id FROM information_schema.processlist WHERE user = 'retrysafe' AND id <> CONNECTION_ID()"
    killed = ask_sql(server.url, idle)[0]
    for (thread,) in killed:
        with suppress(pymysql.MySQLError):  # another test's may be leaving
            run_sql(server.url, f"KILL {thread}")
    await auntil(lambda: not ask_sql(server.url, idle)[0])
    await _claim_once(boundary, driver, "after")
    await boundary.aclose()


async def _claim_once(boundary: Any, driver: str, key: str) -> None:
    if driver == "pymysql":
        with boundary.claim(key) as claim:
            claim.result = key
    else:
        async with boundary.claim(key) as claim:
            claim.result = key


# ---------------------------------------------------------------- the server is killed


@pytest.fixture
def server(own_mariadb: MariaDB, monkeypatch: pytest.MonkeyPatch) -> MariaDB:
    """A server to kill, running and migrated."""
    monkeypatch.setattr(pools, "CHECKOUT", 0.5)
    backend = connect(own_mariadb.url)
    backend.migrate()
    backend.close()
    return own_mariadb


@pytest.mark.slow
def test_transactions_over_kills_of_the_server(server: MariaDB, make: Making) -> None:
    boundary, chance = make(server.url, effects="transactional"), seeded("mariadb kill")
    keys, ran, answers = [f"order-{i}" for i in range(40)], list[str](), dict[str, str]()
    with business_table(server.url) as shop:

        @boundary.once(key="key")
        def charge(key: str) -> str:
            ran.append(key)
            receipt = unique("receipt")
            place(current().tx, shop, key, receipt)
            return receipt

        def worker(left: list[str]) -> None:
            while left:
                key = left.pop(0)
                try:
                    answers[key] = charge(key)
                except (*NOT_NOW, pymysql.MySQLError):
                    left.append(key)

        workers = [threading.Thread(target=worker, args=(keys[i::2],)) for i in range(2)]
        for one in workers:
            one.start()
        for _ in range(3):
            reach = len(ran) + chance.randrange(3, 8)
            until(lambda: len(ran) >= reach or not any(one.is_alive() for one in workers))  # noqa: B023
            server.kill()
            server.start()
        for one in workers:
            one.join(DEADLINE)
        assert dict(rows_of(server.url, shop)) == answers
        assert len(rows_of(server.url, shop)) == len(keys)
        assert {key: charge(key) for key in keys} == answers


@pytest.mark.slow
@pytest.mark.parametrize("driver", ["pymysql", "asyncmy"])
async def test_a_store_that_is_gone_at_completion_returns_the_value(
    driver: str, server: MariaDB, make: Making, told: Told, bank: Bank
) -> None:
    boundary = make(driven(server.url, driver), lease="2s")

    @boundary.once(key="key", operation="charge", shared=True)
    async def acharge(key: str) -> str:
        return _charge()

    @boundary.once(key="key", operation="charge", shared=True)
    def charge(key: str) -> str:
        return _charge()

    def _charge() -> str:
        receipt = bank.charge(current().key_for("bank"))
        if sum(bank.requests.values()) == 1:
            server.kill()
        return receipt

    async def asked() -> str:
        return charge("k") if driver == "pymysql" else await acharge("k")

    receipt = await asked()
    assert told.names["settle_deferred"] == 1
    await auntil(lambda: told.names["result_not_stored"])
    with pytest.raises(StoreUnavailable):
        await asked()
    server.start()
    found: list[str] = []
    while not found:
        try:
            found.append(await asked())
        except NOT_NOW:
            await asyncio.sleep(0.002)
    assert found == [receipt] == list(bank.charges.values())
    assert told.names["takeover"] == 1
    await boundary.aclose()


@pytest.mark.slow
async def test_an_async_transaction_over_a_kill(server: MariaDB, make: Making) -> None:
    boundary = make(driven(server.url, "asyncmy"), effects="transactional")
    inside, killed = asyncio.Event(), asyncio.Event()
    with business_table(server.url) as shop:

        async def charge() -> tuple[bool, Any]:
            async with boundary.claim("key") as claim:
                if not claim.replayed:
                    await claim.tx.query(f"INSERT INTO {shop} VALUES ('key', 'receipt')")
                    inside.set()
                    await killed.wait()
                    claim.result = "receipt"
            return claim.replayed, claim.result

        task = asyncio.create_task(charge())
        await auntil(inside.is_set)
        await asyncio.to_thread(server.kill)
        killed.set()
        with pytest.raises(StoreUnavailable):
            await task
        with pytest.raises(StoreUnavailable):
            await charge()
        await asyncio.to_thread(server.start)
        assert rows_of(server.url, shop) == []
        assert await charge() == (False, "receipt")
        assert await charge() == (True, "receipt")
        assert rows_of(server.url, shop) == [("key", "receipt")]
    await boundary.aclose()


# ---------------------------------------------------------------- settings and schema


@pytest.fixture(scope="module")
def weak_server() -> Iterator[MariaDB]:
    """A server that is set up wrongly."""
    program = mariadb_program()
    if program is None:
        absent("no MariaDB server program")
    settings = ("rollback-on-timeout=ON", "flush-log-at-trx-commit=2")
    server = MariaDB(program, *(f"--innodb-{one}" for one in settings), "--max-allowed-packet=1M")
    yield server
    server.close()


@pytest.mark.slow
def test_a_server_that_would_spoil_transactions_is_refused(weak_server: MariaDB, make: Making) -> None:
    boundary = make(weak_server.url)
    connect(weak_server.url).migrate()
    with pytest.raises(ConfigurationError, match="innodb_rollback_on_timeout is ON"), boundary.claim("key"):
        pytest.fail("refused before the handler")


@pytest.mark.slow
def test_weaker_settings_are_reported(weak_server: MariaDB) -> None:
    backend = connect(weak_server.url)
    backend.migrate()
    client = backend.client()
    found = [finding for ask in backend.store.examine() for finding in ask.parse(client(ask.request))]
    warned = {finding.name for finding in found if finding.level == "warn"}
    assert warned == {"innodb_flush_log_at_trx_commit", "max_allowed_packet"}
    backend.close()


@pytest.mark.slow
def test_a_result_larger_than_a_packet_breaks_no_store(weak_server: MariaDB) -> None:
    """The server hangs up on it; that is said, and the next statement is answered."""
    backend = connect(weak_server.url)
    backend.migrate()
    client = backend.client()
    request = backend.store.read(b"x" * 32).request
    with pytest.raises(StoreUnavailable):
        client(request._replace(params={"key": "00" * 2_000_000}))
    assert client(request).rows == []
    backend.close()


@each_row(
    ("version", "refused"),
    [
        ("10.6.12-MariaDB-log", False),
        ("5.5.5-10.6.12-MariaDB-log", False),
        ("10.5.9-MariaDB", True),
        ("8.0.19", False),
        ("8.4.3-commercial", False),
        ("8.0.18", True),
        ("5.7.44-log", True),
    ],
)
def test_versions(version: str, refused: bool) -> None:
    found = _findings(Rows([(version, 0, 0, 1, 1, 1, 64 << 20, "READ-COMMITTED", "utf8mb4 utf8mb4 utf8mb4", None)], 1))
    assert [finding.name for finding in found if finding.level == "refuse"] == (["version"] if refused else [])


@pytest.mark.slow
def test_a_replica_is_refused(server: MariaDB, make: Making) -> None:
    run_sql(server.url, "SET GLOBAL read_only = ON")
    try:
        with pytest.raises(ConfigurationError, match="read-only"), make(server.url).claim("key"):
            pytest.fail("refused before the handler")
    finally:
        run_sql(server.url, "SET GLOBAL read_only = OFF")


@contextmanager
def new_database(url: str) -> Iterator[str]:
    name = unique("migrating")
    run_sql(url, f"CREATE DATABASE {name}")
    yield f"{url.rsplit('/', 1)[0]}/{name}"
    run_sql(url, f"DROP DATABASE {name}")


def test_a_migration_that_broke_off_is_resumed(mysql_migrated: str, chance: random.Random) -> None:
    """Every statement commits: a crash leaves any number of them done. In `make test` a sample of the numbers."""
    every = migrations.load("mysql")
    for before, broken in enumerate(every):
        earlier = [
            statement for migration in every[:before] for statement in migrations.forward("mysql", migration.version)
        ]
        numbers = range(len(broken.statements) + 1)
        for done in effort(chance.sample(numbers, 2), [*numbers]):
            with new_database(mysql_migrated) as url:
                with closing(mysql_connection(url, autocommit=True)) as one, one.cursor() as cursor:
                    for statement in (*earlier, *broken.statements[:done]):
                        cursor.execute(statement)
                backend = connect(url)
                assert list(backend.migrate()) == list(every[before:])
                assert backend.migrate() == []
                backend.close()
                assert ask_sql(url, "SELECT count(*), max(gate) FROM retrysafe_gates")[0] == [(65536, 65535)]
                assert ask_sql(url, "SELECT count(*) FROM retrysafe_outbox_buckets")[0] == [(64,)]


def test_many_may_migrate_at_once(mysql_migrated: str) -> None:
    with new_database(mysql_migrated) as url:
        backend = connect(url)
        free = "SELECT IS_FREE_LOCK(CONCAT('retrysafe ', LEFT(SHA2(DATABASE(), 256), 32)))"
        with ThreadPoolExecutor(8) as pool:
            applied = list(pool.map(lambda _: backend.migrate(), range(8)))
        assert sorted(migration for one in applied for migration in one) == sorted(migrations.load("mysql"))
        assert ask_sql(url, free)[0] == [(1,)]
        backend.close()


# ---------------------------------------------------------------- the table


def test_text_is_compared_by_its_bytes(mysql_migrated: str, make: Making) -> None:
    boundary = make(mysql_migrated)
    backend = connect(mysql_migrated)
    scopes = ["a", "A", "a ", "á", "ß", "ss", "😀"]
    for scope in scopes:
        with boundary.claim("key", scope=scope) as claim:
            assert not claim.replayed
    for scope in scopes:
        found = run(find(backend.store, Filter(boundary=boundary.name, scope=scope), 10), backend.client())
        assert [record.scope for record in found] == [scope]


def test_sweeping_reads_and_locks_no_live_record(mysql_migrated: str) -> None:
    """80: neither running and unknown ones, nor those that are still remembered."""
    with new_database(mysql_migrated) as url:
        backend = connect(url)
        backend.migrate()
        sql = (
            "INSERT INTO retrysafe_records SELECT UNHEX(SHA2(g.gate, 256)), 'b', '', 'o', '', "
            "ELT(1 + g.gate % 4, 'running', 'unknown', 'completed', 'released'), 'a', 1, 1, 'keyed', 0, 0, 0, "
            "IF(g.gate < 40, 1, 9e15), IF(g.gate < 40, 1, 9e15), 1, NULL, NULL, NULL, NULL FROM retrysafe_gates AS g "
            "WHERE g.gate < 4000"
        )
        assert run_sql(url, sql) == 4000
        run_sql(url, "ANALYZE TABLE retrysafe_records")
        ask = MysqlStore().sweep(15)[0]
        with closing(mysql_connection(url)) as sweeping, closing(mysql_connection(url)) as other:
            other.query("SET innodb_lock_wait_timeout = 1")
            sweeping.query("FLUSH STATUS")
            assert _executor(sweeping)(ask.request).affected == 15
            assert _reads(sweeping) < 100
            live = ask_sql(
                url,
                "SELECT key_hash FROM retrysafe_records WHERE tombstone_until > 1 OR state IN ('running', 'unknown')",
            )
            with other.cursor() as writing:
                free = sum(writing.execute(IF_FREE, key) for key in live[0])
            assert 3980 - 3 <= free <= 3980  # but the first live record of a state, which ends the range
            other.rollback()
            assert _executor(other)(ask.request).affected == 5  # and skips what is locked
            other.rollback()
            sweeping.commit()
        with closing(mysql_connection(url)) as looking:
            looking.query("FLUSH STATUS")
            ask_ = MysqlStore().forgotten(100)[0]
            assert len(_executor(looking)(ask_.request).rows) == 5
            assert _reads(looking) < 100
        backend.close()


IF_FREE = "SELECT 1 FROM retrysafe_records WHERE key_hash = %s FOR UPDATE SKIP LOCKED"


def _reads(connection: Any) -> int:
    """Count the rows that the session has read so far."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read_%'")
        names = ("Handler_read_first", "Handler_read_key", "Handler_read_next", "Handler_read_rnd_next")
        return sum(int(value) for name, value in cursor.fetchall() if name in names)


def test_no_statement_reads_the_whole_table(mysql_migrated: str) -> None:
    """The renewal of many leases, and the removal of archived records, find them by key."""
    from retrysafe.protocol.records import Clocks, Ownership

    with new_database(mysql_migrated) as url:
        backend = connect(url)
        backend.migrate()
        run_sql(
            url,
            "INSERT INTO retrysafe_records SELECT UNHEX(SHA2(g.gate, 256)), 'b', '', 'o', '', 'running', 'a', 1, 1, "
            "'keyed', 9e15, 0, 0, 9e15, 9e15, 1, NULL, NULL, NULL, NULL FROM retrysafe_gates AS g WHERE g.gate < 3000",
        )
        keys = [row[0] for row in ask_sql(url, "SELECT key_hash FROM retrysafe_records LIMIT 20")[0]]
        ownerships = [Ownership(key, "a", 1, Clocks(1, 1, 1), False) for key in keys]
        (ask,) = MysqlStore().renew([one._replace(clocks=Clocks(10**9, 10**9, 10**9)) for one in ownerships])
        with closing(mysql_connection(url, autocommit=True)) as connection:
            connection.query("FLUSH STATUS")
            assert ask.parse(_executor(connection)(ask.request)) == set(keys)
            assert _reads(connection) < 300
            records = [backend.client()(backend.store.read(key).request) for key in keys]
            seen = [backend.store.read(key).parse(rows) for key, rows in zip(keys, records, strict=True)]
            connection.query("FLUSH STATUS")
            (removal,) = MysqlStore().remove([record for record in seen if record is not None])
            assert _executor(connection)(removal.request).affected == 0
            assert _reads(connection) < 300
        backend.close()


def test_a_user_of_other_cursors_and_charsets(mysql_migrated: str, make: Making) -> None:
    from pymysql.cursors import SSDictCursor

    boundary = make(mysql_migrated, effects="transactional")
    result = "\\ ' \" % %s \0 é"
    options: dict[str, Any] = {"cursorclass": SSDictCursor, "sql_mode": "ANSI,NO_BACKSLASH_ESCAPES"}
    for _ in range(2):
        with closing(mysql_connection(mysql_migrated, **options)) as connection:
            with boundary.claim("k'\\", scope="' OR 1 = 1 -- \\", tx=connection) as claim:
                if not claim.replayed:
                    claim.result = result
            connection.commit()
    assert (claim.replayed, claim.result) == (True, result)
