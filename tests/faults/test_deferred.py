"""Outcomes that a store does not take at once are put again until the lease ends: recorded late, or given up."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import psycopg
import pytest

from retrysafe import Boundary
from retrysafe.backends.redis.client import answer_of
from retrysafe.claims import deferred
from retrysafe.claims.deferred import Deferred
from retrysafe.claims.heartbeat import LoopHeartbeat, ThreadHeartbeat, clock
from retrysafe.errors import StoreUnavailable
from retrysafe.protocol.backoff import Backoff
from retrysafe.protocol.requests import Program
from tests.conftest import absent
from tests.faults.conftest import Making
from tests.faults.helpers import ROOT, Told, auntil, driven, own_database, records_of, run_sql, until
from tests.faults.http_proxy import HttpProxy
from tests.faults.redis_servers import Server, installed
from tests.tables import each_row

LEASE = "60s"
"""Longer than any test."""


class Trouble:
    """A store that takes nothing for a while; ``url`` leads to it."""

    def __init__(self, url: str, begin: Callable[[], Any], end: Callable[[], Any]) -> None:
        self.url = url
        self.begin = begin
        self.end = end


@contextmanager
def _locked_file(path: Path) -> Iterator[Trouble]:
    """SQLite: another writer keeps the file for longer than anybody waits."""
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    yield Trouble(f"sqlite:///{path}?busy=0.02s", lambda: other.execute("BEGIN IMMEDIATE"), lambda: other.rollback())
    other.close()


@contextmanager
def _refusing_postgresql(server: str) -> Iterator[Trouble]:
    """PostgreSQL: every write fails for want of room."""
    with own_database(server) as url, psycopg.connect(url, autocommit=True) as admin:
        admin.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'no room' USING ERRCODE = '53100'; END $$"
        )
        yield Trouble(
            url,
            lambda: admin.execute(
                "CREATE TRIGGER refuse BEFORE UPDATE ON retrysafe_records FOR EACH ROW EXECUTE FUNCTION refuse()"
            ),
            lambda: admin.execute("DROP TRIGGER refuse ON retrysafe_records"),
        )


@contextmanager
def _redis_without_replicas() -> Iterator[Trouble]:
    """Redis: it wants more replicas than it has."""
    if not installed():
        absent("no redis-server to start")
    server = Server("--appendonly", "yes")
    try:
        yield Trouble(
            server.url,
            lambda: server.client.config_set("min-replicas-to-write", 1),
            lambda: server.client.config_set("min-replicas-to-write", 0),
        )
    finally:
        server.close()


@pytest.fixture(params=["sqlite", "psycopg", "asyncpg", "redis", "dynamodb"])
def trouble(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Trouble]:
    """A store that can be troubled."""
    kind = request.param
    if kind == "dynamodb":
        proxy: HttpProxy = request.getfixturevalue("http_proxy")

        def fate(told: Any) -> Callable[[], None]:
            return lambda: setattr(proxy, "fates", lambda operation, arguments: told)

        from tests.stores.harnesses.dynamodb import DYNAMODB_TABLE

        yield Trouble(proxy.url(DYNAMODB_TABLE, ""), fate("gateway timeout"), fate("through"))
    elif kind == "redis":
        with _redis_without_replicas() as made:
            yield made
    elif kind == "sqlite":
        with _locked_file(tmp_path / "records.db") as made:
            yield made
    else:
        with _refusing_postgresql(request.getfixturevalue("migrated")) as made:
            made.url = driven(made.url, kind)
            yield made


@pytest.fixture
def troubled_file(tmp_path: Path) -> Iterator[Trouble]:
    """A SQLite file that can be troubled."""
    with _locked_file(tmp_path / "records.db") as made:
        yield made


def file_of(trouble: Trouble) -> str:
    """Its URL without options."""
    return trouble.url.partition("?")[0]


@pytest.fixture
def never(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is put again before the lease ends, but by who closes."""
    monkeypatch.setattr(deferred, "SETTLING", Backoff(1e9, 1e9))
    monkeypatch.setattr("random.random", lambda: 1.0)


@pytest.mark.slow
@pytest.mark.fault(18)
async def test_a_result_is_recorded_when_the_trouble_is_over(trouble: Trouble, make: Making, told: Told) -> None:
    boundary = make(trouble.url, lease=LEASE)
    async with boundary.claim("key") as claim:
        trouble.begin()
        claim.result = "done"
    assert claim.result == "done"
    assert (told.names["settle_deferred"], told.names["completed"]) == (1, 0)
    trouble.end()
    await auntil(lambda: told.names["completed"])
    async with boundary.claim("key") as claim:
        assert (claim.replayed, claim.result) == (True, "done")
    assert not {"result_not_stored", "lease_lost", "takeover"} & set(told.names)
    await boundary.aclose()


@pytest.mark.slow
@pytest.mark.fault(18)
@pytest.mark.parametrize("trouble", ["sqlite", "psycopg", "redis", "dynamodb"], indirect=True)
def test_in_a_thread_it_is_recorded_too(trouble: Trouble, make: Making, told: Told) -> None:
    boundary = make(trouble.url, lease=LEASE)
    with boundary.claim("key") as claim:
        trouble.begin()
        claim.result = "done"
    assert (told.names["settle_deferred"], told.names["completed"]) == (1, 0)
    trouble.end()
    told.wait_for("completed")
    with boundary.claim("key") as claim:
        assert (claim.replayed, claim.result) == (True, "done")
    assert not {"result_not_stored", "lease_lost", "takeover"} & set(told.names)


@pytest.mark.parametrize(("effects", "name"), [("keyed", "released"), ("external", "unknown")])
def test_a_failure_is_recorded_late_as_what_it_is(
    effects: str, name: str, troubled_file: Trouble, make: Making, told: Told
) -> None:
    boundary = make(troubled_file.url, lease=LEASE, effects=effects)
    with pytest.raises(ValueError, match="no"), boundary.claim("key"):
        troubled_file.begin()
        raise ValueError("no")
    troubled_file.end()
    told.wait_for(name)
    (occurrence,) = [one for one in told.occurrences if one.name == name]
    assert occurrence.fields["error_type"] == "ValueError"


@pytest.mark.fault(17)
@pytest.mark.usefixtures("never")
def test_an_outcome_that_comes_late_is_fenced(troubled_file: Trouble, make: Making, told: Told) -> None:
    boundary = make(troubled_file.url, lease=LEASE)
    with boundary.claim("key") as claim:
        troubled_file.begin()
        claim.result = "late"
    troubled_file.end()
    with sqlite3.connect(urlsplit(troubled_file.url).path, timeout=60) as other:
        other.execute("UPDATE retrysafe_records SET attempt = 'thief', token = token + 1, version = version + 1")
    other.close()
    boundary.close()
    assert (told.names["lease_lost"], told.names["completed"]) == (1, 0)
    assert records_of(file_of(troubled_file), boundary.name) == [("running", 1)]


@pytest.mark.usefixtures("never")
def test_deferred_outcomes_are_tried_once_more_when_the_boundary_is_closed(
    troubled_file: Trouble, make: Making, told: Told
) -> None:
    for key, over in (("recorded", True), ("lost", False)):
        boundary = make(troubled_file.url, lease=LEASE)
        with boundary.claim(key) as claim:
            troubled_file.begin()
            claim.result = key
        if over:
            troubled_file.end()
        boundary.close()
    troubled_file.end()
    assert (told.names["completed"], told.names["result_not_stored"]) == (1, 1)


@pytest.mark.usefixtures("never")
@pytest.mark.parametrize("closed", [True, False])
def test_deferred_outcomes_are_tried_once_more_when_the_event_loop_ends(
    closed: bool, troubled_file: Trouble, make: Making, told: Told
) -> None:
    boundary = make(troubled_file.url, lease=LEASE)

    async def work() -> None:
        async with boundary.claim("key") as claim:
            troubled_file.begin()
            claim.result = "done"
        await asyncio.sleep(0)
        troubled_file.end()
        if closed:
            await boundary.aclose()

    asyncio.run(work())
    assert (told.names["completed"], told.names["result_not_stored"]) == (1, 0)


@pytest.mark.usefixtures("never")
def test_a_loop_that_is_closed_with_its_tasks_has_given_up(troubled_file: Trouble, make: Making, told: Told) -> None:
    boundary = make(troubled_file.url, lease=LEASE)

    async def work(key: str) -> None:
        async with boundary.claim(key) as claim:
            troubled_file.begin()
            claim.result = "done"
        await asyncio.sleep(0)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(work("key"))
    left = asyncio.all_tasks(loop)
    loop.close()
    troubled_file.end()
    with suppress(ValueError):
        asyncio.run(_fails(boundary))
    assert told.names["result_not_stored"] == 1
    for task in left:
        task._log_destroy_pending = False  # type: ignore[attr-defined]


async def _fails(boundary: Boundary) -> None:
    async with boundary.claim("another"):
        raise ValueError
    await boundary.aclose()


ENDS_AT_ONCE = """
import sqlite3, sys
from retrysafe import Boundary
from retrysafe.claims import deferred
from retrysafe.protocol.backoff import Backoff
deferred.SETTLING = Backoff(1e9, 1e9)
url = sys.argv[1]
boundary = Boundary("exits", store=url, lease="60s", observers=[])
other = sqlite3.connect(url.partition("?")[0].removeprefix("sqlite:///"), isolation_level=None)
with boundary.claim("key") as claim:
    other.execute("BEGIN IMMEDIATE")
    claim.result = "done"
other.execute("ROLLBACK")
"""


@pytest.mark.slow
def test_deferred_outcomes_are_tried_once_more_when_the_process_ends(troubled_file: Trouble) -> None:
    subprocess.run([sys.executable, "-c", ENDS_AT_ONCE, troubled_file.url], cwd=ROOT, check=True, timeout=60)
    assert records_of(file_of(troubled_file), "exits") == [("completed", 1)]


# ---------------------------------------------------------------- heartbeats that end while outcomes come


class Idle:
    """A store and its client, which the outcomes of these tests ask nothing."""

    store = None

    def heartbeat_client(self) -> Any:
        return self

    heartbeat_aclient = heartbeat_client

    async def aclose(self) -> None: ...

    def close(self) -> None: ...


def outcome(settle: Callable[[], bool], concluded: Callable[[bool | None], None]) -> Deferred:
    def steps() -> Program[bool]:
        yield from ()
        return settle()

    return Deferred(clock() + 60, steps, concluded)


async def test_an_outcome_that_comes_when_the_others_are_settled_is_settled_too() -> None:
    concluded = list[bool | None]()
    heartbeat = LoopHeartbeat(cast("Any", Idle()))
    heartbeat.carry(outcome(lambda: True, concluded.append))
    await auntil(lambda: concluded)
    await asyncio.sleep(0)
    heartbeat.carry(outcome(lambda: True, concluded.append))
    await auntil(lambda: len(concluded) == 2)
    await heartbeat.aclose()
    assert concluded == [True, True]


def test_an_outcome_that_always_fails_stands_before_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred, "SETTLING", Backoff(0.001, 0.001))
    concluded = list[bool | None]()
    heartbeat = ThreadHeartbeat(cast("Any", Idle()))

    def fail() -> bool:
        raise StoreUnavailable("always")

    heartbeat.carry(outcome(fail, concluded.append))
    for _ in range(4):
        heartbeat.carry(outcome(lambda: True, concluded.append))
    until(lambda: len(concluded) == 4)
    heartbeat.close()
    assert concluded == [True, True, True, True, None]


def test_closing_does_not_wait_for_many_outcomes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred, "LAST_TRY", -1.0)
    concluded = list[bool | None]()
    heartbeat = ThreadHeartbeat(cast("Any", Idle()))
    all_added = threading.Event()

    def closing() -> bool:
        if not heartbeat._closed:
            threading.Thread(target=heartbeat.close).start()
            while not heartbeat._closed:
                time.sleep(0)
        return True

    heartbeat.carry(outcome(all_added.wait, concluded.append))
    for _ in range(4):
        heartbeat.carry(outcome(closing, concluded.append))
    thread = heartbeat._thread
    all_added.set()
    assert thread is not None
    thread.join()
    assert sorted(map(str, concluded)) in (["None"] * 3 + ["True"] * 2, ["None"] * 4 + ["True"])


def test_an_outcome_that_comes_after_the_end_is_given_up_and_told() -> None:
    concluded = list[bool | None]()
    heartbeat = ThreadHeartbeat(cast("Any", Idle()))
    heartbeat.close()
    heartbeat.carry(outcome(lambda: True, concluded.append))
    assert concluded == [None]


# ---------------------------------------------------------------- statements that are refused for the moment

REFUSALS = 5
"""The number of statements refused in a row: more than a second try would survive, of two statements in a lane."""


@pytest.mark.fault(18)
@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_a_claim_of_a_cancelled_caller_is_given_back_when_the_trouble_is_over(
    driver: str, migrated: str, make: Making, told: Told
) -> None:
    async def work() -> None:
        async with boundary.claim("key"):
            raise AssertionError("it was cancelled before")

    with _refusing_postgresql(migrated) as trouble, psycopg.connect(trouble.url) as other:
        boundary = make(driven(trouble.url, driver), lease=LEASE)
        async with boundary.claim("first") as claim:
            claim.result = 1
        trouble.begin()
        other.execute("LOCK TABLE retrysafe_records IN EXCLUSIVE MODE")
        working = asyncio.create_task(work())
        waiting = "SELECT 1 FROM pg_locks WHERE relation = 'retrysafe_records'::regclass AND NOT granted"
        await auntil(lambda: other.execute(waiting).fetchone() is not None)
        working.cancel()
        await asyncio.sleep(0)
        other.rollback()
        with pytest.raises(asyncio.CancelledError):
            await working
        assert (told.names["settle_deferred"], told.names["released"]) == (1, 0)
        trouble.end()
        await auntil(lambda: told.names["released"] == 1)
        await boundary.aclose()


@pytest.fixture
def contended(migrated: str) -> Iterator[str]:
    """A database whose statements on records fail as under SERIALIZABLE; its sequence counts them for good."""
    with own_database(migrated) as url, psycopg.connect(url, autocommit=True) as admin:
        admin.execute("CREATE SEQUENCE refusals")
        admin.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            f"IF nextval('refusals') % {REFUSALS + 1} <> 0 THEN RAISE EXCEPTION 'could not serialize access' "
            "USING ERRCODE = '40001'; END IF; RETURN NEW; END $$"
        )
        admin.execute(
            "CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON retrysafe_records FOR EACH ROW EXECUTE FUNCTION refuse()"
        )
        yield url


@pytest.mark.fault(23)
@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_statements_of_our_own_are_put_again_while_the_database_asks_for_it(
    driver: str, contended: str, make: Making, told: Told
) -> None:
    boundary = make(driven(contended, driver), lease=LEASE)
    async with boundary.claim("key") as claim:
        claim.result = 1
    async with boundary.claim("key") as claim:
        assert claim.replayed
    with pytest.raises(ValueError, match="no"):
        async with boundary.claim("failing"):
            raise ValueError("no")
    assert (told.names["completed"], told.names["released"], told.names["settle_deferred"]) == (1, 1, 0)
    await boundary.aclose()


@pytest.mark.slow
@pytest.mark.fault(23)
@pytest.mark.parametrize("engine", [False, True])
def test_and_by_sync_code_on_every_kind_of_connection(engine: bool, contended: str, make: Making, told: Told) -> None:
    import sqlalchemy

    store: Any = sqlalchemy.create_engine(driven(contended, "psycopg")) if engine else contended
    boundary = make(store, lease=LEASE)
    with boundary.claim("key") as claim:
        claim.result = 1
    assert (told.names["completed"], told.names["settle_deferred"]) == (1, 0)
    boundary.close()
    if engine:
        store.dispose()


@pytest.mark.fault(23)
@each_row("code", ["LOADING", "BUSY", "READONLY", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN"])
def test_requests_that_redis_refuses_for_the_moment_may_be_put_again(code: str) -> None:
    from redis.exceptions import ResponseError

    with pytest.raises(StoreUnavailable) as caught:
        answer_of(ResponseError(f"{code} come again"))
    assert (caught.value.transient, caught.value.unsent) == (True, True)


@pytest.mark.slow
@pytest.mark.fault(23)
@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_a_transaction_of_our_own_is_begun_again_before_the_handler(
    driver: str, contended: str, make: Making, told: Told
) -> None:
    boundary = make(driven(contended, driver), effects="transactional")
    run_sql(contended, "SELECT setval('refusals', 0 + 1)")
    entered = 0
    with suppress(Exception):  # the completion is refused in its turn: only who calls the handler can run it again
        async with boundary.claim("key"):
            entered += 1
    assert (entered, told.names["started"]) == (1, 1)
    await boundary.aclose()
