"""Everything through a real PgBouncer in transaction mode, whose two server connections change hands. FAULTS 30."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, suppress
from typing import Any

import psycopg
import pytest

from retrysafe import Boundary, InProgress, StoreUnavailable, current, wait
from tests.faults.conftest import Making
from tests.faults.helpers import DEADLINE, Told, auntil, records_of, renewals_of, rows_of, until
from tests.faults.servers import PgBouncer

pytestmark = pytest.mark.fault(30)

CALLERS = 20
EFFECTS = ["keyed", "transactional"]


@pytest.fixture
def pooled(pgbouncer: PgBouncer, migrated: str) -> Any:
    """A pool whose connections prepare nothing: this PgBouncer would not follow them."""
    from psycopg_pool import ConnectionPool

    with ConnectionPool(
        pgbouncer.url, kwargs={"prepare_threshold": None}, min_size=0, max_size=CALLERS, open=True
    ) as pool:
        yield pool


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


def test_leases_are_renewed(pooled: Any, migrated: str, make: Making, told: Told) -> None:
    boundary = make(pooled, lease="900ms")
    with ExitStack() as stack:
        claims = [stack.enter_context(boundary.claim(f"key {i}")) for i in range(6)]
        until(lambda: all(renewals_of(migrated, claim.attempt_id) >= 2 for claim in claims))
    assert told.names["completed"] == 6
    assert "lease_lost" not in told.names


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


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_leases_of_tasks_are_renewed(
    driver: str, pgbouncer: PgBouncer, migrated: str, make: Making, told: Told
) -> None:
    async with AsyncExitStack() as stack:
        boundary = make(await stack.enter_async_context(_unprepared(driver, pgbouncer.url)), lease="2s")
        async with boundary.claim("a") as a, boundary.claim("b") as b:
            for claim in (a, b):
                await auntil(lambda: renewals_of(migrated, claim.attempt_id) >= 2)  # noqa: B023 - awaited here
        await boundary.aclose()
    assert told.names["completed"] == 2
    assert "lease_lost" not in told.names


def _unprepared(driver: str, url: str) -> Any:
    if driver == "asyncpg":
        import asyncpg

        return asyncpg.create_pool(url, statement_cache_size=0, min_size=0, max_size=CALLERS)
    from psycopg_pool import AsyncConnectionPool

    kwargs = {"prepare_threshold": None}
    return AsyncConnectionPool(url, kwargs=kwargs, min_size=0, max_size=CALLERS, open=False)
