"""Sagas: killed at every pair of boundaries, they end booked or undone; a compensation that fails stops them."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from retrysafe import Boundary, Claim, LeaseLost, OutcomeUnknown, StoredFailure
from retrysafe.protocol.outcomes import Answered
from tests.proving.effort import effort
from tests.steps.conftest import Make
from tests.steps.kills import Killed, Killer, World, elsewhere, key, pairs, settle, stalled
from tests.tables import each_row

BOOKINGS = ("flight", "hotel", "car")
ENDS = (ValueError, OutcomeUnknown, Killed, StoredFailure)


def _trip(boundary: Boundary, world: World, trip: str, *, fails: bool) -> Callable[[Killer], Any]:
    """Book a flight, a hotel and a car, of which there may be none."""

    def attempt(kill: Killer) -> Any:
        with boundary.claim(trip) as claim:
            if claim.replayed:
                return claim.result
            booked = []
            for name in BOOKINGS:
                kill()

                def book(name: str = name) -> str:
                    if name == "car" and fails:
                        raise ValueError("no car")
                    made = world.call(name)
                    kill()
                    return made

                def cancel(booking: str) -> None:
                    kill()
                    world.call(booking, made=False)
                    kill()

                booked.append(claim.step(name, book, undo=cancel))
            claim.result = booked
            return booked

    return attempt


@pytest.mark.fault(10, 11)
def test_a_saga_killed_at_every_pair_of_boundaries_ends_booked_or_undone(make: Make) -> None:
    boundary = make(effects="keyed", permanent=ValueError)
    on_server = boundary.entrypoint.backend.kind in ("postgresql", "mysql", "dynamodb")
    for fails in (False, True):
        for plan in list(pairs(13))[:: effort(6, 1) if on_server else 1]:
            world, trip = World(), key()
            ended = settle(_trip(boundary, world, trip, fails=fails), plan)
            done = {name for name in world.names() if not name.startswith("undo")}
            if fails:
                assert ended in ("ValueError", "StoredFailure"), plan
                assert done == {"flight", "hotel"}, plan
                assert {name for name in world.names() if name.startswith("undo")} == {f"undo {one}" for one in done}
            else:
                assert ended == list(BOOKINGS), plan
                assert done == set(BOOKINGS), plan
            for name in world.names():
                assert len(world.keys_of(name)) == 1, f"{plan}: repeated calls of {name} carry one key"
            with pytest.raises(StoredFailure) if fails else _nothing():
                assert _trip(boundary, world, trip, fails=not fails)(Killer(None)) == list(BOOKINGS), "it is a replay"


def _nothing() -> Any:
    from contextlib import nullcontext

    return nullcontext()


def test_a_run_that_goes_back_is_unknown_where_its_compensation_is(on_sqlite: Make) -> None:
    boundary = on_sqlite(effects="keyed", permanent=ValueError)
    undone: list[str] = []

    def undo(booking: str) -> None:
        undone.append(booking)

    def refused(booking: str) -> None:
        raise KeyError("no such booking")

    def fail() -> None:
        raise ValueError("no car")

    def time_out() -> None:
        raise TimeoutError

    def ends(*attempts: Callable[[Claim], Any]) -> tuple[str, BaseException]:
        found: list[BaseException] = []
        for attempt in attempts:
            with (
                pytest.raises((ValueError, TimeoutError, OutcomeUnknown, Killed, StoredFailure)) as raised,
                boundary.claim(trip) as it,
            ):
                attempt(it)
            found.append(raised.value)
        return boundary.entrypoint.backend.run(_state(boundary, trip)), found[-1]

    def books(claim: Claim, *, last: Callable[[], None] | None = fail, cancel: Any = undo) -> None:
        claim.step("flight", lambda: "flight", undo=undo)
        claim.step("hotel", lambda: "hotel", undo=cancel)
        if last is not None:
            claim.step("car", last, undo=undo)

    def dies(claim: Claim) -> None:
        books(claim, last=None)
        raise Killed

    def forgets(claim: Claim) -> None:
        claim.step("flight", lambda: "flight", undo=undo)
        fail()

    def loses_the_answer(error: BaseException) -> Callable[[Claim], None]:
        def attempt(claim: Claim) -> None:
            def book() -> str:
                raise error

            claim.step("flight", lambda: "flight", undo=undo)
            claim.step("hotel", book, undo=undo)

        return attempt

    def in_doubt(claim: Claim) -> None:
        claim.step("flight", lambda: "flight", undo=undo)
        with pytest.raises(TimeoutError):
            claim.step("car", time_out, undo=undo)
        fail()

    def swallows(claim: Claim) -> None:
        try:
            books(claim)
        except Exception:  # noqa: BLE001 - as code does that knows better
            claim.fail(ValueError("gave up"))

    cases: list[tuple[tuple[Callable[[Claim], Any], ...], str, str, list[str]]] = [
        ((books,), "failed", "no car", ["hotel", "flight"]),
        ((dies, books), "failed", "no car", ["hotel", "flight"]),
        ((lambda claim: books(claim, cancel=refused),), "unknown", "'hotel' could not be undone", []),
        ((dies, forgets), "unknown", "'hotel' is to be undone", []),
        ((in_doubt,), "unknown", "'car' cannot be undone", []),
        *(
            row
            for lost in (Killed(), TimeoutError())
            for row in (
                ((loses_the_answer(lost), books), "failed", "no car", ["hotel", "flight"]),
                ((loses_the_answer(lost), forgets), "unknown", "'hotel' is to be undone", []),
            )
        ),
    ]
    for attempts, state, told, order in cases:
        undone.clear()
        trip = key()
        found, error = ends(*attempts)
        assert (found, undone) == (state, order), told
        assert told in str(error)

    trip = key()
    ends(lambda claim: books(claim, cancel=refused))
    assert boundary.resolve(trip, "released")
    undone.clear()
    assert ends(lambda claim: books(claim, last=None))[0] == "failed", (
        "redriven, it goes on back, whatever the code says"
    )
    assert undone == ["hotel", "flight"]
    with boundary.claim(trip := key()) as claim:
        swallows(claim)
    assert boundary.entrypoint.backend.run(_state(boundary, trip)) == "failed"


def _refuse(claim: Claim) -> None:
    raise ValueError("no car")


def _refuse_by_date(claim: Claim) -> None:
    assert claim.now()
    _refuse(claim)


@each_row(
    ("early", "ended"),
    [
        (_refuse, "unknown"),
        (_refuse_by_date, "unknown"),
        (lambda claim: claim.fail(ValueError("no car")), "unknown"),
        (lambda claim: claim._take_answer(Answered.ABORTED, None, "409"), "unknown"),
        (lambda claim: claim._take_answer(Answered.REFUSED, None, "409"), "completed"),
    ],
    ids=["raises", "asks for the time", "declares it", "answers an error", "returns a refusal"],
)
async def test_a_run_that_fails_before_it_asks_for_its_steps_is_unknown(
    on_sqlite: Make, early: Callable[[Claim], None], ended: str
) -> None:
    boundary = on_sqlite(effects="keyed", permanent=ValueError)
    undone: list[str] = []

    def books(claim: Claim) -> None:
        for name in ("flight", "hotel"):
            claim.step(name, str, name, undo=undone.append)

    def fails() -> None:
        with boundary.claim(trip) as claim:
            early(claim)

    async def fails_in_async_code() -> None:
        async with boundary.claim(trip) as claim:
            early(claim)

    for is_async in (False, True):
        trip = key()
        with pytest.raises(Killed), boundary.claim(trip) as claim:
            books(claim)
            raise Killed
        with (
            pytest.raises(OutcomeUnknown, match="'hotel' is to be undone, and so is 'flight', and the code did not")
            if ended == "unknown"
            else _nothing()
        ):
            await fails_in_async_code() if is_async else fails()
        assert boundary.entrypoint.backend.run(_state(boundary, trip)) == ended
        if ended == "unknown":
            assert boundary.resolve(trip, "released")
            with pytest.raises(StoredFailure, match=r"no car|409"), boundary.claim(trip) as claim:
                books(claim)
            assert undone == ["hotel", "flight"]
        undone.clear()
    await boundary.aclose()


async def test_a_retry_without_steps_that_fails_makes_no_table_of_steps(tmp_path: Path) -> None:
    boundary = Boundary("trips", store=f"sqlite:///{tmp_path / 'store.db'}", effects="keyed", permanent=ValueError)
    with pytest.raises(OSError, match="no paper"), boundary.claim("sync"):
        raise OSError("no paper")
    with pytest.raises(ValueError, match="no car"), boundary.claim("sync") as claim:
        _refuse(claim)
    with pytest.raises(OSError, match="no paper"):
        async with boundary.claim("async"):
            raise OSError("no paper")
    with pytest.raises(ValueError, match="no car"):
        async with boundary.claim("async") as claim:
            _refuse(claim)
    for name in ("sync", "async"):
        assert boundary.entrypoint.backend.run(_state(boundary, name)) == "failed"
    await boundary.aclose()
    with closing(sqlite3.connect(tmp_path / "store.db")) as looking:
        assert looking.execute("SELECT name FROM sqlite_master WHERE name LIKE '%steps%'").fetchall() == []


def _state(boundary: Boundary, name: str) -> Any:
    from retrysafe.protocol.procedures import read

    record = yield from read(
        boundary.entrypoint.backend.store, boundary.entrypoint.lookup(name, operation=boundary.name)
    )
    return None if record is None else str(record.state)


@pytest.mark.slow
async def test_compensations_of_async_code_end_although_it_is_cancelled(on_sqlite: Make) -> None:
    boundary = on_sqlite(effects="keyed", permanent=ValueError)
    undone: list[str] = []
    undoing = asyncio.Event()

    async def book(name: str) -> str:
        if name == "car":
            raise ValueError("no car")
        return name

    async def cancel(booking: str) -> None:
        undoing.set()
        await asyncio.sleep(0.05)
        undone.append(booking)

    async def trip() -> None:
        async with boundary.claim("trip") as claim:
            for name in BOOKINGS:
                await claim.step(name, book, name, undo=cancel)

    task = asyncio.create_task(trip())
    await undoing.wait()
    task.cancel()
    with pytest.raises((asyncio.CancelledError, ValueError)):
        await task
    assert undone == ["hotel", "flight"]
    with pytest.raises(StoredFailure, match="no car"):
        await trip()
    await boundary.aclose()


async def test_a_lease_that_is_lost_while_the_work_goes_back_is_no_cancellation(on_sqlite: Make) -> None:
    boundary = on_sqlite(effects="keyed", permanent=ValueError)

    async def lose(booking: str) -> None:
        claim._held.lose()  # type: ignore[union-attr]  # as the heartbeat does

    with pytest.raises(LeaseLost):
        async with boundary.claim("trip") as claim:
            await claim.step("flight", asyncio.sleep, 0, "flight", undo=lose)
            raise ValueError("no car")
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await boundary.aclose()


@pytest.mark.slow
def test_a_stale_attempt_goes_neither_back_nor_forward(on_sqlite: Make) -> None:
    boundary = on_sqlite(effects="keyed", permanent=ValueError, lease="250ms")
    undone: list[str] = []
    with stalled(boundary, order := key()) as stale:
        stale_flight = stale.step

        def goes_back() -> None:
            with pytest.raises(ValueError, match="no car"), boundary.claim(order) as claim:
                claim.step("flight", lambda: "flight", undo=undone.append)
                raise ValueError("no car")

        elsewhere(goes_back)
        assert undone == ["flight"]
        with pytest.raises(LeaseLost):
            stale_flight("hotel", lambda: "hotel", undo=undone.append)
        assert stale._context is not None
        error = ValueError("no car")
        with pytest.raises(LeaseLost):
            stale.__exit__(type(error), error, None)
    assert undone == ["flight"]


@each_row(
    ("ends", "told", "undone"),
    [
        ("returns", None, True),
        ("waits", "full", True),
        ("raises", "the printer", True),
        ("is interrupted", "stop", False),
    ],
)
def test_a_failure_that_was_declared_goes_back_however_the_attempt_ends(
    on_sqlite: Make, ends: str, told: str | None, undone: bool
) -> None:
    """One that is ended from outside frees the key: the next attempt declares it again."""
    boundary = on_sqlite(effects="keyed")
    order, gone = key(), []

    def attempt(ends: str) -> None:
        with boundary.claim(order) as claim:
            claim.step("room", lambda: "room", undo=gone.append)
            claim.fail(ValueError("full"))
            match ends:
                case "waits":
                    claim.sleep("a while", "1h")
                case "raises":
                    raise OSError("the printer")
                case "is interrupted":
                    raise KeyboardInterrupt("stop")

    if told is None:
        attempt(ends)
    else:
        with pytest.raises((ValueError, OSError, KeyboardInterrupt), match=told):
            attempt(ends)
    assert gone == ["room"] * undone
    with suppress(StoredFailure):
        attempt("returns")
    assert gone == ["room"]
    with pytest.raises(StoredFailure, match="full"), boundary.claim(order):
        pytest.fail("not run again")
