"""The answers of a SQL server instead of success, each made on the real server. FAULTS 23-27, 30-32, 34, 84."""

from __future__ import annotations

import asyncio
import re
import resource
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from psycopg.pq import TransactionStatus

import retrysafe.backends.sql.drivers.pool as pools
import retrysafe.backends.sql.drivers.sqlite as sqlite_executor
from retrysafe import Boundary, InProgress, RetryTransaction, SchemaOutdated, StoreUnavailable, current
from retrysafe.backends.driver import run
from retrysafe.backends.joining import join
from retrysafe.backends.registry import connect
from retrysafe.backends.sql.drivers.psycopg import AsyncPsycopgDriver, PsycopgDriver
from retrysafe.backends.sql.drivers.sqlite import SqliteFile
from retrysafe.backends.sql.sqlite import SqliteStore
from retrysafe.claims.claim import Claim
from retrysafe.claims.codec import JSONCodec
from retrysafe.http.asgi import IdempotencyMiddleware
from retrysafe.protocol.procedures import page, read
from retrysafe.protocol.records import Filter, StoredResult
from retrysafe.protocol.requests import ask
from tests.faults.conftest import Making
from tests.faults.helpers import DEADLINE, Proxy, Told, auntil, driven, forever, reached, rows_of, unique, until
from tests.http.wire import post


def set_to(url: str, **settings: str) -> str:
    """The URL with server settings for its sessions."""
    words = " ".join(f"-c {name}={value.replace(' ', chr(92) + ' ')}" for name, value in settings.items())
    return f"{url}?options={quote(words)}"


def charge_row(table: str, key: str) -> bytes:
    return f"INSERT INTO {table} VALUES ('{key}', 'receipt')".encode()


@pytest.fixture
def account(table: str, migrated: str) -> Callable[[], None]:
    """A row that somebody else can update at once; called, somebody does."""
    with psycopg.connect(migrated, autocommit=True) as connection:
        connection.execute(charge_row(table, "account"))

    def rival() -> None:
        with psycopg.connect(migrated, autocommit=True) as connection:
            connection.execute(f"UPDATE {table} SET receipt = 'rival' WHERE key = 'account'".encode())

    return rival


UPDATE = "UPDATE {} SET receipt = receipt || '+1' WHERE key = 'account'"
SELECT = "SELECT receipt FROM {} WHERE key = 'account'"


@pytest.mark.fault(23)
class TestSerialization:
    """23: 40001, from a row that a rival changed after our snapshot."""

    def test_once_runs_the_whole_own_transaction_again(
        self, migrated: str, table: str, account: Callable[[], None], make: Making, told: Told
    ) -> None:
        boundary = make(set_to(migrated, default_transaction_isolation="serializable"), effects="transactional")
        runs: list[int] = []

        @boundary.once(key="key")
        def add(key: str) -> int:
            tx = current().tx
            runs.append(len(runs))
            tx.execute(SELECT.format(table))
            if len(runs) == 1:
                account()
            tx.execute(charge_row(table, key))
            tx.execute(UPDATE.format(table))
            return len(runs)

        assert add("a") == 2
        assert add("a") == 2
        assert told.names["restarted"] == 1
        assert sorted(rows_of(migrated, table)) == [("a", "receipt"), ("account", "rival+1")]

    @pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
    async def test_once_runs_the_whole_own_transaction_again_async(
        self, driver: str, migrated: str, table: str, account: Callable[[], None], make: Making
    ) -> None:
        isolated = {
            "psycopg": set_to(migrated, default_transaction_isolation="serializable"),
            "asyncpg": driven(migrated, "asyncpg") + "?default_transaction_isolation=serializable",
        }
        boundary = make(isolated[driver], effects="transactional")
        runs: list[int] = []

        @boundary.once(key="key")
        async def add(key: str) -> int:
            tx = current().tx
            runs.append(len(runs))
            await tx.execute(SELECT.format(table))
            if len(runs) == 1:
                account()
            await tx.execute(UPDATE.format(table))
            return len(runs)

        assert await add("a") == 2
        assert await add("a") == 2
        assert rows_of(migrated, table) == [("account", "rival+1")]
        await boundary.aclose()

    def test_a_block_is_told_to_run_again(
        self, migrated: str, table: str, account: Callable[[], None], make: Making
    ) -> None:
        boundary = make(set_to(migrated, default_transaction_isolation="serializable"), effects="transactional")

        def block(*, disturbed: bool) -> bool:
            with boundary.claim("a") as claim:
                claim.tx.execute(SELECT.format(table))
                if disturbed:
                    account()
                claim.tx.execute(UPDATE.format(table))
                claim.result = True
            return not claim.replayed

        with pytest.raises(RetryTransaction) as caught:
            block(disturbed=True)
        assert caught.value.effect_happened == "no"
        assert isinstance(caught.value.__cause__, psycopg.errors.SerializationFailure)
        assert block(disturbed=False)
        assert rows_of(migrated, table) == [("account", "rival+1")]

    def test_the_callers_transaction_is_told_to_run_again_when_our_statement_meets_it(
        self, migrated: str, make: Making
    ) -> None:
        boundary = make(migrated, effects="transactional")
        with psycopg.connect(migrated) as late:
            late.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
            late.execute("SELECT 1")  # its snapshot is older than the record
            with psycopg.connect(migrated) as tx, boundary.claim("a", tx=tx) as claim:
                claim.result = "first"
            with pytest.raises(RetryTransaction), boundary.claim("a", tx=late):
                pytest.fail("it is not ours")
            late.rollback()
            with boundary.claim("a", tx=late) as claim:
                assert (claim.replayed, claim.result) == (True, "first")

    def test_write_skew_between_two_keys_is_run_again(
        self, migrated: str, table: str, make: Making, told: Told
    ) -> None:
        boundary = make(set_to(migrated, default_transaction_isolation="serializable"), effects="transactional")
        both_read, firsts = threading.Barrier(2), {"a": True, "b": True}

        @boundary.once(key="key")
        def number(key: str) -> int:
            tx = current().tx
            count: int = tx.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            if firsts.pop(key, False):
                both_read.wait(DEADLINE)
            tx.execute(f"INSERT INTO {table} VALUES ('{key}', '{count}')")
            return count

        got: dict[str, int] = {}
        callers = [threading.Thread(target=lambda key=key: got.update({key: number(key)})) for key in "ab"]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join(DEADLINE)
        assert sorted(got.values()) == [0, 1]
        assert dict(rows_of(migrated, table)) == {key: str(count) for key, count in got.items()}
        assert told.names["restarted"] >= 1


@pytest.mark.fault(24)
def test_a_deadlock_is_run_again(migrated: str, table: str, make: Making, told: Told) -> None:
    """24: 40P01."""
    boundary = make(set_to(migrated, deadlock_timeout="20ms"), effects="transactional")
    with psycopg.connect(migrated, autocommit=True) as connection:
        connection.execute(charge_row(table, "x"))
        connection.execute(charge_row(table, "y"))
    both_hold, firsts = threading.Barrier(2), {"xy", "yx"}

    @boundary.once(key="order")
    def touch(order: str) -> str:
        first, second = order[0], order[1]
        tx, sql = current().tx, f"UPDATE {table} SET receipt = receipt || '{order} ' WHERE key = %s"
        tx.execute(sql, (first,))
        if order in firsts:
            firsts.discard(order)
            both_hold.wait(DEADLINE)
        tx.execute(sql, (second,))
        return order

    callers = [threading.Thread(target=touch, args=(order,)) for order in ("xy", "yx")]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(DEADLINE)
    assert [receipt.count(order) for _, receipt in rows_of(migrated, table) for order in ("xy", "yx")] == [1] * 4
    assert told.names["restarted"] == 1
    assert told.names["completed"] == 2


@pytest.mark.fault(16, 25)
def test_losing_the_race_for_the_unique_key_reads_the_winner(migrated: str, make: Making) -> None:
    """25: our INSERT waits for a rival's, who then commits its finished record."""
    boundary, copy = make(migrated), unique("copy")
    with boundary.claim("key") as claim:
        claim.result = "winner"
    with psycopg.connect(migrated) as rival, psycopg.connect(migrated, autocommit=True) as watching:
        mine = f"retrysafe_records WHERE boundary = '{boundary.name}'"
        rival.execute(f"CREATE TABLE {copy} AS SELECT * FROM {mine}".encode())
        rival.execute(f"DELETE FROM {mine}".encode())
        rival.commit()
        rival.execute(f"INSERT INTO retrysafe_records SELECT * FROM {copy}".encode())
        got: list[tuple[bool, str]] = []

        def lose() -> None:
            with boundary.claim("key") as claim:
                got.append((claim.replayed, claim.result))

        caller = threading.Thread(target=lose)
        caller.start()
        blocked = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        until(lambda: watching.execute(blocked).rowcount)
        rival.commit()
        caller.join(DEADLINE)
        watching.execute(f"DROP TABLE {copy}".encode())
    assert got == [(True, "winner")]


@pytest.mark.fault(26)
def test_a_statement_timeout_rolls_back(migrated: str, table: str, make: Making, told: Told) -> None:
    """26."""
    boundary = make(set_to(migrated, statement_timeout="150ms"), effects="transactional")

    def work(seconds: int) -> None:
        with boundary.claim("key") as claim:
            claim.tx.execute(charge_row(table, "key"))
            claim.tx.execute(f"SELECT pg_sleep({seconds})")

    with pytest.raises(psycopg.errors.QueryCanceled):
        work(60)
    assert rows_of(migrated, table) == []
    work(0)
    assert rows_of(migrated, table) == [("key", "receipt")]
    decided = {name: count for name, count in told.names.items() if name != "store_request"}
    assert decided == {"received": 2, "started": 2, "rolled_back": 1, "completed": 1}


@pytest.mark.fault(26)
def test_work_that_timed_out_is_rolled_back_although_its_transaction_is_not_aborted(
    migrated: str, table: str, make: Making
) -> None:
    """The handler put a savepoint around the statement: what it did before could still be committed."""
    boundary = make(set_to(migrated, statement_timeout="50ms"), effects="transactional")
    with pytest.raises(psycopg.errors.QueryCanceled), boundary.claim("key") as claim:
        claim.tx.execute(charge_row(table, "key"))
        with claim.tx.transaction():
            claim.tx.execute("SELECT pg_sleep(60)")
    assert rows_of(migrated, table) == []
    with boundary.claim("key") as claim:
        assert not claim.replayed


LOCK_TABLE = "LOCK TABLE retrysafe_records IN SHARE ROW EXCLUSIVE MODE"


@pytest.mark.fault(27)
@pytest.mark.parametrize("effects", ["keyed", "transactional"])
async def test_a_lock_timeout_is_a_503_that_says_when_to_come_back(effects: str, migrated: str, make: Making) -> None:
    """Another session has locked the table of the records, as a migration of it would."""
    ran: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        ran.append(1)
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"made"})

    boundary = make(set_to(migrated, lock_timeout="50ms"), effects=effects)
    with boundary.claim("warm"):
        pass
    guarded = IdempotencyMiddleware(app, boundary, principal="shared")
    with psycopg.connect(migrated) as rival:
        rival.execute(LOCK_TABLE)
        answer = await post(guarded)
    assert (answer.status, answer.code, answer.header("retry-after"), ran) == (503, "store-unavailable", "1", [])
    assert (await post(guarded)).body == b"made"
    await boundary.aclose()


@pytest.mark.fault(27)
@pytest.mark.parametrize("before", ["absent", "completed", "running"])
def test_no_timeout_is_set_in_the_callers_transaction(before: str, migrated: str, make: Making) -> None:
    boundary = make(migrated, effects="transactional")
    with psycopg.connect(migrated) as first, psycopg.connect(migrated) as tx:
        timeouts = "SELECT name, setting FROM pg_settings WHERE name LIKE '%timeout%'"
        mine = dict(tx.execute(timeouts).fetchall())
        if before != "absent":
            with boundary.claim("key", tx=first) as claim:
                claim.result = "first"
        if before == "completed":
            first.commit()
        with suppress(InProgress), boundary.claim("key", tx=tx) as claim:
            assert dict(tx.execute(timeouts).fetchall()) == mine
        assert dict(tx.execute(timeouts).fetchall()) == mine


@pytest.mark.fault(27)
def test_a_lock_timeout_is_an_unavailable_store_and_nothing_ran(migrated: str, make: Making) -> None:
    """27: a rival's uncommitted row is in the way of our INSERT."""
    from retrysafe.protocol import keys

    boundary = make(set_to(migrated, lock_timeout="50ms"))
    lookup = keys.lookup(None, boundary.name, "", boundary.name, "key")
    blocking = "INSERT INTO retrysafe_records SELECT %s,'r','','','','running','r',1,1,'keyed',0,0,0,0,0,1"
    with psycopg.connect(migrated) as rival:
        rival.execute(blocking, (lookup,))
        with pytest.raises(StoreUnavailable, match="lock timeout"), boundary.claim("key"):
            pytest.fail("it has not been claimed")
        rival.rollback()
    with boundary.claim("key") as claim:
        assert not claim.replayed


SESSION_STATE = re.compile(
    r"\b(SET|RESET|LISTEN|NOTIFY|DISCARD|PREPARE|DECLARE|LOAD|TEMP|TEMPORARY|pg_(try_)?advisory_lock\w*|set_config)\b",
)
"""The statements that a pooler in transaction mode would lose or leak (SET is also a word of UPDATE, see below)."""


@pytest.mark.slow
@pytest.mark.fault(30)
@pytest.mark.parametrize("effects", ["keyed", "transactional", "external"])
def test_no_statement_touches_the_session(effects: str, proxy: Proxy, make: Making) -> None:
    """30: PgBouncer in transaction mode."""
    boundary = make(proxy.url, effects=effects, lease="3s", permanent=ValueError)
    with boundary.claim("key") as claim:
        if effects != "transactional":
            _renewed(proxy)
        claim.result = 1
    with boundary.claim("key") as claim:
        assert claim.replayed
    with pytest.raises(ValueError, match="permanent"), boundary.claim("bad"):
        raise ValueError("permanent")
    with pytest.raises(KeyError), boundary.claim("other"):
        raise KeyError("other")
    sent = [re.sub(r"UPDATE retrysafe_records AS r SET", "", sql) for sql in proxy.statements]
    assert len(sent) > 6
    assert [sql for sql in sent if SESSION_STATE.search(sql)] == []
    assert not any("lock_timeout" in sql or "statement_timeout" in sql for sql in sent)


def _renewed(proxy: Proxy) -> None:
    until(lambda: any(sql.startswith("WITH held") for sql in proxy.statements))


@pytest.mark.fault(31)
class TestBusySqlite:
    """31."""

    @pytest.fixture
    def impatient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A shorter bound than five seconds, for the sake of the suite's time."""
        monkeypatch.setattr(SqliteFile.__new__, "__defaults__", ("FULL", 0.3))

    @pytest.mark.parametrize("effects", ["keyed", "transactional"])
    def test_beyond_the_bound(self, impatient: None, effects: str, sqlite_url: str, make: Making) -> None:
        boundary, refusals = make(sqlite_url, effects=effects), list[StoreUnavailable]()

        def work() -> None:
            with pytest.raises(StoreUnavailable, match="locked") as caught, boundary.claim("key"):
                pytest.fail("it has not been claimed")
            refusals.append(caught.value)

        caller = threading.Thread(target=work)
        with holding(sqlite_url):
            caller.start()
            until(lambda: refusals, 10)  # the bound is of 0.3 s
        caller.join(DEADLINE)
        with boundary.claim("key") as claim:
            assert not claim.replayed

    @pytest.mark.parametrize("effects", ["keyed", "transactional"])
    async def test_beyond_the_bound_async(self, impatient: None, effects: str, sqlite_url: str, make: Making) -> None:
        boundary = make(sqlite_url, effects=effects)
        with holding(sqlite_url), pytest.raises(StoreUnavailable, match="locked"):
            async with boundary.claim("key"):
                pytest.fail("it has not been claimed")
        async with boundary.claim("key") as claim:
            assert not claim.replayed
        await boundary.aclose()

    @pytest.mark.parametrize("effects", ["keyed", "transactional"])
    def test_within_the_bound(self, effects: str, sqlite_url: str, make: Making, told: Told) -> None:
        boundary, done = make(sqlite_url, effects=effects), threading.Event()

        def work() -> None:
            with boundary.claim("key"):
                done.set()

        caller = threading.Thread(target=work)
        with holding(sqlite_url):
            caller.start()
            told.wait_for("received")
            self._waits(caller)
            assert not done.is_set()
        reached(done)
        caller.join(DEADLINE)

    @staticmethod
    def _waits(caller: threading.Thread) -> None:
        """Wait until a thread stays in a statement of ours, or has ended."""
        seen = 0

        def stays() -> bool:
            nonlocal seen
            frame = sys._current_frames().get(caller.ident or 0)
            inside = frame is not None and frame.f_code.co_filename == sqlite_executor.__file__
            seen = seen + 1 if inside else 0
            return seen >= 30 or not caller.is_alive()

        until(stays)
        assert caller.is_alive(), "it did not wait"

    async def test_within_the_bound_async(self, sqlite_url: str, make: Making, told: Told) -> None:
        boundary = make(sqlite_url)

        async def work() -> None:
            async with boundary.claim("key"):
                pass

        with holding(sqlite_url):
            caller = asyncio.create_task(work())
            await auntil(lambda: told.names["received"])
            assert not told.names["started"]
        await caller
        assert told.names["completed"] == 1
        await boundary.aclose()

    @staticmethod
    def _keeps_writers_out(url: str, execute: Callable[[Any], Any]) -> None:
        """A transaction that has read may still write: nobody else writes meanwhile, which would spoil its snapshot."""
        run(read(SqliteStore(), b"key"), execute)
        with (
            closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=0, isolation_level=None)) as rival,
            pytest.raises(sqlite3.OperationalError, match="locked"),
        ):
            rival.execute("BEGIN IMMEDIATE")

    def test_a_transaction_is_open_for_writing_before_it_reads(self, sqlite_url: str) -> None:
        backend = connect(sqlite_url)
        with backend.client().transaction() as opened:
            run(ask(SqliteStore().begin()), opened.execute)
            self._keeps_writers_out(sqlite_url, opened.execute)
        backend.close()

    def test_the_callers_transaction_is_open_for_writing_before_it_reads(self, sqlite_url: str) -> None:
        backend = connect(sqlite_url)
        with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as tx:
            execute = join(backend, tx).execute
            assert execute is not None
            self._keeps_writers_out(sqlite_url, execute)
        backend.close()


@contextmanager
def holding(url: str) -> Iterator[None]:
    """Hold the lock of a writer."""
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        yield
        holder.execute("COMMIT")


@pytest.mark.fault(34)
class TestExhaustedPool:
    """34: no connection, so no claim and no effect."""

    @pytest.mark.parametrize("effects", ["keyed", "transactional"])
    def test_a_url(self, effects: str, migrated: str, make: Making, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pools, "CHECKOUT", 0.1)
        boundary = make(migrated, effects=effects)
        with ExitStack() as stack:
            for _ in range(pools.MOST_CONNECTIONS):
                stack.enter_context(connect(migrated).client().transaction())
            with pytest.raises(StoreUnavailable, match="in use"), boundary.claim("key"):
                pytest.fail("it has not been claimed")
        with boundary.claim("key") as claim:
            assert not claim.replayed

    @pytest.mark.slow
    @pytest.mark.parametrize("effects", ["keyed", "transactional"])
    async def test_a_url_async(
        self, effects: str, migrated: str, make: Making, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pools, "CHECKOUT", 0.1)
        boundary = make(migrated, effects=effects)
        async with AsyncExitStack() as stack:
            for _ in range(pools.MOST_CONNECTIONS):
                await stack.enter_async_context(connect(migrated).aclient().transaction())
            with pytest.raises(StoreUnavailable, match="in use"):
                async with boundary.claim("key"):
                    pytest.fail("it has not been claimed")
        async with boundary.claim("key") as claim:
            assert not claim.replayed
        await boundary.aclose()


@pytest.mark.fault(84)
class TestDiskFull:
    """84: no file of this process may grow."""

    @staticmethod
    @contextmanager
    def full(url: str) -> Iterator[None]:
        size = Path(url.removeprefix("sqlite:///") + "-wal").stat().st_size
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    @pytest.mark.fault(84)
    @pytest.mark.parametrize("effects", ["keyed", "transactional"])
    def test_it_is_refused_before_the_effect(self, effects: str, sqlite_url: str, make: Making) -> None:
        boundary = make(sqlite_url, effects=effects)
        with boundary.claim("warm") as claim:
            claim.result = "x" * 5000
        with self.full(sqlite_url), pytest.raises(StoreUnavailable):  # noqa: SIM117
            with boundary.claim("key") as claim:
                assert effects == "transactional", "a leased claim is written before the work"
                claim.result = "x" * 20_000
        with boundary.claim("key") as claim:
            assert not claim.replayed

    @pytest.mark.fault(84)
    async def test_it_is_refused_before_the_effect_async(self, sqlite_url: str, make: Making, told: Told) -> None:
        boundary = make(sqlite_url)

        async def claim(key: str) -> bool:
            async with boundary.claim(key) as claim:
                claim.result = "x" * 5000
            return claim.replayed

        await claim("warm")
        with self.full(sqlite_url):
            refused = await asyncio.gather(*(claim(f"key{i}") for i in range(8)), return_exceptions=True)
        assert {type(answer) for answer in refused} == {StoreUnavailable}
        assert told.names["started"] == 1
        assert await asyncio.gather(*(claim(f"key{i}") for i in range(8))) == [False] * 8
        await boundary.aclose()

    def test_full_at_completion_returns_the_value_and_says_so(self, sqlite_url: str, make: Making, told: Told) -> None:
        boundary = make(sqlite_url)
        full = self.full(sqlite_url)

        @boundary.once(key="key")
        def charge(key: str) -> str:
            full.__enter__()
            return key * 9000

        try:
            assert charge("k") == "k" * 9000
            assert told.names["settle_deferred"] == 1
        finally:
            full.__exit__(None, None, None)
        told.wait_for("completed")


def test_an_error_of_one_write_does_not_silence_the_writer(sqlite_url: str, make: Making) -> None:
    """A value that SQLite cannot bind: its own caller is told, and the next one is served."""

    class Strange(JSONCodec):
        def encode(self, value: Any, annotation: Any) -> StoredResult:
            encoded = super().encode(value, annotation)
            return encoded._replace(codec_version=2**80) if value == "strange" else encoded

        def decode(self, stored: StoredResult, annotation: Any) -> Any:
            return super().decode(stored._replace(codec_version=1), annotation)

    async def main() -> None:
        boundary = make(sqlite_url)

        def claimed(key: str) -> Claim:  # a codec of ours is not checked
            return boundary.entrypoint.open(key, operation="read", fingerprint=b"", codec=Strange())

        with pytest.raises(OverflowError):
            async with claimed("bad") as claim:
                claim.result = "strange"
        async with claimed("good") as claim:
            claim.result = "plain"
        async with claimed("good") as claim:
            assert claim.replayed
        await boundary.aclose()
        done.append(True)

    done: list[bool] = []
    caller = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)  # an uncancellable call could hang
    caller.start()
    caller.join(DEADLINE)
    assert done


@pytest.mark.fault(35)
def test_pages_lose_nothing_to_a_record_that_was_made_early_and_committed_late(migrated: str, make: Making) -> None:
    """No page goes on after the newest record that was seen: an older one may not have been committed yet."""
    boundary, backend = make(migrated, effects="transactional"), connect(migrated)
    mine, keys = Filter(boundary=boundary.name), [f"key {number}" for number in range(20)]

    def pages(size: int, between: Callable[[], Any] = lambda: None) -> list[bytes]:
        found: list[bytes] = []
        cursor: str | None = None
        while True:
            seen = run(page(backend.store, mine, cursor, size), backend.client())
            found += [record.key for record in seen.records]
            cursor = seen.cursor
            if cursor is None:
                return found
            between()

    with psycopg.connect(migrated) as late:
        with boundary.claim("late", tx=late) as claim:
            claim.result = "late"
        for key in keys:
            with boundary.claim(key):
                pass
        before = pages(100)
        assert len(before) == len(keys)
        during = pages(10, late.commit)
    assert len(during) == len(set(during))
    assert set(before) <= set(during)
    assert len(pages(7)) == len(keys) + 1


class TestSchema:
    """Missing and dropped tables."""

    def test_postgresql(self, migrated: str, make: Making) -> None:
        schema = unique("schema")
        url = set_to(migrated, search_path=schema)
        with psycopg.connect(migrated, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {schema}".encode())
            boundary = make(url)
            with pytest.raises(SchemaOutdated, match="retrysafe migrate"), boundary.claim("key"):
                pytest.fail("it has not been claimed")
            backend = connect(url)
            backend.migrate()
            with boundary.claim("key"):
                pass
            connection.execute(f"DROP TABLE {schema}.retrysafe_records".encode())
            with pytest.raises(SchemaOutdated, match="retrysafe migrate"), boundary.claim("key"):
                pytest.fail("it has not been claimed")
            connection.execute(f"DROP SCHEMA {schema} CASCADE".encode())

    @pytest.mark.parametrize("effects", ["keyed", "transactional"])
    def test_sqlite(self, effects: str, sqlite_url: str, make: Making) -> None:
        boundary = make(sqlite_url, effects=effects)
        with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as connection:
            connection.execute("DROP TABLE retrysafe_records")
        with pytest.raises(SchemaOutdated), boundary.claim("key"):
            pytest.fail("it has not been claimed")

    async def test_async(self, sqlite_url: str, make: Making) -> None:
        boundary = make(sqlite_url)
        with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as connection:
            connection.execute("DROP TABLE retrysafe_records")
        with pytest.raises(SchemaOutdated):
            async with boundary.claim("key"):
                pytest.fail("it has not been claimed")
        await boundary.aclose()


@pytest.mark.fault(32)
class TestCancelledTransaction:
    """32: a cancelled handler leaves no open transaction, and its connection serves the next one."""

    @pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
    async def test_postgresql(self, driver: str, migrated: str, table: str, make: Making) -> None:
        name = unique("app")
        boundary = make(driven(migrated, driver) + f"?application_name={name}", effects="transactional")
        working = asyncio.Event()

        async def work(key: str, *, hang: bool) -> bool:
            async with boundary.claim(key) as claim:
                if not claim.replayed:
                    await claim.tx.execute(charge_row(table, key).decode())
                    working.set()
                    if hang:
                        await claim.tx.execute("SELECT pg_sleep(60)")
            return claim.replayed

        running = "SELECT 1 FROM pg_stat_activity WHERE application_name = %s AND query LIKE '%%pg_sleep%%'"
        for _ in range(3):
            task = asyncio.create_task(work("key", hang=True))
            await working.wait()
            with psycopg.connect(migrated, autocommit=True) as watching:  # a cancellation can overtake its statement
                await auntil(lambda: watching.execute(running, (name,)).fetchall())
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            working.clear()
        with psycopg.connect(migrated, autocommit=True) as watching:
            open_ = "SELECT state FROM pg_stat_activity WHERE application_name = %s AND state <> 'idle'"
            await auntil(lambda: not watching.execute(open_, (name,)).fetchall())
        assert rows_of(migrated, table) == []
        assert await work("key", hang=False) is False
        assert rows_of(migrated, table) == [("key", "receipt")]
        await boundary.aclose()

    def test_a_connection_with_an_open_transaction_is_discarded(self, migrated: str) -> None:
        """For any cause that kept it from being rolled back."""
        pool = PsycopgDriver(lambda: psycopg.connect(migrated))
        with pool.borrow() as borrowed:
            left_open = borrowed.connection
            left_open.execute("BEGIN")
        with pool.borrow() as borrowed:
            fresh = borrowed.connection
            assert (left_open.closed, fresh.info.transaction_status) == (True, TransactionStatus.IDLE)
        pool.close()

    async def test_a_connection_of_tasks_with_an_open_transaction_is_discarded(self, migrated: str) -> None:
        pool = AsyncPsycopgDriver(lambda: psycopg.AsyncConnection.connect(migrated))
        async with await pool.borrow() as borrowed:
            left_open = borrowed.connection
            await left_open.execute("BEGIN")
        async with await pool.borrow() as borrowed:
            fresh = borrowed.connection
            assert (left_open.closed, fresh.info.transaction_status) == (True, TransactionStatus.IDLE)
        await pool.aclose()

    def test_an_open_transaction_of_sqlite_is_rolled_back(self, sqlite_url: str) -> None:
        backend = connect(sqlite_url)
        with backend.client().transaction() as opened:
            run(ask(SqliteStore().begin()), opened.execute)
        with holding(sqlite_url):  # nobody else holds the file
            pass
        backend.close()

    @pytest.mark.parametrize("engine", [False, True])
    async def test_sqlite(self, engine: bool, sqlite_url: str, make: Making) -> None:
        from sqlalchemy.ext.asyncio import create_async_engine

        made = create_async_engine(sqlite_url.replace("sqlite:", "sqlite+aiosqlite:")) if engine else None
        boundary: Boundary = make(made or sqlite_url, effects="transactional")
        working = asyncio.Event()

        async def work(*, hang: bool) -> None:
            async with boundary.claim("key") as claim:
                working.set()
                if hang:
                    await forever()
                claim.result = "done"

        task = asyncio.create_task(work(hang=True))
        await working.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with holding(sqlite_url):  # nobody else holds the file
            pass
        await work(hang=False)
        await boundary.aclose()
        if made is not None:
            await made.dispose()
