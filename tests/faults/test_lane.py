"""Claims of one event loop that share statements: what happens to one of them is not the others' matter."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import psycopg
import pytest

from retrysafe import InProgress, StoreUnavailable
from retrysafe.backends.backend import Backend
from retrysafe.backends.driver import arun
from retrysafe.backends.registry import connect
from retrysafe.backends.sql.drivers import lane as lanes
from retrysafe.backends.sql.drivers.asyncpg import AsyncpgDriver
from retrysafe.backends.sql.drivers.base import fail, positional
from retrysafe.backends.sql.drivers.lane import QueryLane
from retrysafe.protocol.decisions import Decision
from retrysafe.protocol.procedures import NotWon, Won, claim, read, settle
from retrysafe.protocol.records import ClaimRequest, Ownership, StoredResult
from retrysafe.protocol.requests import Query, Rows
from retrysafe.protocol.transitions import Transition
from retrysafe.testing.lockstep import CLOCKS
from tests.faults.conftest import Making
from tests.faults.helpers import DEADLINE, auntil, driven, records_of, unique

MANY = 24
DONE = StoredResult(b"done", "text/plain", 1)
INSERT = "INSERT INTO retrysafe_records SELECT"


@pytest.fixture
async def backend(migrated: str) -> AsyncIterator[Backend]:
    """A backend of the test's own, whose connections have a name."""
    made = connect(driven(migrated, "asyncpg") + f"?application_name={unique('lane')}")
    await arun(read(made.store, b"0" * 32), made.aclient())
    yield made
    await made.aclose()


@pytest.fixture
def performed(monkeypatch: pytest.MonkeyPatch) -> list[Query]:
    """The queries that were performed, merged or alone."""
    seen: list[Query] = []
    perform = AsyncpgDriver.perform

    async def noting(connection: Any, query: Query) -> Rows:
        seen.append(query)
        return await perform(connection, query)

    monkeypatch.setattr(AsyncpgDriver, "perform", staticmethod(noting))
    return seen


def _want(key: bytes, attempt: str | None = None, scope: str = "s") -> ClaimRequest:
    return ClaimRequest(key, "b", scope, "o", b"p", attempt or secrets.token_hex(16), "keyed", CLOCKS)


def _keys(count: int = MANY) -> list[bytes]:
    return [secrets.token_bytes(32) for _ in range(count)]


async def _claimed(backend: Backend, wants: Sequence[ClaimRequest]) -> list[Any]:
    """Return the outcomes of claims that were made in one turn of the loop."""
    return await _ended([arun(claim(backend.store, want), backend.aclient()) for want in wants])


async def _ended(asked: Sequence[Awaitable[Any]]) -> list[Any]:
    """Return all outcomes; one that is forgotten in the lane would never come."""
    async with asyncio.timeout(DEADLINE):
        return await asyncio.gather(*asked, return_exceptions=True)


# ---------------------------------------------------------------- what shares a statement


async def test_queued_claims_are_one_statement_and_each_winner_is_its_own(
    backend: Backend, performed: list[Query]
) -> None:
    wants = [_want(key) for key in _keys()]
    won = await _claimed(backend, wants)
    assert [one.record.attempt for one in won] == [want.attempt for want in wants]
    assert len(performed) == 1, "who asks in one turn of the loop is performed together"
    settled = await asyncio.gather(
        *(arun(settle(backend.store, one.ownership, Transition.COMPLETE, DONE), backend.aclient()) for one in won)
    )
    assert all(settled)
    assert len(performed) == 2
    again = await _claimed(backend, [_want(want.key) for want in wants])
    assert {(one.decision, one.record.result, one.record.attempts) for one in again} == {(Decision.REPLAY, DONE, 1)}
    assert [one.record.attempt for one in again] == [want.attempt for want in wants]


async def test_of_duplicates_one_wins(backend: Backend, performed: list[Query]) -> None:
    keys = _keys(4)
    outcomes = await _claimed(backend, [_want(key) for _ in range(6) for key in keys])
    winners = {one.ownership.key: one.ownership.attempt for one in outcomes if isinstance(one, Won)}
    assert sorted(winners) == sorted(keys)
    others = [one for one in outcomes if isinstance(one, NotWon)]
    assert len(others) == 5 * 4
    assert {one.decision for one in others} == {Decision.BUSY}
    assert all(one.record.attempt == winners[one.record.key] for one in others)
    for query in performed:
        named = query.params["key"]
        assert len(named) == len(set(named)), "a statement has each key once"


async def test_each_caller_is_told_of_its_own_key() -> None:
    """Also when some keys have no row, and rows come in another order than they were asked for."""

    async def perform(query: Query) -> Rows:
        await asyncio.sleep(0)
        keys = query.params["key"]
        rows = [(key,) for key in reversed(keys) if key[0] % 3] if isinstance(keys, list) else [(b"alone", keys)]
        return Rows(rows, len(rows))

    lane = QueryLane(perform)
    otherwise = [Query("later", {"key": bytes((number,))}) for number in range(9)]
    asked = [Query("alone", later.params, later, merged="together") for later in otherwise]
    answers = await asyncio.gather(*map(lane.ask, asked))
    assert [one.rows for one in answers] == [
        [(bytes((number,)),)] if number % 3 else [(b"alone", bytes((number,)))] for number in range(9)
    ]


async def test_a_loser_to_a_rival_in_the_middle_of_a_batch_is_told_of_it(backend: Backend, migrated: str) -> None:
    """The rival commits while the statement waits for it: the statement sees no record of it, and a new one does."""
    wants = [_want(key) for key in _keys(6)]
    rival = connect(migrated)
    statement = Query(rival.store._claim_sql, rival.store.claim(_want(wants[4].key, "rival")).request.params)  # type: ignore[attr-defined]
    with rival.client().transaction() as opened:
        opened.execute(rival.store.begin().request)  # type: ignore[attr-defined]
        opened.execute(statement)
        asking = asyncio.create_task(_claimed(backend, wants))
        await _blocked(migrated, backend, 1)
        opened.execute(rival.store.commit().request)  # type: ignore[attr-defined]
    outcomes = await asking
    assert [type(one) for one in outcomes] == [Won, Won, Won, Won, NotWon, Won]
    assert (outcomes[4].decision, outcomes[4].record.attempt) == (Decision.BUSY, "rival")
    kept = await arun(read(backend.store, wants[4].key), backend.aclient())
    assert kept is not None
    assert kept.attempt == "rival"
    rival.close()


async def test_a_lonely_query_waits_for_one_turn_of_the_loop() -> None:
    began: list[Query] = []

    async def perform(query: Query) -> Rows:
        began.append(query)
        return Rows([(b"key",)], 1)

    asking = QueryLane(perform).ask(Query("alone", {"key": b"key"}, merged="together"))
    assert asking.send(None) is None, "who is ready comes along"
    with pytest.raises(StopIteration):
        asking.send(None)  # to its end, without the loop
    assert began == [Query("together", {"key": [b"key"]})]


async def test_statements_are_bounded_in_keys_and_bytes() -> None:
    sizes: list[int] = []

    async def perform(query: Query) -> Rows:
        sizes.append(len(query.params["key"]))
        await asyncio.sleep(0)
        return Rows([(key,) for key in query.params["key"]], len(query.params["key"]))

    lane = QueryLane(perform)
    small = [Query("alone", {"key": key, "result": b""}, merged="together") for key in _keys(lanes.MOST_AT_ONCE + 9)]
    await asyncio.gather(*map(lane.ask, small))
    assert sizes == [lanes.MOST_AT_ONCE, 9]
    sizes.clear()
    body = bytes(lanes.MOST_BYTES // 2)
    large = [Query("alone", {"key": key, "result": body}, merged="together") for key in _keys(6)]
    await asyncio.gather(*map(lane.ask, large))
    assert sizes == [2, 2, 2]


@asynccontextmanager
async def session(url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


async def performed_in(connection: asyncpg.Connection, query: Query, size: int) -> str:
    """Perform a shared statement for so many new keys; its text."""
    sql, names = positional(str(query.merged), "$")
    batch = {name: [value] * size for name, value in query.params.items()} | {"key": _keys(size)}
    await connection.fetch(sql, *(batch[name] for name in names))
    return sql


@pytest.mark.parametrize("known", [False, True])
async def test_a_shared_statement_is_planned_once_and_looks_keys_up_by_the_index(
    backend: Backend, migrated: str, *, known: bool
) -> None:
    """Also on a table without statistics, as a new one is. To plan takes longer than to perform it for a few keys."""
    claims = backend.store.claim(_want(b"")).request
    ownership = Ownership(b"", "attempt", 1, CLOCKS, transactional=False)
    settles = backend.store.settle(ownership, Transition.COMPLETE, DONE).request
    async with session(migrated) as connection:
        await connection.execute("TRUNCATE retrysafe_records")  # the server may know what other tests wrote
        if known:
            for _ in range(20):
                await performed_in(connection, claims, lanes.MOST_AT_ONCE)
            await connection.execute("ANALYZE retrysafe_records")
    plans = "SELECT name, custom_plans FROM pg_prepared_statements WHERE statement = $1"
    async with session(migrated) as connection:
        for query in (claims, settles):
            sql = await performed_in(connection, query, 1)
            for number in range(12):
                await performed_in(connection, query, 1 + number % 3)
            found = await connection.fetchrow(plans, sql)
            assert found["custom_plans"] <= 5, "the server tries so many before it decides"
            asked = max(map(int, re.findall(r"\$(\d+)", sql)))
            nulls = ", ".join(["NULL"] * asked)
            plan = await connection.fetch(f"EXPLAIN EXECUTE {found['name']} ({nulls})")
            assert not [line for (line,) in plan if "Seq Scan" in line]


# ---------------------------------------------------------------- one of them is cancelled, or refused


async def test_a_caller_cancelled_in_the_queue_asks_for_nothing(backend: Backend, performed: list[Query]) -> None:
    wants = [_want(key) for key in _keys(5)]
    tasks = [asyncio.create_task(arun(claim(backend.store, want), backend.aclient())) for want in wants]
    await asyncio.sleep(0)
    tasks[2].cancel()
    outcomes = await _ended(tasks)
    assert [type(one) for one in outcomes] == [Won, Won, asyncio.CancelledError, Won, Won]
    assert all(wants[2].key not in query.params["key"] for query in performed)
    assert await arun(read(backend.store, wants[2].key), backend.aclient()) is None


async def test_a_caller_cancelled_before_it_begins_leaves_the_lane_to_others() -> None:
    async def perform(query: Query) -> Rows:
        return Rows([(key,) for key in query.params["key"]], len(query.params["key"]))

    lane = QueryLane(perform)
    asked = [Query("alone", {"key": key}, merged="together") for key in _keys(3)]
    tasks = [asyncio.create_task(lane.ask(query)) for query in asked]
    await asyncio.sleep(0)
    tasks[0].cancel()
    outcomes = await _ended(tasks)
    assert isinstance(outcomes[0], asyncio.CancelledError)
    assert outcomes[1:] == [Rows([(query.params["key"],)], 1) for query in asked[1:]]
    assert await lane.ask(asked[0]) == Rows([(asked[0].params["key"],)], 1)


async def test_a_statement_that_is_cancelled_before_it_begins_is_the_matter_of_its_own_queries() -> None:
    """As whoever cancels all tasks of a loop does, `asyncio.run` at its end among them."""

    async def perform(query: Query) -> Rows:
        return Rows([(key,) for key in query.params["key"]], len(query.params["key"]))

    lane = QueryLane(perform)
    asked = [Query("alone", {"key": key}, merged="together") for key in _keys(4)]
    tasks = [asyncio.create_task(lane.ask(query)) for query in asked[:3]]
    await asyncio.sleep(0)  # they come
    await asyncio.sleep(0)  # and are joined in a statement
    (statement,) = lane._tasks
    tasks.append(asyncio.create_task(lane.ask(asked[3])))
    statement.cancel()
    outcomes = await _ended(tasks)
    assert [type(one) for one in outcomes[:3]] == [StoreUnavailable] * 3
    assert outcomes[3] == Rows([(asked[3].params["key"],)], 1)
    assert await lane.ask(asked[0]) == Rows([(asked[0].params["key"],)], 1)


async def test_a_caller_cancelled_under_way_disturbs_no_other(backend: Backend, migrated: str) -> None:
    wants = [_want(key) for key in _keys(5)]
    with psycopg.connect(migrated) as holding:
        holding.execute("LOCK TABLE retrysafe_records IN ACCESS EXCLUSIVE MODE")
        tasks = [asyncio.create_task(arun(claim(backend.store, want), backend.aclient())) for want in wants[:1]]
        await _blocked(migrated, backend, 1)
        tasks += [asyncio.create_task(arun(claim(backend.store, want), backend.aclient())) for want in wants[1:]]
        await asyncio.sleep(0)
        tasks[0].cancel()  # its statement is cut off, and what has queued goes on
        await _blocked(migrated, backend, 1)
        tasks[3].cancel()
    outcomes = await _ended(tasks)
    assert [type(one) for one in outcomes] == [asyncio.CancelledError, Won, Won, asyncio.CancelledError, Won]


async def test_a_block_that_is_cancelled_in_a_lane_gives_its_key_back(migrated: str, make: Making) -> None:
    boundary = make(driven(migrated, "asyncpg"))

    async def work(key: str) -> None:
        async with boundary.claim(key):
            pass

    await work("before")
    tasks = [asyncio.create_task(work(f"key {number}")) for number in range(8)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    outcomes = await _ended(tasks)
    assert [type(one) for one in outcomes] == [asyncio.CancelledError, type(None)] * 4
    assert Counter(state for state, _ in records_of(migrated, boundary.name))["completed"] == 5
    assert not {"running", "unknown"} & {state for state, _ in records_of(migrated, boundary.name)}
    await asyncio.gather(*(work(f"key {number}") for number in range(8)))
    await boundary.aclose()


async def test_a_refusal_of_the_server_concerns_one_caller(backend: Backend) -> None:
    wants = [_want(key) for key in _keys(6)]
    wants[3] = wants[3]._replace(scope="no\0text")
    outcomes = await _claimed(backend, wants)
    assert [type(one) for one in outcomes[:3] + outcomes[4:]] == [Won] * 5
    assert not isinstance(outcomes[3], Won)


@pytest.mark.slow
async def test_a_key_that_somebody_holds_up_holds_up_no_other(backend: Backend, migrated: str) -> None:
    wants = [_want(key) for key in _keys(6)]
    with psycopg.connect(migrated) as other:  # as a transactional claim of an earlier release would
        other.execute(f"{INSERT} * FROM retrysafe_records WHERE false".encode())
        run_alone = connect(migrated)
        with run_alone.client().transaction() as opened:
            begin = run_alone.store.begin().request  # type: ignore[attr-defined]
            opened.execute(begin)
            theirs = _want(wants[2].key)._replace(effects="transactional")
            opened.execute(run_alone.store.claim(theirs).request)
            tasks = [asyncio.create_task(arun(claim(backend.store, want), backend.aclient())) for want in wants]
            done, waiting = await asyncio.wait(tasks, timeout=5, return_when=asyncio.ALL_COMPLETED)
            assert {task for task in tasks if task not in done} == {tasks[2]} == waiting
            later = await _claimed(backend, [_want(key) for key in _keys(3)])
            assert [type(one) for one in later] == [Won] * 3
        assert isinstance(await tasks[2], Won), "the other transaction was rolled back"
        run_alone.close()


# ---------------------------------------------------------------- statements without an answer


async def test_claims_whose_connection_dies_ask_again(backend: Backend, migrated: str) -> None:
    wants = [_want(key) for key in _keys(8)]
    with psycopg.connect(migrated) as holding:
        holding.execute("LOCK TABLE retrysafe_records IN ACCESS EXCLUSIVE MODE")
        asking = asyncio.create_task(_claimed(backend, wants))
        _terminate(migrated, await _blocked(migrated, backend, 1))
    outcomes = await asking
    assert [type(one) for one in outcomes] == [Won] * 8
    assert [one.record.attempt for one in outcomes] == [want.attempt for want in wants]


@pytest.mark.parametrize("written", [True, False])
async def test_claims_and_completions_in_doubt_are_recognised(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, *, written: bool
) -> None:
    """Each statement is performed, or is not, and its answer is lost; when it is put again it is answered."""
    lost: Counter[str] = Counter()
    perform = AsyncpgDriver.perform

    async def losing(connection: Any, query: Query) -> Rows:
        lost[query.sql] += 1
        loses = "unnest" in query.sql and lost[query.sql] <= 1
        question = Query("SELECT 1", {}, writes=False) if loses and not written else query
        rows = await perform(connection, question)
        if loses:
            raise OSError("lost")
        return rows

    monkeypatch.setattr(AsyncpgDriver, "perform", staticmethod(losing))
    wants = [_want(key) for key in _keys(8)]
    won = await _claimed(backend, wants)
    assert [type(one) for one in won] == [Won] * 8
    assert [(one.record.attempt, one.record.attempts) for one in won] == [(want.attempt, 1) for want in wants]
    settled = await asyncio.gather(
        *(arun(settle(backend.store, one.ownership, Transition.COMPLETE, DONE), backend.aclient()) for one in won)
    )
    assert all(settled)


async def test_a_late_owner_settles_nothing_of_another_attempt_in_a_batch(backend: Backend) -> None:
    won = await _claimed(backend, [_want(key) for key in _keys(6)])
    owners = [one.ownership for one in won]
    late = [one._replace(attempt="another") if number % 2 else one for number, one in enumerate(owners)]
    late[4] = late[4]._replace(token=late[4].token - 1)
    settled = await asyncio.gather(
        *(arun(settle(backend.store, held, Transition.COMPLETE, DONE), backend.aclient()) for held in late)
    )
    assert settled == [True, False, True, False, False, False]


async def test_a_caller_queued_for_too_long_is_told_that_nothing_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    answer, began = asyncio.get_running_loop().create_future(), asyncio.Event()

    async def perform(query: Query) -> Rows:
        began.set()
        return await answer

    lane = QueryLane(perform)
    asked = [Query("alone", {"key": key}, merged="together") for key in _keys(2)]
    tasks = [asyncio.create_task(lane.ask(asked[0]))]
    await began.wait()
    tasks += [asyncio.create_task(lane.ask(asked[1]))]
    await asyncio.sleep(0)
    monkeypatch.setattr(lanes, "CHECKOUT", -1.0)
    answer.set_result(Rows([], 0))
    with pytest.raises(StoreUnavailable) as caught:
        await tasks[1]
    assert caught.value.unsent
    assert await tasks[0] == Rows([], 0)


async def test_every_query_of_a_silent_statement_has_an_error_of_its_own() -> None:
    async def perform(query: Query) -> Rows:
        fail(TimeoutError("no answer within 10 s"), alone=True)

    lane = QueryLane(perform)
    asked = [Query("alone", {"key": key}, merged="together") for key in _keys(3)]
    outcomes = await _ended([lane.ask(query) for query in asked])
    errors = [one for one in outcomes if isinstance(one, StoreUnavailable)]
    assert len(set(map(id, errors))) == 3
    assert not any(error.unsent for error in errors)


async def test_duplicates_of_a_boundary_in_a_lane(migrated: str, make: Making) -> None:
    boundary = make(driven(migrated, "asyncpg"))
    ran: Counter[str] = Counter()

    async def work(key: str) -> str:
        try:
            async with boundary.claim(key) as found:
                if not found.replayed:
                    ran[key] += 1
                    found.result = key
            return str(found.result)
        except InProgress:
            return "busy"

    for _ in range(4):
        answers = await asyncio.gather(*(work(f"key {number % 7}") for number in range(60)))
        assert all(answer in ("busy", f"key {number % 7}") for number, answer in enumerate(answers))
    assert ran == {f"key {number}": 1 for number in range(7)}
    await boundary.aclose()


async def _blocked(url: str, backend: Backend, count: int, but: Sequence[int] = ()) -> list[int]:
    """The sessions of a backend that wait for a lock, once there are so many."""
    name = backend.address.partition("application_name=")[2].partition("&")[0]
    sql = "SELECT pid FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'"
    with psycopg.connect(url, autocommit=True) as watching:

        def found() -> list[int]:
            pids = [pid for (pid,) in watching.execute(sql, (name,)).fetchall() if pid not in but]
            return pids if len(pids) >= count else []

        pids: list[int] = await auntil(found)
        return pids


def _terminate(url: str, pids: Sequence[int]) -> None:
    with psycopg.connect(url, autocommit=True) as admin:
        for pid in pids:
            admin.execute("SELECT pg_terminate_backend(%s)", (pid,))


async def test_replays_of_one_key_share_its_row(make: Making, migrated: str, performed: list[Query]) -> None:
    """They do not queue up behind one another: as many statements as for different keys."""
    boundary = make(driven(migrated, "asyncpg"))

    async def one(key: str) -> object:
        async with boundary.claim(key) as claim:
            if not claim.replayed:
                claim.result = key
            return claim.result

    async def statements(keys: Sequence[str]) -> int:
        performed.clear()
        assert await asyncio.gather(*map(one, keys)) == [*keys]
        return len(performed)

    different = [f"key-{number}" for number in range(MANY)]
    await statements(different)
    assert await statements(["key-0"] * MANY) <= await statements(different)
    await boundary.aclose()


async def test_rivals_for_one_key_in_one_statement_have_one_winner(make: Making, migrated: str) -> None:
    boundary = make(driven(migrated, "asyncpg"))
    all_asked = asyncio.Event()

    async def one() -> bool:
        try:
            async with boundary.claim("key"):
                await all_asked.wait()
                return True
        except InProgress:
            return False

    tasks = [asyncio.create_task(one()) for _ in range(MANY)]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    all_asked.set()
    assert sum(await asyncio.gather(*tasks)) == 1
    await boundary.aclose()
