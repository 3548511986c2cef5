"""Work that outlasts its lease keeps its key; work that lost it is told and fenced. FAULTS 12, 15, 17, 18, 20."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import uvloop

import retrysafe.backends.sql.drivers.deadline as deadline
import retrysafe.backends.sql.drivers.pool as pools
from retrysafe import Boundary, InProgress, LeaseLost
from retrysafe.claims import heartbeat
from retrysafe.claims.modes import LeaseMode
from tests.faults.conftest import Making, server_of
from tests.faults.helpers import (
    DEADLINE,
    Proxy,
    Told,
    auntil,
    driven,
    forever,
    plain,
    records_of,
    renewals_of,
    run_sql,
    until,
)

LEASE = "1s"
KEPT = "4s"
"""Not lost because a busy machine stalls for two seconds."""
PATIENCE = 60
"""Seconds in which work must have been stopped whose lease cannot be kept."""
BEYOND = 4
"""So many renewals, one at every third of a lease, mean that more than a lease has passed since the claim."""


def steal(url: str, boundary: Boundary) -> None:
    """Give the record to another attempt, as a takeover does."""
    sql = (
        f"UPDATE retrysafe_records SET attempt = 'thief', token = token + 1, version = version + 1 "
        f"WHERE boundary = '{boundary.name}'"
    )
    assert run_sql(url, sql) == 1


@pytest.fixture(params=["sqlite", "postgresql", "mysql"])
def store(request: pytest.FixtureRequest) -> str:
    """A store for sync code."""
    fixtures = {"sqlite": "sqlite_url", "postgresql": "migrated", "mysql": "mysql_migrated"}
    url: str = request.getfixturevalue(fixtures[request.param])
    return url


@pytest.fixture(params=["sqlite", "psycopg", "asyncpg", "asyncmy"])
def astore(request: pytest.FixtureRequest) -> str:
    """A store for async code."""
    if request.param == "sqlite":
        url: str = request.getfixturevalue("sqlite_url")
        return url
    return server_of(request.param, request)


@pytest.mark.slow
@pytest.mark.fault(57)
def test_work_longer_than_its_lease_keeps_its_key(store: str, make: Making, told: Told) -> None:
    boundary = make(store, lease=KEPT)
    with boundary.claim("key") as claim:
        until(lambda: renewals_of(store, claim.attempt_id) >= BEYOND)
        claim.ensure_held()
        with pytest.raises(InProgress), boundary.claim("key"):
            pytest.fail("the first still holds it")
        claim.result = "first"
    with boundary.claim("key") as claim:
        assert (claim.replayed, claim.result) == (True, "first")
    assert records_of(store, boundary.name) == [("completed", 1)]
    assert not {"takeover", "lease_lost"} & set(told.names)


@pytest.mark.slow
async def test_async_work_longer_than_its_lease_keeps_its_key(astore: str, make: Making, told: Told) -> None:
    boundary = make(astore, lease=KEPT)
    async with boundary.claim("key") as claim:
        await auntil(lambda: renewals_of(astore, claim.attempt_id) >= BEYOND)
        claim.ensure_held()
        with pytest.raises(InProgress):
            async with boundary.claim("key"):
                pytest.fail("the first still holds it")
        claim.result = "first"
    async with boundary.claim("key") as claim:
        assert (claim.replayed, claim.result) == (True, "first")
    assert not {"takeover", "lease_lost"} & set(told.names)
    await boundary.aclose()


@pytest.mark.slow
def test_many_leases_of_different_lengths_are_all_kept(store: str, make: Making, told: Told) -> None:
    short, long = make(store, lease=KEPT), make(store, lease="5s")
    hold = threading.Event()
    attempts: list[str] = []

    def work(boundary: Boundary, key: str) -> None:
        with boundary.claim(key) as claim:
            attempts.append(claim.attempt_id)
            assert hold.wait(DEADLINE)
            claim.ensure_held()

    workers = [threading.Thread(target=work, args=(b, f"k{i}")) for b in (short, long) for i in range(6)]
    for worker in workers:
        worker.start()
    until(lambda: len(attempts) == 12 and all(renewals_of(store, attempt) >= 3 for attempt in attempts))
    hold.set()
    for worker in workers:
        worker.join(DEADLINE)
    assert told.names["completed"] == 12
    assert "lease_lost" not in told.names


@pytest.mark.fault(17, 20)
def test_sync_work_sees_that_it_lost_its_lease_and_is_fenced(store: str, make: Making, told: Told) -> None:
    boundary = make(store, lease=LEASE)
    with pytest.raises(LeaseLost) as caught, boundary.claim("key") as claim:
        claim.ensure_held()
        steal(store, boundary)
        told.wait_for("lease_lost")
        with pytest.raises(LeaseLost):
            claim.ensure_held()
        claim.result = "late"
    assert caught.value.effect_happened == "maybe"
    assert records_of(store, boundary.name) == [("running", 1)]


@pytest.mark.fault(17)
def test_sync_work_that_never_asks_is_fenced_all_the_same(store: str, make: Making) -> None:
    boundary = make(store, lease="60s")
    with pytest.raises(LeaseLost), boundary.claim("key") as claim:
        steal(store, boundary)
        claim.result = "late"
    assert records_of(store, boundary.name) == [("running", 1)]


@pytest.mark.slow
@pytest.mark.fault(20)
async def test_async_work_is_stopped_when_its_lease_is_lost(astore: str, make: Making, told: Told) -> None:
    boundary = make(astore, lease=LEASE)
    stopped = asyncio.Event()
    with pytest.raises(LeaseLost) as caught:
        async with boundary.claim("key"):
            steal(astore, boundary)
            try:
                await forever(PATIENCE)
            except asyncio.CancelledError:
                stopped.set()
                raise
    assert stopped.is_set()
    assert isinstance(caught.value.__cause__, asyncio.CancelledError)
    current = asyncio.current_task()
    assert current is not None
    assert current.cancelling() == 0
    assert records_of(astore, boundary.name) == [("running", 1)]
    assert told.names["lease_lost"] >= 1
    await boundary.aclose()


async def test_a_lost_lease_stops_only_its_own_task(sqlite_url: str, make: Making) -> None:
    boundary, other = make(sqlite_url, lease=LEASE), make(sqlite_url, lease="60s")

    async def work(mine: Boundary) -> str:
        async with mine.claim("key") as claim:
            started.append(claim.attempt_id)
            if mine is boundary:
                await forever()
            await auntil(lambda: tasks[0].done())
            claim.result = "kept"
        return "done"

    started: list[str] = []
    tasks = [asyncio.create_task(work(mine)) for mine in (boundary, other)]
    await auntil(lambda: len(started) == 2)
    steal(sqlite_url, boundary)
    got = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(got[0]), got[1]] == [LeaseLost, "done"]
    await boundary.aclose()
    await other.aclose()


@pytest.mark.slow
@pytest.mark.fault(18, 20)
@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_async_work_is_stopped_before_expiry_when_the_server_falls_silent(
    driver: str, proxy: Proxy, migrated: str, make: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    """18, 20: a half-open connection never fails by itself."""
    boundary = make(driven(proxy.url, driver), lease="9s")  # so that a busy machine is not taken for a late stop
    left = f"boundary = '{boundary.name}' AND lease_until > extract(epoch FROM clock_timestamp()) * 1000000"
    in_time: list[int] = []
    with pytest.raises(LeaseLost):
        async with boundary.claim("key") as claim:
            await auntil(lambda: renewals_of(migrated, claim.attempt_id) >= 1)
            monkeypatch.setattr(deadline, "DEADLINE", 1.0)
            monkeypatch.setattr(pools, "CHECKOUT", 1.0)
            proxy.stall()
            try:
                await forever(PATIENCE)
            except asyncio.CancelledError:
                in_time.append(run_sql(migrated, f"UPDATE retrysafe_records SET scope = scope WHERE {left}"))
                proxy.refuse()  # from here on it is gone, which is quicker than silent
                raise
    assert in_time == [1], "the lease had lapsed before its work was stopped"
    proxy.close()
    await boundary.aclose()


@pytest.mark.slow
@pytest.mark.fault(20)
def test_ensure_held_does_not_believe_in_a_lease_it_cannot_renew(
    proxy: Proxy, migrated: str, make: Making, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20, sync: the store is silent; the value is returned, and nobody is told that it was stored."""
    monkeypatch.setattr(pools, "CHECKOUT", 0.5)
    boundary = make(proxy.url, lease=LEASE)
    with boundary.claim("key") as claim:
        proxy.refuse()

        def unsure() -> bool:
            try:
                claim.ensure_held()
            except LeaseLost:
                return True
            return False

        until(unsure, PATIENCE)
        claim.result = "done"
    assert claim.result == "done"
    assert told.names["settle_deferred"] == 1
    told.wait_for("result_not_stored")
    assert told.names["renewal_failed"] >= 1
    assert [state for state, _ in records_of(migrated, boundary.name)] == ["running"]
    again = make(migrated, name=boundary.name)

    def taken_over() -> bool:
        try:
            with again.claim("key") as second:
                second.result = "again"
        except InProgress:
            return False
        return True

    until(taken_over)
    assert told.names["takeover"] == 1


@pytest.mark.fault(20)
def test_a_lease_that_could_not_be_renewed_is_not_held_when_its_time_is_over(
    sqlite_url: str, make: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole machine was asleep, and the heartbeat with it."""
    real, asleep = heartbeat.clock, 0.0
    monkeypatch.setattr(heartbeat, "clock", lambda: real() + asleep)
    boundary = make(sqlite_url, lease="60s")
    with boundary.claim("key") as claim:
        asleep = 59
        claim.ensure_held()
        asleep = 61
        with pytest.raises(LeaseLost):
            claim.ensure_held()


async def test_renewals_do_not_wait_for_connections_that_work_holds(migrated: str, make: Making) -> None:
    """A pool used up by open transactions on the same URL: the lease beside them is kept."""
    transactional, keyed = make(migrated, effects="transactional"), make(migrated, lease="9s")
    leave, inside = asyncio.Event(), 0

    async def occupy(number: int) -> None:
        nonlocal inside
        async with transactional.claim(f"t{number}"):
            inside += 1
            await leave.wait()

    async with keyed.claim("key") as claim:
        workers = [asyncio.create_task(occupy(number)) for number in range(10)]
        await auntil(lambda: inside == 10)
        await auntil(lambda: renewals_of(migrated, claim.attempt_id) >= 2)
        claim.ensure_held()
        leave.set()
        await asyncio.gather(*workers)
    await transactional.aclose()
    await keyed.aclose()


@pytest.mark.slow
@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_busy_moment_is_not_a_lost_lease(colour: str, sqlite_url: str, make: Making, told: Told) -> None:
    """SQLite: another writer holds the file over one renewal."""
    from tests.faults.test_sql_faults import holding

    boundary = make(sqlite_url, lease=KEPT)

    def outlast(claim: Any) -> None:
        with holding(sqlite_url):
            told.wait_for("renewal_failed")
        until(lambda: renewals_of(sqlite_url, claim.attempt_id) >= 2)
        claim.ensure_held()

    async def main() -> None:
        async with boundary.claim("key") as claim:
            await asyncio.to_thread(outlast, claim)
        await boundary.aclose()

    if colour == "async":
        asyncio.run(main())
    else:
        with boundary.claim("key") as claim:
            outlast(claim)
    assert "lease_lost" not in told.names
    assert records_of(plain(sqlite_url), boundary.name) == [("completed", 1)]


def test_a_thread_that_could_not_be_started_is_started_for_the_next_lease(
    sqlite_url: str, make: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the limit of threads, or by an exception of a signal handler."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    boundary = make(sqlite_url, lease=LEASE)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError), boundary.claim("first"):
            pytest.fail("nobody would renew its lease")
    with boundary.claim("second") as claim:
        until(lambda: renewals_of(sqlite_url, claim.attempt_id) >= BEYOND)


@pytest.mark.slow
@pytest.mark.parametrize("begun", [False, True])
async def test_cancelling_all_tasks_of_a_loop_ends_no_lease_and_no_heartbeat(
    begun: bool, sqlite_url: str, make: Making, told: Told
) -> None:
    boundary = make(sqlite_url, lease=KEPT)
    async with boundary.claim("key") as claim:
        beating = heartbeat.for_loop(boundary.entrypoint.backend)
        renewal = await auntil(lambda: beating._beating)
        if begun:
            await asyncio.sleep(0)
        renewal.cancel()
        await asyncio.wait((renewal,))
        await auntil(lambda: renewals_of(sqlite_url, claim.attempt_id) >= BEYOND)
        claim.ensure_held()
    assert "lease_lost" not in told.names
    await boundary.aclose()


async def test_a_boundary_is_closed_beside_a_renewal_that_is_cancelled(
    sqlite_url: str, make: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hangs(due: Any) -> Any:
        await asyncio.Event().wait()

    boundary = make(sqlite_url, lease=KEPT)
    beating = heartbeat.for_loop(boundary.entrypoint.backend)
    monkeypatch.setattr(beating, "_renewal", hangs)
    async with boundary.claim("key"):
        renewal = await auntil(lambda: beating._beating)
    renewal.cancel()
    await boundary.aclose()
    assert renewal.cancelled()


@pytest.mark.fault(64)
def test_work_is_not_begun_under_a_lease_that_ended_before(
    sqlite_url: str, make: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine was asleep between the claim and its answer: somebody else has the key by now."""
    boundary = make(sqlite_url, lease="60s", effects="external")
    claim, real = LeaseMode.claim, heartbeat.clock

    def claiming(mode: Any, want: Any) -> Any:
        won = claim(mode, want)
        monkeypatch.setattr(heartbeat, "clock", lambda: real() + 61)
        steal(sqlite_url, boundary)
        return won

    monkeypatch.setattr(LeaseMode, "claim", claiming)
    with pytest.raises(InProgress), boundary.claim("key"):
        pytest.fail("another attempt has the key")
    assert records_of(sqlite_url, boundary.name) == [("running", 1)]


@pytest.mark.fault(64)
async def test_async_work_is_not_begun_under_a_lease_that_ended_before(
    sqlite_url: str, make: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    boundary = make(sqlite_url, lease="60s", effects="external")
    claim, real = LeaseMode.aclaim, heartbeat.clock

    async def aclaim(mode: Any, want: Any) -> Any:
        won = await claim(mode, want)
        monkeypatch.setattr(heartbeat, "clock", lambda: real() + 61)
        steal(sqlite_url, boundary)
        return won

    monkeypatch.setattr(LeaseMode, "aclaim", aclaim)
    with pytest.raises(InProgress):
        async with boundary.claim("key"):
            pytest.fail("another attempt has the key")
    assert records_of(sqlite_url, boundary.name) == [("running", 1)]
    await boundary.aclose()


def test_closing_a_boundary_ends_its_heartbeat(sqlite_url: str, make: Making) -> None:
    before = threading.active_count()
    for _ in range(3):
        boundary = make(sqlite_url)
        with boundary.claim("key"):
            pass
        boundary.close()
    until(lambda: threading.active_count() <= before)


def test_the_thread_of_a_heartbeat_ends_when_nothing_was_held_for_long(
    sqlite_url: str, make: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that makes many boundaries and closes none does not gather threads and connections."""
    monkeypatch.setattr(heartbeat, "_IDLE", 0.05)
    boundary = make(sqlite_url, lease=LEASE)
    for key in ("first", "second"):
        with boundary.claim(key) as claim:
            thread = heartbeat.for_thread(boundary._settings.backend)._thread
            assert thread is not None
            until(lambda claim=claim: renewals_of(sqlite_url, claim.attempt_id) >= 1)  # type: ignore[misc]
        thread.join(DEADLINE)
        assert not thread.is_alive()


def test_on_uvloop_a_renewal_that_is_due_at_once_takes_no_other_claim_with_it(
    make: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A timer of uvloop's that fires at once is a plain handle, which does not say when; asyncio's does."""
    now = heartbeat.clock()
    monkeypatch.setattr(heartbeat, "clock", lambda: now)

    async def claims() -> None:
        nonlocal now
        boundary = make("memory://", lease="30s")
        async with boundary.claim("a"):
            now += 29  # as long as the loop was busy
            async with boundary.claim("b"), boundary.claim("c"):
                pass
        await boundary.aclose()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(claims())
