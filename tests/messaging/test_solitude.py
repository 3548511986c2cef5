"""The messages that are handled alone, and those handled beside others."""

from __future__ import annotations

import asyncio

import pytest

from retrysafe.messaging.subscription.exclusive import Exclusive
from tests.tables import each_row


class Work:
    """Begins when it is let in, ends when it is told to."""

    def __init__(self) -> None:
        self.begun, self.may_end = asyncio.Event(), asyncio.Event()

    async def __call__(self) -> str:
        self.begun.set()
        await self.may_end.wait()
        return "done"


async def settle() -> None:
    """Let every task go as far as it can."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_lone_message_waits_for_the_others_and_they_for_it() -> None:
    solitude, before, alone, after = Exclusive(), Work(), Work(), Work()
    tasks = [asyncio.create_task(solitude.together(before))]
    await before.begun.wait()
    tasks += [asyncio.create_task(solitude.alone(alone)), asyncio.create_task(solitude.together(after))]
    await settle()
    assert not alone.begun.is_set()
    before.may_end.set()
    await alone.begun.wait()
    await settle()
    assert not after.begun.is_set()
    alone.may_end.set()
    await after.begun.wait()
    after.may_end.set()
    assert await asyncio.gather(*tasks) == ["done"] * 3


async def test_two_are_not_alone_together() -> None:
    solitude, one, other = Exclusive(), Work(), Work()
    tasks = [asyncio.create_task(solitude.alone(work)) for work in (one, other)]
    await one.begun.wait()
    await settle()
    assert not other.begun.is_set()
    one.may_end.set()
    await other.begun.wait()
    other.may_end.set()
    await asyncio.gather(*tasks)


async def test_a_hanging_message_holds_up_no_other_for_ever() -> None:
    solitude, before, alone, after = Exclusive(patience=0), Work(), Work(), Work()
    tasks = [asyncio.create_task(solitude.together(before))]
    await before.begun.wait()
    tasks += [asyncio.create_task(solitude.alone(alone)), asyncio.create_task(solitude.together(after))]
    await alone.begun.wait()
    await after.begun.wait()
    for work in (before, alone, after):
        work.may_end.set()
    await asyncio.gather(*tasks)


@each_row("waits", [True, False])
async def test_a_cancelled_work_ends_and_lets_the_others_go_on(waits: bool) -> None:
    solitude, before, alone, after = Exclusive(), Work(), Work(), Work()
    first = asyncio.create_task(solitude.together(before))
    await before.begun.wait()
    task = asyncio.create_task(solitude.alone(alone))
    await settle()
    if not waits:
        before.may_end.set()
        await alone.begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    last = asyncio.create_task(solitude.alone(after))
    before.may_end.set()
    await after.begun.wait()
    after.may_end.set()
    assert await asyncio.gather(first, last) == ["done"] * 2


async def test_an_error_is_the_callers() -> None:
    async def fail() -> None:
        raise ValueError("no")

    solitude = Exclusive()
    for do in (solitude.together, solitude.alone):
        with pytest.raises(ValueError, match="no"):
            await do(fail)
    work = Work()
    work.may_end.set()
    assert await solitude.alone(work) == "done"
