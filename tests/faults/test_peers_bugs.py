"""Bugs that comparable libraries have shipped, each as a test of ours (functions, stores and leases)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from typing import Any

import psycopg
import pytest

from retrysafe import Boundary, InProgress, LeaseLost, RetryTransaction, StoredFailure, current, reject, wait
from retrysafe.backends.driver import run
from retrysafe.protocol.procedures import sweep
from tests.faults.conftest import Making
from tests.faults.helpers import DEADLINE, Told, forever, plain, reached, records_of, rows_of, run_sql, until
from tests.tables import each_row

STORES = ["sqlite", "postgresql"]


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> str:
    """Every bug is looked for on both SQL stores."""
    url: str = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "migrated")
    return url


def lapse(url: str, name: str) -> None:
    """End the lease of a boundary's running records, as time does."""
    assert run_sql(url, f"UPDATE retrysafe_records SET lease_until = 1 WHERE boundary = '{name}' AND state = 'running'")


ENDINGS: dict[str, Callable[[Any], None]] = {
    "completes": lambda claim: setattr(claim, "result", "late"),
    "fails for good": lambda claim: claim.fail(ValueError("late")),
}


@each_row("ending", ENDINGS)
@each_row("second", ["running", "completed", "failed", "released"])
def test_a_late_owner_cannot_flip_the_new_owners_record(ending: str, second: str, store: str, make: Making) -> None:
    """Powertools, exactly-once, justonce, drf-idempotency, CAP, River #1302, Oban: completion not fenced."""
    boundary, leave = make(store), threading.Event()
    thread = threading.Thread(target=_second_owner, args=(boundary, second, leave))
    with pytest.raises(LeaseLost), boundary.claim("key") as late:
        lapse(store, boundary.name)
        thread.start()
        until(lambda: records_of(store, boundary.name) == [(second, 2)])
        ENDINGS[ending](late)
    leave.set()
    thread.join(DEADLINE)
    if second == "failed":
        with pytest.raises(StoredFailure, match="second"), boundary.claim("key"):
            pytest.fail("it is finished")
        return
    with boundary.claim("key") as claim:
        assert claim.replayed is (second in ("running", "completed"))
        assert claim.result == ("second" if claim.replayed else None)


def _second_owner(boundary: Boundary, ending: str, leave: threading.Event) -> None:
    with suppress(KeyError), boundary.claim("key") as claim:
        if ending == "running":
            reached(leave)
        if ending == "failed":
            claim.fail(ValueError("second"))
        if ending == "released":
            raise KeyError("second")
        claim.result = "second"


@each_row("raised", [ZeroDivisionError, KeyboardInterrupt, SystemExit])
def test_a_late_owner_that_raises_cannot_release_the_new_owners_record(
    raised: type[BaseException], store: str, make: Making
) -> None:
    boundary = make(store)
    sql = f"UPDATE retrysafe_records SET attempt = 'newer', token = token + 1 WHERE boundary = '{boundary.name}'"
    with pytest.raises(raised), boundary.claim("key"):
        run_sql(store, sql)
        raise raised
    assert records_of(store, boundary.name) == [("running", 1)]


def test_the_marker_and_the_result_have_clocks_of_their_own(store: str, make: Making, told: Told) -> None:
    """IdempotentAPI, fastapi-idempotency-key, asgi-idempotency-header: a crash locks the key for a day."""
    boundary = make(store, window="24h", lease="30s")
    elsewhere(boundary.claim("key").__enter__)  # and never leaves: its process died
    with pytest.raises(InProgress) as caught, boundary.claim("key"):
        pytest.fail("its lease is alive")
    assert caught.value.retry_after <= 30
    lapse(store, boundary.name)  # thirty seconds, not a day
    with boundary.claim("key") as claim:
        assert not claim.replayed
        claim.result = "done"
    run_sql(store, f"UPDATE retrysafe_records SET lease_until = 1 WHERE boundary = '{boundary.name}'")
    with boundary.claim("key") as claim:  # the result outlives the lease
        assert (claim.replayed, claim.result) == (True, "done")


def elsewhere(work: Callable[[], Any]) -> Any:
    """Do something as another task would: outside of the claims that enclose this code."""
    return Context().run(work)


async def test_a_cancelled_caller_does_not_leave_the_key_stuck(store: str, make: Making) -> None:
    """fastapi-idempotency-key, idemkit: `except Exception` misses CancelledError."""
    boundary, inside = make(store, lease="1h"), asyncio.Event()

    @boundary.once(key="key")
    async def charge(key: str, hang: bool) -> str:
        inside.set()
        if hang:
            await forever()
        return "charged"

    hanging = asyncio.create_task(charge("k", True))
    await inside.wait()
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging
    async with boundary.claim("k", operation=charge.__qualname__) as claim:  # payload unchecked
        assert not claim.replayed
    await boundary.aclose()


@each_row("effects", ["keyed", "transactional"])
def test_nested_guarded_calls_keep_their_results_apart(effects: str, store: str, make: Making) -> None:
    """Powertools: the outer result was written under the inner key."""
    boundary = make(store, effects=effects)
    ran: list[str] = []

    @boundary.once(key="key")
    def inner(key: str) -> str:
        ran.append("inner")
        return f"inner {key} {current().key_for('x')}"

    @boundary.once(key="key")
    def outer(key: str) -> dict[str, str]:
        before = current().attempt_id
        got = inner(key)
        assert current().attempt_id == before
        ran.append("outer")
        return {"outer": got}

    first = outer("k")
    assert outer("k") == first
    assert inner("k") == first["outer"]
    assert ran == ["inner", "outer"]


async def test_nested_guarded_coroutines_keep_their_results_apart(store: str, make: Making) -> None:
    boundary = make(store)
    ran: list[str] = []

    @boundary.once(key="key")
    async def inner(key: str) -> str:
        ran.append(f"inner {key}")
        return f"inner {key}"

    @boundary.once(key="key")
    async def outer(key: str) -> list[str]:
        return list(await asyncio.gather(inner(f"{key}1"), inner(f"{key}2")))

    assert await outer("k") == await outer("k") == ["inner k1", "inner k2"]
    assert await inner("k2") == "inner k2"
    assert sorted(ran) == ["inner k1", "inner k2"]
    await boundary.aclose()


def test_nested_transactions_of_boundaries_with_other_leases_roll_back_together(store: str, make: Making) -> None:
    """One store is one transaction, whatever the lease of the boundary is."""
    outer, inner = make(store, effects="transactional", lease="30s"), make(store, effects="transactional", lease="3s")
    with pytest.raises(ZeroDivisionError), outer.claim("key"):
        with inner.claim("key") as claim:
            claim.result = "inner"
        raise ZeroDivisionError
    assert records_of(store, inner.name) == []
    with outer.claim("key"), inner.claim("key") as claim:
        assert not claim.replayed


def test_a_task_that_outlives_its_enclosing_claim_is_on_its_own(sqlite_url: str, make: Making) -> None:
    """The context of a task is a copy: what encloses it may have ended."""
    import sqlite3

    boundary = make(sqlite_url, effects="transactional")
    keyed = make(sqlite_url)
    connection = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))

    async def later(event: asyncio.Event) -> None:
        await event.wait()
        async with boundary.claim("later") as claim:
            claim.result = "kept"
        async with keyed.claim("same") as claim:
            assert (claim.replayed, claim.result) == (True, 1)

    async def main() -> None:
        ended = asyncio.Event()
        async with keyed.claim("same") as claim:
            with boundary.claim("now", tx=connection):
                task = asyncio.create_task(later(ended))
            claim.result = 1
            connection.commit()
        ended.set()
        await task
        connection.rollback()  # another's use of that connection is not ours
        async with boundary.claim("later") as claim:
            assert claim.replayed
        await boundary.aclose()
        await keyed.aclose()

    asyncio.run(main())
    connection.close()


@pytest.mark.parametrize("state", ["40001", "40P01"])
@pytest.mark.parametrize("permanent", [psycopg.Error, Exception])
def test_a_retryable_error_is_not_stored_as_a_permanent_failure(
    state: str, permanent: type[Exception], migrated: str, table: str, make: Making
) -> None:
    """DBOS #679."""
    boundary = make(migrated, effects="transactional", permanent=permanent)
    runs: list[str] = []

    @boundary.once(key="key")
    def charge(key: str) -> int:
        runs.append(key)
        tx = current().tx
        tx.execute(f"INSERT INTO {table} VALUES ('{key}', '{len(runs)}')")
        if len(runs) == 1:
            tx.execute(f"DO $$ BEGIN RAISE EXCEPTION 'again' USING ERRCODE = '{state}'; END $$")
        return len(runs)

    assert charge("k") == 2
    assert charge("k") == 2
    assert rows_of(migrated, table) == [("k", "2")]
    with pytest.raises(RetryTransaction), boundary.claim("block") as claim:
        claim.tx.execute(f"DO $$ BEGIN RAISE EXCEPTION 'again' USING ERRCODE = '{state}'; END $$")
    with boundary.claim("block") as claim:
        assert not claim.replayed


def test_losing_a_race_replays_instead_of_raising(store: str, make: Making) -> None:
    """DBOS #812: sixteen at once, and each gets the one result."""
    boundary = make(store, concurrency=wait(DEADLINE))
    start, got = threading.Barrier(16), list[Any]()

    def caller(number: int) -> None:
        start.wait(DEADLINE)
        for i in range(10):
            with boundary.claim(f"key{i}") as claim:
                if not claim.replayed:
                    claim.result = [number, i]
            got.append((i, tuple(claim.result)))

    callers = [threading.Thread(target=caller, args=(number,)) for number in range(16)]
    for one in callers:
        one.start()
    for one in callers:
        one.join(DEADLINE)
    assert len(got) == 160
    assert len(set(got)) == 10


def test_when_the_winner_rolls_back_a_waiting_loser_runs(migrated: str, table: str, make: Making, told: Told) -> None:
    """Oban #1093: the lock's winner rolled back, the loser was told "conflict", and no job was left at all."""
    boundary = make(migrated, effects="transactional", concurrency=wait(DEADLINE))
    got: list[bool] = []

    def lose() -> None:
        with boundary.claim("key") as claim:
            got.append(claim.replayed)
            claim.tx.execute(f"INSERT INTO {table} VALUES ('key', 'loser')")

    loser = threading.Thread(target=lose)
    with pytest.raises(ZeroDivisionError), boundary.claim("key") as claim:
        claim.tx.execute(f"INSERT INTO {table} VALUES ('key', 'winner')")
        loser.start()
        told.wait_for("waiting")
        raise ZeroDivisionError
    loser.join(DEADLINE)
    assert got == [False]
    assert rows_of(migrated, table) == [("key", "loser")]


def test_when_the_winner_rolls_back_the_retry_of_a_rejected_loser_runs(migrated: str, make: Making) -> None:
    boundary = make(migrated, effects="transactional", concurrency=reject())
    told_off: list[type[Exception]] = []

    def lose() -> None:
        try:
            with boundary.claim("key"):
                pass
        except InProgress as error:
            told_off.append(type(error))

    with pytest.raises(ZeroDivisionError), boundary.claim("key"):
        loser = threading.Thread(target=lose)
        loser.start()
        loser.join(DEADLINE)
        raise ZeroDivisionError
    assert told_off == [InProgress]
    with boundary.claim("key") as claim:
        assert not claim.replayed


def test_a_winner_that_rolled_back_holds_no_gate_on_its_open_connection(migrated: str, make: Making) -> None:
    """The gate ends with the transaction, not with the session: a pool keeps that open for hours."""
    boundary = make(plain(migrated), effects="transactional")
    with psycopg.connect(migrated) as winner, psycopg.connect(migrated) as retry:
        with boundary.claim("key", tx=winner) as claim:
            claim.result = "gone"
        winner.rollback()
        with boundary.claim("key", tx=retry) as claim:
            assert not claim.replayed


def test_cleanup_never_deletes_what_runs_or_is_in_doubt(store: str, make: Making) -> None:
    """django-outbox-pattern: deletes by age whatever the status."""
    boundary, external = make(store), make(store, effects="external")
    with boundary.claim("done") as claim:
        claim.result = 1
    with pytest.raises(ZeroDivisionError), boundary.claim("released"):
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError), external.claim("unknown"):
        raise ZeroDivisionError
    backend = boundary._settings.backend
    names = f"('{boundary.name}', '{external.name}')"
    with boundary.claim("running") as claim:
        ages = "created = 1, updated = 1, expires = 1, tombstone_until = 1"
        run_sql(store, f"UPDATE retrysafe_records SET {ages} WHERE boundary IN {names}")
        run(sweep(backend.store, 1000), backend.client())
        assert records_of(store, boundary.name) == [("running", 1)]
        assert records_of(store, external.name) == [("unknown", 1)]
        claim.result = 2
    with boundary.claim("running") as claim:
        assert (claim.replayed, claim.result) == (True, 2)


def test_an_owner_from_before_a_sweep_cannot_write_into_the_newcomers_record(store: str, make: Making) -> None:
    """Deleting a row lets an old token 1 meet a new token 1: tokens stay above those of swept records."""
    boundary = make(store)
    tokens: list[int] = []
    for _ in range(3):
        with boundary.claim("key") as claim:
            tokens.append(claim.token)
        run_sql(store, f"DELETE FROM retrysafe_records WHERE boundary = '{boundary.name}'")
    assert tokens == sorted(tokens)
    assert tokens[0] > 10**15, "the store's time in microseconds, not a count that begins anew"


def test_a_live_job_is_never_rescued_by_its_age(store: str, make: Making, told: Told) -> None:
    """River, Oban Lifeline: a hard age cap re-runs live jobs."""
    boundary = make(store)
    with boundary.claim("key") as claim:
        run_sql(store, f"UPDATE retrysafe_records SET created = 1, updated = 1 WHERE boundary = '{boundary.name}'")
        with pytest.raises(InProgress):
            elsewhere(boundary.claim("key").__enter__)
        claim.result = 1
    assert "takeover" not in told.names


def test_an_empty_key_makes_no_record(store: str, make: Making) -> None:
    """DBOS #759: an empty id forks ghosts."""
    from retrysafe import InvalidKey

    boundary = make(store)
    for key in ("", None):
        with pytest.raises(InvalidKey):
            boundary.claim(key)
    assert records_of(store, boundary.name) == []


def test_the_order_of_fields_is_not_part_of_the_payload(store: str, make: Making) -> None:
    """spring-modulith #556: re-serialised JSON in another order broke completion."""
    boundary = make(store)
    with boundary.claim("key", payload={"a": 1, "b": {"x": 1, "y": {"deep": 2, "deeper": 3}}}) as claim:
        claim.result = 1
    with boundary.claim("key", payload={"b": {"y": {"deeper": 3, "deep": 2}, "x": 1}, "a": 1}) as claim:
        assert claim.replayed
