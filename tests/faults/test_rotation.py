"""Rewriting PostgreSQL partitions under traffic: no key is lost, none runs twice, at any isolation level."""

from __future__ import annotations

import asyncio
import io
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from retrysafe import ConfigurationError, InProgress, RetryTransaction, current, wait
from retrysafe.admin.sweeper import Sweeper, Swept
from retrysafe.backends.driver import run
from retrysafe.backends.registry import connect, forget
from retrysafe.cli import main
from retrysafe.protocol.partition_rewriting import rotate, worth_rotating
from retrysafe.protocol.requests import Copy, Query
from tests.faults.conftest import Making
from tests.faults.helpers import (
    DEADLINE,
    Child,
    business_table,
    driven,
    fill,
    own_database,
    plain,
    reached,
    rows_of,
    run_sql,
    seeded,
    standing,
    unique,
    until,
)
from tests.faults.test_sweeping import waiting
from tests.tables import each_row

LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")
FAR = 10**17


@pytest.fixture
def database(migrated: str) -> Iterator[str]:
    with own_database(migrated, partitions=2) as url:
        yield url


def query(url: str, sql: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(plain(url), autocommit=True) as connection:
        return connection.execute(sql.encode()).fetchall()


def default_isolation(url: str, level: str) -> None:
    """Give the sessions of a database another default, also those of connections that were open."""
    run_sql(url, f"ALTER DATABASE {urlsplit(url).path[1:]} SET default_transaction_isolation = '{level.lower()}'")
    connect(url).close()
    forget(connect(url))


def rotated(url: str) -> Swept:
    if "asyncpg" in url:
        return asyncio.run(Sweeper(url, rotate=True, pause="1ms", observers=()).arun_once())
    return Sweeper(url, rotate=True, pause="1ms", observers=()).run_once()


class HeldSpool(io.BytesIO):
    """A spool that stops its rotation before the table is emptied, until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.go_on = threading.Event(), threading.Event()

    def write(self, data: Any, /) -> int:
        self.reached.set()
        reached(self.go_on)
        return super().write(data)


@contextmanager
def held_rotation(url: str) -> Iterator[Callable[[], int]]:
    """Both partitions are being rewritten, and locked, inside; what is called lets it end, and says how many went."""
    backend = connect(url)
    store: Any = backend.store
    partitions = run(worth_rotating(store), backend.client())
    assert len(partitions) == 2
    spools = [HeldSpool() for _ in partitions]

    def one(number: int) -> int:
        with backend.client().transaction() as opened:
            gone = run(rotate(store, partitions[number], spools[number]), opened.execute)
        assert isinstance(gone, int)
        return gone

    with ThreadPoolExecutor(2) as pool:
        rotations = [pool.submit(one, number) for number in range(2)]
        for spool in spools:
            reached(spool.reached)

        def end() -> int:
            for spool in spools:
                spool.go_on.set()
            return sum(rotation.result(DEADLINE) for rotation in rotations)

        try:
            yield end
        finally:
            end()


@pytest.mark.slow
@pytest.mark.parametrize("driver", ["psycopg", "psycopg async", "asyncpg"])
def test_remembered_records_are_the_same_afterwards(driver: str, database: str) -> None:
    fill(database, 500)
    for number, state in enumerate(("completed", "failed", "released", "running", "unknown")):
        fill(database, 10, state, name="kept")
        run_sql(
            database,
            f"UPDATE retrysafe_records SET tombstone_until = {FAR} WHERE boundary = 'kept' AND state = '{state}'",
        )
        run_sql(database, f"UPDATE retrysafe_records SET scope = 'ü''\t', xact = '{number}' WHERE boundary = 'kept'")
    before = query(database, "SELECT * FROM retrysafe_records WHERE boundary = 'kept' ORDER BY key_hash")
    files = query(database, _FILES)
    url = driven(database, driver.split()[0])
    sweeper = Sweeper(url, rotate=True, pause="1ms", observers=())
    done = sweeper.run_once() if driver == "psycopg" else asyncio.run(sweeper.arun_once())
    assert (done.removed, done.skipped) == (500, ())
    assert query(database, "SELECT * FROM retrysafe_records ORDER BY key_hash") == before
    again = query(database, _FILES)
    assert all(one != other for one, other in zip(files, again, strict=True))
    fill(database, 5)
    assert rotated(database).removed == 0, "too little is forgotten to rewrite everything"
    assert query(database, _FILES) == again


_FILES = "SELECT relfilenode FROM pg_class WHERE relname LIKE 'retrysafe_records_p____' ORDER BY relname"


def test_records_without_results_and_partitions_without_survivors(database: str) -> None:
    fill(database, 50)
    run_sql(database, "UPDATE retrysafe_records SET result = NULL, media_type = NULL")
    assert rotated(database).removed == 50
    assert query(database, "SELECT count(*) FROM retrysafe_records") == [(0,)]


@each_row("level", LEVELS)
def test_a_transaction_that_began_before_a_rotation_runs_nothing_twice(level: str, database: str, make: Making) -> None:
    """Its snapshot is older than the rewritten table. Truncated tables look empty to such a snapshot."""
    done, held, fresh = make(database, effects="transactional"), make(database, lease="60s"), unique()
    for number in range(10):
        with done.claim(f"key{number}") as claim:
            claim.result = number
    with psycopg.connect(database) as tx, held.claim("held"):
        tx.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        tx.execute("SELECT 1")  # takes the snapshot
        with done.claim("later") as claim:
            claim.result = "later"
        fill(database, 200)
        assert rotated(database).removed == 200
        for number in range(10):
            with done.claim(f"key{number}", tx=tx) as claim:
                assert (claim.replayed, claim.result) == (True, number)
        with suppress(RetryTransaction), done.claim("later", tx=tx) as claim:
            assert (claim.replayed, claim.result) == (True, "later")
        with done.claim(fresh, tx=tx) as claim:
            assert not claim.replayed
            claim.result = "fresh"
        with pytest.raises(InProgress), make(database, name=held.name).claim("held"):
            pytest.fail("it runs already")
    with done.claim(fresh) as claim:
        assert (claim.replayed, claim.result) == (True, "fresh")


@each_row("level", LEVELS)
def test_claims_waiting_for_a_rotation_go_on_rightly(level: str, database: str, make: Making) -> None:
    """Claims and a completion wait for the lock, whatever isolation level their sessions have by default.

    Those of the stricter levels wait with a snapshot that is older than the rewritten table.
    """
    default_isolation(database, level)
    boundary = make(database, lease="60s", concurrency=wait(30))
    with boundary.claim("done") as claim:
        claim.result = "done"
    fill(database, 200)
    holding, finish = threading.Event(), threading.Event()

    def use(key: str) -> Any:
        with boundary.claim(key) as claim:
            assert key == "new" or claim.replayed
            if not claim.replayed:
                claim.result = key
        return claim.result

    def work() -> str:
        with boundary.claim("settled") as claim:
            holding.set()
            reached(finish)
            claim.result = "settled"
        return "stored"

    with ThreadPoolExecutor(4) as pool:
        working = pool.submit(work)
        reached(holding)
        with held_rotation(database) as end:
            waiters = [pool.submit(use, key) for key in ("done", "new")]
            until(lambda: waiting(database) == 2)
            finish.set()
            until(lambda: waiting(database) == 3)
            assert end() == 200
        assert working.result(DEADLINE) == "stored"
        assert [waiter.result(DEADLINE) for waiter in waiters] == ["done", "new"]
    assert use("settled") == "settled"


@each_row("level", LEVELS)
def test_records_written_just_before_the_lock_are_kept(level: str, database: str, make: Making) -> None:
    """A rotation must not look at the partition with a snapshot from before it had the lock."""
    default_isolation(database, level)
    boundary = make(database)
    fill(database, 200)
    backend = connect(database)
    store: Any = backend.store
    for number, partition in enumerate(run(worth_rotating(store), backend.client())):
        with backend.client().transaction() as opened:

            def performed(request: Any, number: int = number, perform: Any = opened.execute) -> Any:
                if isinstance(request, Query) and request.sql.startswith("LOCK"):
                    for key in range(8):
                        with boundary.claim(f"late {number} {key}") as claim:
                            claim.result = key
                return perform(request)

            assert isinstance(run(rotate(store, partition, io.BytesIO()), performed), int)
    for number in range(2):
        for key in range(8):
            with boundary.claim(f"late {number} {key}") as claim:
                assert (claim.replayed, claim.result) == (True, key)


def test_a_partition_in_use_is_left_for_later(database: str, make: Making) -> None:
    fill(database, 200)
    boundary = make(database, effects="transactional")
    with psycopg.connect(database) as tx, boundary.claim("key", tx=tx) as claim:
        claim.result = 1
        done = rotated(database)
        assert len(done.skipped) == 1
        assert 0 < done.removed < 200
    rest = rotated(database)
    assert (rest.removed, rest.skipped) == (200 - done.removed, ())


@pytest.mark.slow
@each_row("driver", ["psycopg", "asyncpg"])
def test_a_partition_that_takes_too_long_holds_up_no_other(
    driver: str, migrated: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each row of one takes a minute to be put back; the server ends that after five seconds."""
    with own_database(migrated, partitions=2) as database:
        fill(database, 1000)
        fill(database, 40, "running", name="kept")
        files = query(database, _FILES)
        run_sql(database, f"CREATE FUNCTION drag() RETURNS trigger LANGUAGE plpgsql AS '{_DRAG}'")
        run_sql(database, f"CREATE TRIGGER drag BEFORE INSERT ON {SLOW} FOR EACH ROW EXECUTE FUNCTION drag()")
        command = ["sweep", "--store", driven(database, driver), "--rotate", "--batch", "100", "--pause", "1ms"]
        assert main(command) == 0
        said = capsys.readouterr().out
        again = query(database, _FILES)
        assert said.startswith("removed 1000 records in ")
        assert said.endswith(f" s; swept row by row, because a copy took too long (use more partitions): {SLOW}\n")
        assert [one == other for one, other in zip(files, again, strict=True)] == [True, False]
        assert standing(database) == {}
        assert standing(database, "kept") == {"running": 40}


SLOW = "retrysafe_records_p0000"
_DRAG = "BEGIN PERFORM pg_sleep(60); RETURN NEW; END"


def test_all_statements_of_a_rotation_share_its_time(database: str) -> None:
    """Claims wait for all of them together."""
    fill(database, 200)
    backend = connect(database)
    store: Any = backend.store
    (partition, *_) = run(worth_rotating(store), backend.client())
    bounds: list[int] = []
    with backend.client().transaction() as opened:

        def performed(request: Any) -> Any:
            if isinstance(request, Copy):
                bounds.append(int(opened.execute(Query(_BOUND, {}, writes=False)).rows[0][0]))
            answer = opened.execute(request)
            opened.execute(Query("SELECT pg_sleep(0.05)", {}))
            return answer

        assert isinstance(run(rotate(store, partition, io.BytesIO()), performed), int)
    before, after = bounds
    assert 5000 > before > after > 0


_BOUND = "SELECT setting FROM pg_settings WHERE name = 'statement_timeout'"


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["write", "read"])
def test_a_rotation_that_is_killed_changes_nothing(moment: str, database: str) -> None:
    fill(database, 300)
    fill(database, 20, "running", name="kept")
    before = query(database, "SELECT * FROM retrysafe_records ORDER BY key_hash")
    with Child("rotating", database, moment) as child:
        assert child.ends() == -signal.SIGKILL
    assert query(database, "SELECT * FROM retrysafe_records ORDER BY key_hash") == before
    assert rotated(database).removed == 300
    assert len(query(database, "SELECT 1 FROM retrysafe_records")) == 20


@pytest.mark.slow
@pytest.mark.parametrize("effects", ["keyed", "transactional"])
def test_sixteen_workers_and_rotations_one_after_the_other(effects: str, database: str, make: Making) -> None:
    """Every key has one effect, which is counted in a table without any uniqueness of its own."""
    chance = seeded(f"rotation {effects}")
    keys = [f"key{number}" for number in range(120)]
    removed: list[int] = []
    with business_table(database) as table:
        boundary = make(database, effects=effects, lease="10s", concurrency=wait(60))

        @boundary.once(key="key", operation="charge")
        def charge(key: str) -> str:
            sql = f"INSERT INTO {table} VALUES ('{key}', 'receipt')"
            if effects == "transactional":
                current().tx.execute(sql)
            else:
                run_sql(database, sql)
            return key

        def work(order: list[str]) -> None:
            for key in order:
                assert charge(key) == key

        orders = [chance.sample(keys, len(keys)) for _ in range(16)]
        with ThreadPoolExecutor(16) as pool:
            workers = [pool.submit(work, order) for order in orders]
            while not all(worker.done() for worker in workers) or len(removed) < 3:
                fill(database, 400)
                removed.append(rotated(database).removed)
            for worker in workers:
                worker.result()
        assert Counter(key for key, _ in rows_of(database, table)) == dict.fromkeys(keys, 1)
    assert sum(removed) > 0
    states = Counter(query(database, f"SELECT state FROM retrysafe_records WHERE boundary = '{boundary.name}'"))
    assert states == {("completed",): len(keys)}


# ---------------------------------------------------------------- making partitions


def test_a_plain_table_is_neither_rotated_nor_converted(migrated: str) -> None:
    with own_database(migrated) as url:
        with pytest.raises(ConfigurationError, match="plain table without partitions"):
            rotated(url)
        with pytest.raises(ConfigurationError, match="is one plain table already"):
            connect(url).migrate(partitions=4)


def test_partitions_are_made_once(database: str) -> None:
    assert connect(database).migrate(partitions=2) == []
    assert connect(database).migrate() == []
    with pytest.raises(ConfigurationError, match="has 2 partitions already"):
        connect(database).migrate(partitions=4)


@each_row("count", [0, 1, 3, 2048])
def test_a_number_of_partitions_that_cannot_be_halved_is_refused(count: int, database: str) -> None:
    with pytest.raises(ConfigurationError, match="power of two"):
        connect(database).migrate(partitions=count)


def test_only_postgresql_has_partitions(sqlite_url: str) -> None:
    with pytest.raises(ConfigurationError, match="is for PostgreSQL"):
        connect(sqlite_url).migrate(partitions=4)


def test_the_same_key_is_unique_across_partitions(database: str) -> None:
    fill(database, 50)
    with pytest.raises(psycopg.errors.UniqueViolation):
        run_sql(database, "INSERT INTO retrysafe_records SELECT * FROM retrysafe_records")
