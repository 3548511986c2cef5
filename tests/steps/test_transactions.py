"""Steps in the user's transaction: the row and the recovery point are one commit, whichever attempt comes first."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from retrysafe import Boundary, ConfigurationError, InProgress, LeaseLost, RetryTransaction
from tests.boundary.shops import SHOPS, Shop
from tests.conftest import served
from tests.steps.kills import Killed, key

CHOSEN = (
    "sqlite3",
    "psycopg",
    "asyncpg",
    "PyMySQL",
    "SQLAlchemy AsyncSession, asyncmy",
    "PyMySQL, mysql-8",
)


@pytest_asyncio.fixture(params=CHOSEN)
async def shop(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Shop]:
    """Kinds of transactions, each driver and dialect among them."""
    service, open_ = SHOPS[request.param]
    served(request, service)
    opened = open_(tmp_path)
    yield opened
    await opened.close()


@asynccontextmanager
async def _entered(shop: Shop, step: Any) -> AsyncIterator[Any]:
    if shop.sync:
        with step:
            yield step
    else:
        async with step:
            yield step


async def _order(shop: Shop, claim: Any, value: str, *, die: bool = False, dies_after: bool = False) -> str:
    async with shop.transaction() as tx, _entered(shop, claim.step("row", tx=tx)) as step:
        if not step.replayed:
            await shop.insert(tx, value)
            step.result = value
        if die:
            raise Killed
    if dies_after:
        raise Killed
    result: str = step.result
    return result


@pytest.mark.slow
@pytest.mark.every_value
async def test_steps_in_the_users_transaction(shop: Shop) -> None:
    await _a_row_is_written_once_whichever_attempt_comes_first(shop)
    await _a_choreographed_saga_does_and_undoes_each_step_once_in_any_order(shop)
    if "sqlite" not in str(shop.store):  # writers are serial there: a second transaction cannot even begin
        await _an_open_transaction_of_another_attempt_is_not_waited_for(shop)


async def _a_row_is_written_once_whichever_attempt_comes_first(shop: Shop) -> None:
    boundary = shop.boundary(effects="keyed", lease="400ms")
    order = key()
    for number, kill in enumerate(({"die": True}, {"dies_after": True}, {})):
        try:
            async with shop.entered(boundary.claim(order)) as claim:
                assert await _order(shop, claim, f"goods {number}", **kill) == "goods 1"
        except Killed:
            pass
        assert shop.rows() == ["goods 1"][: number or 0], "killed before its commit, it has done nothing"

    for stale_first in (True, False):
        await _zombie(shop, boundary, stale_first=stale_first)
    assert len(shop.rows()) == 3, "one row each, by the attempt that committed first"


async def _zombie(shop: Shop, boundary: Boundary, *, stale_first: bool) -> None:
    import asyncio
    from contextvars import Context

    order, loop = key(), asyncio.get_running_loop()
    stale = boundary.claim(order)
    context = Context()
    if shop.sync:
        context.run(stale.__enter__)
    else:
        await loop.create_task(stale.__aenter__(), context=context)
    assert stale._held is not None
    stale._held.let_go()
    stale._held._task = None
    await asyncio.sleep(0.5)

    async def stale_order() -> str:
        return await _order(shop, stale, f"{order} stale")

    async def owner() -> str:
        async with shop.entered(boundary.claim(order)) as claim:
            if stale_first:
                with pytest.raises(LeaseLost):  # the key was taken over: the row is refused, and rolled back
                    await loop.create_task(stale_order(), context=context)
            return await _order(shop, claim, f"{order} owner")

    assert await loop.create_task(owner(), context=Context()) == f"{order} owner"
    if not stale_first:
        with pytest.raises(RetryTransaction):  # so that its own row is rolled back
            await loop.create_task(stale_order(), context=context)
        assert await loop.create_task(stale_order(), context=context) == f"{order} owner", "it is replayed"
    with pytest.raises(LeaseLost):
        if shop.sync:
            context.run(stale.__exit__, None, None, None)
        else:
            await loop.create_task(stale.__aexit__(None, None, None), context=context)


async def _a_choreographed_saga_does_and_undoes_each_step_once_in_any_order(shop: Shop) -> None:
    boundary = shop.boundary(effects="keyed")

    async def message(saga: str, *, undo: bool = False, fails: bool = False) -> tuple[bool, Any]:
        async with shop.transaction() as tx, _entered(shop, boundary.step(saga, "hotel", tx=tx, undo=undo)) as step:
            found = step.replayed, step.result
            if not step.replayed and not undo:
                step.result = "room 5"
            if fails:
                raise Killed
        return found

    done = key()
    with pytest.raises(Killed):
        await message(done, fails=True)
    assert await message(done) == (False, None)
    assert await message(done) == (True, "room 5")
    with pytest.raises(Killed):
        await message(done, undo=True, fails=True)
    assert await message(done, undo=True) == (False, "room 5"), "the compensation has the step's result"
    assert await message(done, undo=True) == (True, "room 5"), "double"
    assert (await message(done))[0], "it comes again after its compensation"
    never = key()
    assert await message(never, undo=True) == (True, None), "empty: there is nothing to undo"
    assert await message(never) == (True, None), "hanging: it must not be done after that"


async def _an_open_transaction_of_another_attempt_is_not_waited_for(shop: Shop) -> None:
    boundary = shop.boundary(effects="keyed")
    saga = key()
    async with shop.transaction() as one, _entered(shop, boundary.step(saga, "hotel", tx=one)):
        with pytest.raises(InProgress):
            async with shop.transaction() as other, _entered(shop, boundary.step(saga, "hotel", tx=other)):
                raise AssertionError
    with pytest.raises(ConfigurationError, match="tx="):
        boundary.step(saga, "hotel", tx=None)
