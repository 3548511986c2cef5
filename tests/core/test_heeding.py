"""Cancellations of tasks: heard although a library loses them, and never another's."""

from __future__ import annotations

import asyncio

import pytest

from retrysafe.heeding import heeding, shielded
from tests.tables import each_row


async def loses(cancellation: list[asyncio.Task[object] | None], ends_with: BaseException | None = None) -> str:
    """As ``asyncio.wait_for`` of Python 3.11 does, whose cancellation comes with its end."""
    for task in cancellation:
        assert task is not None
        task.cancel()
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        if ends_with is not None:
            raise ends_with from None
    return "answer"


async def test_a_cancellation_that_is_lost_is_heeded() -> None:
    async def work() -> str:
        return await heeding(loses([asyncio.current_task()]))

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(work())
    assert await heeding(loses([])) == "answer"


@each_row("error", [ValueError("why"), asyncio.CancelledError()])
async def test_an_error_that_comes_with_a_cancellation_is_its_cause(error: BaseException) -> None:
    async def work() -> str:
        return await heeding(loses([asyncio.current_task()], error))

    with pytest.raises(asyncio.CancelledError) as caught:
        await asyncio.create_task(work())
    assert caught.value.__cause__ is error or caught.value is error


async def test_what_ends_the_process_is_not_hidden_by_a_cancellation() -> None:
    ended: list[BaseException] = []

    async def work() -> None:
        try:
            await heeding(loses([asyncio.current_task()], SystemExit(3)))
        except BaseException as error:  # noqa: BLE001 - a task that raises it would end the test's loop
            ended.append(error)

    await asyncio.create_task(work())
    assert isinstance(ended[0], SystemExit)


async def test_whoever_waits_for_a_task_that_another_cancels_is_not_cancelled() -> None:
    task = asyncio.create_task(asyncio.sleep(3600))
    waiting = asyncio.create_task(shielded(task, ConnectionError("closed")))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(ConnectionError, match="closed"):
        await waiting


async def test_whoever_is_cancelled_leaves_the_task_to_others() -> None:
    over = asyncio.Event()
    task = asyncio.create_task(over.wait())
    waiting = [asyncio.create_task(shielded(task, ConnectionError("closed"))) for _ in range(2)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting[0]
    over.set()
    assert await waiting[1]


async def test_a_cancellation_that_came_is_passed_on_as_it_is() -> None:
    """By its message anyio knows whether a cancellation is its own."""
    task = asyncio.create_task(heeding(asyncio.Event().wait()))
    await asyncio.sleep(0)
    task.cancel("mine")
    with pytest.raises(asyncio.CancelledError, match="mine"):
        await task
