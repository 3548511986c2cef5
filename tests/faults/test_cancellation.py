"""Cancellation at every step of the event loop: no key is left locked, the cancellation goes on. FAULTS 89."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import product
from typing import Any

import anyio
import psycopg
import pytest

from retrysafe import Boundary, InProgress, StoreUnavailable
from retrysafe import cancellation as finishing
from retrysafe.cancellation import WorkerThread, run_to_completion
from retrysafe.entrypoint import _in_entering, in_thread
from retrysafe.protocol.requests import Query
from tests.faults.conftest import Making, server_of
from tests.faults.helpers import Told, auntil, forever, plain, records_of, seeded, unique, until
from tests.tables import each_row

TRANSACTIONAL = ["sqlite", "aiosqlite", "psycopg", "asyncpg", "asyncmy"]
KINDS = ["memory", *TRANSACTIONAL, "dynamodb"]
LEASED = ("keyed", "external")


@asynccontextmanager
async def boundary_of(kind: str, effects: str, make: Making, request: pytest.FixtureRequest) -> AsyncIterator[Boundary]:
    """A boundary on a store of that kind, and its store's end."""
    engine: Any = None
    if kind == "memory":
        store: Any = "memory://"
    elif kind in ("sqlite", "aiosqlite"):
        store = request.getfixturevalue("sqlite_url")
        if kind == "aiosqlite":
            from sqlalchemy.ext.asyncio import create_async_engine

            store = engine = create_async_engine(store.replace("sqlite:", "sqlite+aiosqlite:"))
    else:
        store = server_of(kind, request)
    made = make(store, effects=effects, lease="60s")
    try:
        yield made
    finally:
        await made.aclose()
        if engine is not None:
            await engine.dispose()


async def cancelled_at(step: int, work: Callable[[], Awaitable[Any]]) -> bool:
    """Cancel the work after so many steps of the loop; whether it had not ended before. Cancellation must go on."""
    task = asyncio.ensure_future(work())
    for _ in range(step):
        await asyncio.sleep(0)
    early = not task.done() and task.cancel()
    outcome = (await asyncio.gather(task, return_exceptions=True))[0]
    if early:
        assert isinstance(outcome, asyncio.CancelledError), f"step {step}: {outcome!r}"
    else:
        assert not isinstance(outcome, BaseException)
    return early


IN_A_THREAD: dict[str, Callable[[Callable[[], object]], Awaitable[object]]] = {
    "of one's own": lambda work: WorkerThread("retrysafe-waited").run(work),
    "of a handler": in_thread,
    "of a claim": _in_entering,
}


@pytest.mark.fault(89)
@each_row("wait", IN_A_THREAD.values(), ids=IN_A_THREAD)
def test_the_end_of_asyncio_run_waits_for_what_a_thread_uses(
    wait: Callable[[Callable[[], object]], Awaitable[object]],
) -> None:
    """It cancels every task, those that nobody else can cancel too. A SQLite connection was closed while a thread used
    it: Python died of a segmentation fault."""
    begun, may_end, ended = threading.Event(), threading.Event(), list[str]()

    def work() -> None:
        begun.set()
        may_end.wait(60)
        ended.append("thread")

    async def waiting() -> None:
        try:
            await wait(work)
        finally:
            ended.append("task")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        waits.append(loop.create_task(waiting()))
        await asyncio.to_thread(begun.wait, 60)

        def later(turns: int) -> None:
            if turns:
                loop.call_soon(later, turns - 1)
            else:
                may_end.set()

        later(100)

    waits: list[asyncio.Task[None]] = []
    asyncio.run(main())
    assert (ended, waits[0].cancelled()) == (["thread", "task"], True)


@each_row("wait", IN_A_THREAD.values(), ids=IN_A_THREAD)
async def test_a_stop_iteration_of_what_a_thread_does_is_raised(
    wait: Callable[[Callable[[], object]], Awaitable[object]],
) -> None:
    """No future can hold it, as that of a bare `next()`: whoever waited did so for ever."""
    with pytest.raises(RuntimeError, match="StopIteration") as raised:
        await wait(lambda: next(iter(())))
    assert isinstance(raised.value.__cause__, StopIteration)


@each_row("scoped", ["anyio", "asyncio"])
async def test_work_whose_time_is_over_ends_with_the_cancellation_of_its_caller(scoped: str) -> None:
    """A scope of anyio knows its own by its text, and passed on another."""
    ended: list[str] = []

    async def work() -> None:
        try:
            await forever()
        finally:
            ended.append("cancelled")

    if scoped == "anyio":
        with anyio.move_on_after(0) as scope:
            await run_to_completion(work(), patience=0.01)
        assert scope.cancelled_caught
    else:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await run_to_completion(work(), patience=0.01)
    assert ended == ["cancelled"]


async def _as_asyncio_run_ends() -> None:
    """Cancel every other task that asyncio knows, once, and wait for them."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.fault(89)
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", ["sqlite", "psycopg", "asyncpg", "asyncmy"])
def test_asyncio_run_that_ends_at_any_step_leaves_no_transaction(
    kind: str, make: Making, request: pytest.FixtureRequest
) -> None:
    store = request.getfixturevalue("sqlite_url") if kind == "sqlite" else server_of(kind, request)
    boundary = make(store, effects="transactional")

    async def guarded(key: str) -> bool:
        async with boundary.claim(key) as claim:
            if not claim.replayed:
                await asyncio.sleep(0)
                claim.result = key
        return bool(claim.result == key)

    def is_free(key: str) -> bool:
        try:
            return asyncio.run(guarded(key))
        except InProgress:
            assert kind != "sqlite"  # a server takes its time to notice that a connection was closed
            return False

    async def begun(key: str, steps: int) -> bool:
        working = asyncio.create_task(guarded(key))
        for _ in range(steps):
            await asyncio.sleep(0)
        return working.done()

    step, quiet = 0, 0
    while quiet < 3:  # steps that wait for a server take a varying number of turns
        quiet = quiet + 1 if asyncio.run(begun(f"key{step}", step)) else 0
        until(lambda key=f"key{step}": is_free(key))
        step += 1 if step < 40 else step // 5
    assert step > 3
    gc.collect()  # connections that were cut off while they were made


@pytest.mark.fault(89)
@pytest.mark.parametrize(("kind", "effects"), [*product(KINDS, ["keyed"]), *product(TRANSACTIONAL, ["transactional"])])
async def test_cancelled_at_every_step_of_a_whole_operation(
    kind: str, effects: str, make: Making, request: pytest.FixtureRequest
) -> None:
    async with boundary_of(kind, effects, make, request) as boundary:

        async def guarded(key: str) -> bool:
            async with boundary.claim(key) as claim:
                if not claim.replayed:
                    await asyncio.sleep(0)
                    claim.result = key
            return claim.replayed

        await guarded("warm")
        step, quiet = 0, 0
        while quiet < 3:  # steps that wait for a server take a varying number of turns
            key = f"key{step}"
            early = await cancelled_at(step, partial(guarded, key))
            quiet = 0 if early else quiet + 1
            # in reject() mode a key that was left locked would raise InProgress here
            async with boundary.claim(key) as claim:
                if not claim.replayed:
                    claim.result = key
            assert claim.result == key
            step += 1 if step < 40 else step // 5
        assert step > 3


@pytest.mark.slow
@pytest.mark.fault(89)
@pytest.mark.parametrize("kind", KINDS)
async def test_cancelled_while_claiming_leaves_no_orphan(
    kind: str, make: Making, request: pytest.FixtureRequest
) -> None:
    """Hundreds of claims cancelled at random moments: without the shield a third locked their key for a lease."""
    chance = seeded(f"orphans {kind}")
    async with boundary_of(kind, "keyed", make, request) as boundary:
        entered: set[str] = set()

        async def guarded(key: str) -> None:
            async with boundary.claim(key) as claim:
                entered.add(key)
                claim.result = key

        async def one(key: str) -> None:
            task = asyncio.create_task(guarded(key))
            for _ in range(chance.randrange(12)):
                await asyncio.sleep(0)
            await _turns(chance)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        async def again(key: str) -> None:
            async with boundary.claim(key) as claim:  # InProgress, if it were locked
                if not claim.replayed:
                    claim.result = key

        keys = [f"key{i}" for i in range(80 if kind in ("aiosqlite", "dynamodb") else 400)]
        for start in range(0, len(keys), 8):
            await asyncio.gather(*map(one, keys[start : start + 8]))
        for start in range(0, len(keys), 8):
            await asyncio.gather(*map(again, keys[start : start + 8]))
        assert len(entered) < len(keys), "no claim was cancelled"
        if kind in ("psycopg", "asyncmy"):
            states = {state for state, _ in records_of(server_of(kind, request), boundary.name)}
            assert states == {"completed"}


async def _turns(chance: random.Random) -> None:
    """Let a server answer a part of the requests: wait for a short random number of readiness events."""
    if chance.random() < 0.7:
        await asyncio.to_thread(lambda: None)


@pytest.mark.fault(89)
@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_a_completion_that_has_to_wait_outlives_its_cancelled_caller(
    driver: str, make: Making, request: pytest.FixtureRequest
) -> None:
    """Another session holds a lock on the record while its attempt is cancelled in the middle of completing it."""
    url = server_of(driver, request)
    boundary = make(url, lease="60s")
    working, go_on = asyncio.Event(), asyncio.Event()

    async def guarded() -> None:
        async with boundary.claim("key") as claim:
            working.set()
            await go_on.wait()
            claim.result = "done"

    with psycopg.connect(plain(url)) as other, psycopg.connect(plain(url), autocommit=True) as watching:
        task = asyncio.create_task(guarded())
        await working.wait()
        other.execute("SELECT 1 FROM retrysafe_records WHERE boundary = %s FOR UPDATE", (boundary.name,))
        blocked = "SELECT 1 FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
        until = time.monotonic() + 5  # well before the statement's own deadline
        go_on.set()
        await auntil(lambda: watching.execute(blocked, (other.info.backend_pid,)).fetchone())
        task.cancel()
        for _ in range(50):  # as long as the server takes to hear of a statement that is cancelled, and longer
            await asyncio.sleep(0)
            waits = watching.execute(blocked, (other.info.backend_pid,)).fetchone()
            if time.monotonic() > until:
                break
            assert waits, "the completion was given up"
            assert not task.done()
        other.commit()
        with pytest.raises(asyncio.CancelledError):
            await task
    async with boundary.claim("key") as claim:
        assert (claim.replayed, claim.result) == (True, "done")
    await boundary.aclose()


@pytest.mark.parametrize("how", ["timeout", "move_on_after", "task group", "cancelled twice", "wait_for"])
@pytest.mark.parametrize("kind", ["sqlite", "psycopg", "asyncpg", "asyncmy", "dynamodb"])
async def test_the_ways_to_cancel(
    kind: str, how: str, make: Making, told: Told, request: pytest.FixtureRequest
) -> None:
    async with boundary_of(kind, "keyed", make, request) as boundary:
        inside, helpers = asyncio.Event(), list[asyncio.Future[None]]()

        async def hang() -> None:
            async with boundary.claim("key"):
                inside.set()
                await forever()

        async def leave_when_inside() -> None:
            await inside.wait()
            raise ZeroDivisionError

        if how == "timeout":
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(None) as scope:
                    helpers.append(asyncio.ensure_future(_then(inside, lambda: scope.reschedule(0))))
                    await hang()
        elif how == "wait_for":
            task = asyncio.ensure_future(hang())
            await inside.wait()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(task, 0)
        elif how == "move_on_after":
            with anyio.CancelScope() as scope_:
                helpers.append(asyncio.ensure_future(_then(inside, scope_.cancel)))
                await hang()
            assert scope_.cancelled_caught
        elif how == "task group":
            with pytest.raises(ExceptionGroup) as caught:
                async with asyncio.TaskGroup() as group:
                    group.create_task(hang())
                    group.create_task(leave_when_inside())
            assert [type(error) for error in caught.value.exceptions] == [ZeroDivisionError]
        else:
            task = asyncio.ensure_future(hang())
            await inside.wait()
            task.cancel()
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        current = asyncio.current_task()
        assert current is not None
        assert how == "task group" or current.cancelling() == 0  # before 3.13 a group forgets to take its own back
        assert told.names["released"] == 1
        async with boundary.claim("key") as claim:
            assert not claim.replayed


async def _then(event: asyncio.Event, act: Callable[[], object]) -> None:
    await event.wait()
    act()


@pytest.mark.parametrize("kind", ["sqlite", "psycopg", "asyncpg", "asyncmy", "dynamodb"])
async def test_a_cancel_scope_around_the_claim_leaves_no_orphan(
    kind: str, make: Making, request: pytest.FixtureRequest
) -> None:
    """anyio delivers cancellation again at every await; the shield must hold for claim and release."""
    async with boundary_of(kind, "keyed", make, request) as boundary:
        for step in range(25):
            with anyio.CancelScope() as scope:
                asyncio.get_running_loop().call_soon(_cancel_later, scope, step)
                async with boundary.claim(f"key{step}") as claim:
                    claim.result = step
            async with boundary.claim(f"key{step}") as claim:
                if not claim.replayed:
                    claim.result = step
            assert claim.result == step


async def test_a_cancel_scope_does_not_keep_a_release_spinning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without anyio's own shield the loop around the release would be woken at every turn of the event loop."""
    waits: list[int] = []
    real = finishing._await_end

    async def counted(task: asyncio.Task[Any]) -> asyncio.CancelledError | None:
        waits.append(1)
        return await real(task)

    monkeypatch.setattr(finishing, "_await_end", counted)

    async def release() -> str:
        for _ in range(50):
            await asyncio.sleep(0)
        return "released"

    with anyio.CancelScope() as scope:
        scope.cancel()
        assert (await run_to_completion(release()))[0] == "released"
    assert len(waits) == 2, "one that was cancelled, and one to the end"


def _cancel_later(scope: anyio.CancelScope, turns: int) -> None:
    if turns == 0:
        scope.cancel()
    else:
        asyncio.get_running_loop().call_soon(_cancel_later, scope, turns - 1)


@pytest.mark.parametrize("effects", LEASED)
async def test_a_cancelled_handler_is_in_doubt_only_where_its_effect_is(
    effects: str, sqlite_url: str, make: Making, told: Told
) -> None:
    boundary = make(sqlite_url, effects=effects)
    inside = asyncio.Event()

    async def hang() -> None:
        async with boundary.claim("key"):
            inside.set()
            await forever()

    task = asyncio.ensure_future(hang())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert told.names["released" if effects == "keyed" else "unknown"] == 1
    assert [state for state, _ in records_of(sqlite_url, boundary.name)] == (
        ["released"] if effects == "keyed" else ["unknown"]
    )
    await boundary.aclose()


async def test_a_connection_of_asyncpg_that_did_not_answer_in_time_is_not_lent_again(
    migrated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncpg would wait for the cancellation of its statement first, which a silent server does not confirm."""
    from retrysafe.backends.sql.drivers import asyncpg as driver
    from retrysafe.backends.sql.drivers import deadline

    name = unique("silent")
    client = driver.AsyncpgDriver.to(f"{migrated}?application_name={name}")
    pid = "SELECT pg_backend_pid()"
    before = await client(Query(pid, {}, writes=False))
    monkeypatch.setattr(deadline, "DEADLINE", 0.05)
    with pytest.raises(StoreUnavailable):
        await client(Query("SELECT pg_sleep(60)", {}, writes=False))
    monkeypatch.undo()
    assert (await client(Query(pid, {}, writes=False))).rows != before.rows
    await client.aclose()
