"""Responses of one value, as aiohttp and gRPC give them: what no client can bring about."""

from __future__ import annotations

import asyncio

import pytest

from retrysafe import current
from retrysafe.http.bodies import Body
from retrysafe.http.exchange import UnaryExchange
from retrysafe.http.guard import Guard
from retrysafe.http.messages import Request, Response
from retrysafe.http.problems import Refusal
from tests.http.conftest import Place
from tests.http.places import LEASED

ASKED = Request("POST", b"/pay", b"", ())


def exchange(guard: Guard) -> UnaryExchange:
    return UnaryExchange(guard, ASKED, "k", Body(ASKED, guard.policy), None)


async def done() -> Response:
    return Response(201, (), b"done")


async def test_r18_a_cancelled_handler_frees_its_key(place: Place) -> None:
    guard, began = Guard(place.boundary(), {}, principal="shared"), asyncio.Event()

    async def paused() -> Response:
        began.set()
        await asyncio.Event().wait()
        raise AssertionError

    running = asyncio.ensure_future(exchange(guard).respond(paused))
    await began.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await exchange(guard).respond(done) is None
    stored = await exchange(guard).respond(paused)
    assert isinstance(stored, Response)
    assert stored.body == b"done"


@LEASED
async def test_r20_an_original_that_lost_its_lease_is_not_sent_as_success(place: Place) -> None:
    async def late() -> Response:
        claim = current()
        claim._held.lose()  # type: ignore[union-attr]  # as the heartbeat does
        await asyncio.Event().wait()
        raise AssertionError

    refused = await exchange(Guard(place.boundary(), {}, principal="shared")).respond(late)
    assert isinstance(refused, Refusal)
    assert refused.code == "in-progress"
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
