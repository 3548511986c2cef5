"""Sleeping and signals: the attempt ends, its key is free, and its caller is told when to come again."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from retrysafe import Boundary, Claim, Postponed, StoredFailure, current
from retrysafe.admin.operator import Operator
from retrysafe.protocol.exception_groups import leaves
from tests.messaging.inboxes import delivery
from tests.steps.conftest import Make
from tests.steps.kills import key
from tests.tables import each_row


def _work(boundary: Boundary, order: str) -> Any:
    with boundary.claim(order) as claim:
        if not claim.replayed:
            claim.step("pack", str, 1)
            claim.sleep("cool off", "300ms")
            claim.result = claim.wait_for("shipped", retry_after="5s")
        return claim.result


@pytest.mark.slow
def test_work_goes_on_when_its_time_and_its_signal_have_come(on_sqlite: Make) -> None:
    boundary = on_sqlite(effects="keyed")
    order = key()
    assert not boundary.signal(order, "shipped", "early"), "there is no such work yet"
    for _ in range(2):
        with pytest.raises(Postponed) as asleep:
            _work(boundary, order)
        assert 0 < asleep.value.retry_after <= 0.3
    time.sleep(asleep.value.retry_after)
    with pytest.raises(Postponed) as waits:
        _work(boundary, order)
    assert waits.value.retry_after == 5
    assert boundary.signal(order, "shipped", {"parcel": 7})
    assert not boundary.signal(order, "shipped", "second"), "the first one counts"
    assert _work(boundary, order) == {"parcel": 7}
    assert _work(boundary, order) == {"parcel": 7}, "a replay"
    assert not boundary.signal(order, "other", 1), "the work has ended"


@pytest.mark.slow
async def test_postponed_work_of_async_code_frees_its_key_whatever_its_effects_are(on_sqlite: Make) -> None:
    boundary = on_sqlite(effects="external")

    async def work() -> Any:
        async with boundary.claim("order") as claim:
            await claim.asleep("a moment", "50ms")
            try:
                claim.result = await claim.await_for("shipped")
            except Exception as error:
                raise AssertionError from error
        return claim.result

    with pytest.raises(Postponed):
        await work()
    await asyncio.sleep(0.1)
    with pytest.raises(Postponed):
        await work()
    assert await boundary.asignal("order", "shipped", 5)
    assert await work() == 5
    await boundary.aclose()


@each_row(
    ("grouped", "raised"),
    [
        ([Postponed(retry_after=9), Postponed(retry_after=5)], Postponed),
        ([Postponed(), BaseExceptionGroup("inner", [ValueError(), Postponed()])], ExceptionGroup),
        ([Postponed(), KeyboardInterrupt()], BaseExceptionGroup),
    ],
)
def test_a_group_of_waits_is_a_wait_and_one_with_errors_is_without_its_waits(
    on_sqlite: Make, grouped: list[BaseException], raised: Any
) -> None:
    boundary = on_sqlite(effects="keyed")
    with pytest.raises(raised) as ended, boundary.claim(key()) as claim:
        claim.step("pack", str, 1)
        raise BaseExceptionGroup("of tasks", grouped)
    if raised is Postponed:
        assert ended.value.retry_after == 5
    else:
        assert not any(isinstance(leaf, Postponed) for leaf in leaves(ended.value))


def test_a_run_that_goes_back_waits_for_nothing(on_sqlite: Make) -> None:
    boundary = on_sqlite(effects="keyed", permanent=ValueError)
    undone: list[str] = []

    def work(claim: Claim, *, crash: bool) -> None:
        claim.step("book", lambda: "book", undo=lambda _: undone.append("book") if not crash else 1 / 0)
        if crash:
            raise ValueError("no room")
        claim.sleep("a day", "12h")

    for crash in (True, False):
        with pytest.raises((ValueError, StoredFailure, Exception)) as raised, boundary.claim("trip") as claim:
            work(claim, crash=crash)
        if crash:
            assert boundary.resolve("trip", "released"), "its compensation failed"
    assert isinstance(raised.value, StoredFailure)
    assert undone == ["book"]


@each_row("grouped", [False, True])
async def test_http_answers_503_and_when_to_come_again(on_sqlite: Make, grouped: bool) -> None:
    import httpx
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    from retrysafe.http.starlette import IdempotencyMiddleware

    boundary, name = on_sqlite(effects="keyed"), key()

    async def order(request: Any) -> Response:
        claim = current()
        if not grouped:
            return JSONResponse(await claim.await_for("shipped", retry_after="30s"))
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(claim.await_for("shipped", retry_after="30s"))
        return JSONResponse(waiting.result())

    app = Starlette(
        routes=[Route("/orders", order, methods=["POST"])],
        middleware=[Middleware(IdempotencyMiddleware, boundary=boundary, principal=lambda request: "shop")],
    )
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        headers = {"Idempotency-Key": name}
        answer = await client.post("/orders", headers=headers)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "30")
        assert answer.json()["code"] == "postponed"
        with Operator(boundary.entrypoint.address, observers=()) as operator:
            (shown,) = {one.operation for one in operator.page().records}
        assert shown == "http: POST /orders"
        assert await boundary.asignal(name, "shipped", 7, operation=shown, scope="shop")
        assert (await client.post("/orders", headers=headers)).json() == 7
    await boundary.aclose()


def test_the_inbox_has_the_message_come_again_and_counts_no_error(on_sqlite: Make) -> None:
    from retrysafe.messaging import Inbox, InboxMessage, MessageOutcome

    boundary = on_sqlite(effects="transactional")
    inbox = Inbox(boundary)

    @inbox.handler("shipping", max_attempts=1)
    def ship(message: InboxMessage[Any]) -> None:
        raise Postponed(retry_after=30)

    for _ in range(3):
        handled = ship.handle(delivery("ship").envelope)
        assert handled.became is MessageOutcome.BUSY
        assert handled.again is not None
        assert 30 <= handled.again < 40


async def test_a_message_is_signalled_by_its_source_and_id(on_sqlite: Make) -> None:
    from retrysafe.messaging import Inbox, InboxMessage

    got: list[object] = []

    def ship(message: InboxMessage[Any]) -> None:
        got.append(current().wait_for("shipped"))

    async def aship(message: InboxMessage[Any]) -> None:
        got.append(await current().await_for("shipped"))

    inbox = Inbox(on_sqlite(effects="keyed"))
    for handle in (inbox.handler("shipping")(ship), inbox.handler("ashipping")(aship)):
        envelope = delivery("order 1").envelope
        given = (envelope.source, envelope.id, "shipped")
        assert not await handle.asignal(*given), "there is no such work yet"
        assert (await handle.ahandle(envelope)).became == "busy"
        signalled = await handle.asignal(*given, 5) if handle.is_async else handle.signal(*given, 5)
        assert signalled
        assert not await handle.asignal(*given), "the first one counts"
        assert (await handle.ahandle(envelope)).became == "handled"
    assert got == [5, 5]


def test_the_command_line_exits_with_75(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from retrysafe import cli
    from retrysafe.cli import plan

    def postponed(options: object) -> int:
        raise Postponed("The work sleeps.", retry_after=30)

    monkeypatch.setattr(plan, "run", postponed)
    assert cli.main(["plan", "--rate", "1/s", "--kind", "sqlite", "--window", "1h"]) == 75
    assert "Try again after 30 s" in capsys.readouterr().err
