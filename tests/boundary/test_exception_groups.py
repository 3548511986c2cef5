"""Errors in groups, as a TaskGroup raises them, are judged by what is in the groups."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from retrysafe import (
    Boundary,
    Event,
    InProgress,
    LeaseLost,
    OutcomeUnknown,
    RetryTransaction,
    StoredFailure,
    current,
)
from retrysafe.claims.heartbeat import LeaseTerm
from retrysafe.protocol.exception_groups import every, leaves, unwrap
from tests.tables import each_row


class Declined(Exception):
    def __init__(self, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.data = data


class Serialization(Exception):
    """A driver's exception, told by its SQLSTATE alone."""

    sqlstate = "40001"


def boundary(tmp_path: Path, **terms: Any) -> Boundary:
    return Boundary("x", store=f"sqlite:///{tmp_path / 'x.db'}", **{"permanent": Declined, **terms})


def replay(guarded: Boundary, key: str = "k") -> StoredFailure | None:
    """Return the answer to a retry: the stored failure, or None if it runs."""
    try:
        with guarded.claim(key) as claim:
            assert not claim.replayed
            claim.not_executed()
            raise LookupError
    except StoredFailure as failure:
        return failure
    except LookupError:
        return None


@each_row("effects", ["transactional", "keyed", "external"])
def test_a_group_of_permanent_errors_is_permanent(tmp_path: Path, effects: Any) -> None:
    guarded = boundary(tmp_path, effects=effects)
    with pytest.raises(ExceptionGroup), guarded.claim("k"):
        raise ExceptionGroup("all", [Declined("a", {"code": 1}), ExceptionGroup("in", [Declined("b", object())])])
    failure = replay(guarded)
    assert failure is not None
    assert (failure.type, failure.message) == ("ExceptionGroup", "2 errors: Declined: a; Declined: b")
    assert failure.data == [
        {"type": "Declined", "message": "a", "data": {"code": 1}},
        {"type": "Declined", "message": "b", "data": None},
    ]


async def test_the_only_error_of_a_task_group_is_stored_as_if_it_were_raised_alone(tmp_path: Path) -> None:
    told: list[Event] = []
    guarded = boundary(tmp_path, observers=(told.append,))

    async def decline() -> None:
        raise Declined("no cover", {"code": "51"})

    @guarded.once(key="key")
    async def charge(key: str) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(decline())
            group.create_task(asyncio.Event().wait())

    with pytest.raises(ExceptionGroup):
        await charge("k")
    with pytest.raises(StoredFailure) as caught:
        await charge("k")
    assert (caught.value.type, caught.value.message, caught.value.data) == ("Declined", "no cover", {"code": "51"})
    assert [one.fields["error_type"] for one in told if one.name == "failed"] == ["Declined"]
    await guarded.aclose()


@each_row(
    "group",
    [
        ExceptionGroup("mixed", [Declined("a"), OSError("away")]),
        ExceptionGroup("deep", [Declined("a"), ExceptionGroup("in", [Declined("b"), OSError("away")])]),
        BaseExceptionGroup("cancelled", [Declined("a"), asyncio.CancelledError()]),
        BaseExceptionGroup("interrupted", [Declined("a"), KeyboardInterrupt()]),
        BaseExceptionGroup("leaving", [SystemExit(1)]),
    ],
    ids=lambda group: group.message,
)
def test_a_group_with_anything_else_is_transient(tmp_path: Path, group: BaseException) -> None:
    guarded = boundary(tmp_path)
    with pytest.raises(BaseExceptionGroup), guarded.claim("k"):
        raise group
    assert replay(guarded) is None


@each_row("inner", [InProgress, LeaseLost, OutcomeUnknown, RetryTransaction, Serialization])
def test_a_passing_error_makes_a_group_transient_however_broad_the_types(
    tmp_path: Path, inner: type[Exception]
) -> None:
    guarded = boundary(tmp_path, permanent=Exception)
    with pytest.raises(ExceptionGroup), guarded.claim("k"):
        raise ExceptionGroup("all", [Declined("a"), inner("of an inner claim")])
    assert replay(guarded) is None


def test_a_cause_does_not_count(tmp_path: Path) -> None:
    guarded = boundary(tmp_path)
    with pytest.raises(OSError, match="away"), guarded.claim("k"):
        raise OSError("away") from Declined("a")
    assert replay(guarded) is None


def test_types_of_groups_may_be_named_themselves(tmp_path: Path) -> None:
    guarded = boundary(tmp_path, permanent=ExceptionGroup)
    with pytest.raises(ExceptionGroup), guarded.claim("k"):
        raise ExceptionGroup("any", [OSError("away")])
    failure = replay(guarded)
    assert failure is not None
    assert (failure.type, failure.message) == ("OSError", "away")


def test_a_group_that_is_declared_is_stored_the_same(tmp_path: Path) -> None:
    @boundary(tmp_path).once(key="key")
    def run(key: str) -> None:
        current().fail(ExceptionGroup("two", [Declined("a", 1), OSError("b")]))

    for _ in range(2):
        with pytest.raises(StoredFailure) as caught:
            run("k")
        assert [one["message"] for one in caught.value.data] == ["a", "b"]


@each_row("error", [Serialization(), RetryTransaction("again")], ids=repr)
async def test_a_transaction_of_our_own_is_run_again_for_what_a_task_group_found(
    tmp_path: Path, error: Exception
) -> None:
    guarded = boundary(tmp_path, effects="transactional")
    runs: list[str] = []

    async def conflict() -> None:
        if len(runs) == 1:
            raise error

    @guarded.once(key="key")
    async def run(key: str) -> int:
        runs.append(key)
        async with asyncio.TaskGroup() as group:
            group.create_task(conflict())
        return len(runs)

    assert await run("k") == await run("k") == 2
    await guarded.aclose()


def test_a_transaction_is_not_run_again_when_its_work_was_interrupted(tmp_path: Path) -> None:
    runs: list[str] = []

    @boundary(tmp_path, effects="transactional").once(key="key")
    def run(key: str) -> None:
        runs.append(key)
        raise BaseExceptionGroup("two", [Serialization(), KeyboardInterrupt()])

    with pytest.raises(BaseExceptionGroup):
        run("k")
    assert len(runs) == 1


async def test_work_that_we_stopped_is_recognised_in_a_group(tmp_path: Path) -> None:
    guarded = boundary(tmp_path)

    async def work() -> None:
        async with guarded.claim("k") as claim:
            lease = claim._held
            assert isinstance(lease, LeaseTerm)
            lease.lose()  # as the heartbeat does
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError as cancelled:
                raise BaseExceptionGroup("of a library", [cancelled]) from cancelled

    with pytest.raises(LeaseLost):
        await work()
    await guarded.aclose()


def test_groups_are_looked_into() -> None:
    one, two = Declined("a"), OSError("b")
    deep = ExceptionGroup("x", [one, ExceptionGroup("y", [ExceptionGroup("z", [two])])])
    assert leaves(deep) == [one, two]
    assert leaves(one) == [one]
    assert unwrap(deep) is deep
    assert unwrap(ExceptionGroup("x", [ExceptionGroup("y", [one])])) is one
    assert every(deep, (Declined, OSError))
    assert not every(deep, Declined)
    assert not every(deep, ())
