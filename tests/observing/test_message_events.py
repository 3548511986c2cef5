"""Events of messages: written, relayed and waiting; those of HTTP say what was replayed, and of which endpoint."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from retrysafe import Boundary
from retrysafe.backends.registry import connect
from retrysafe.claims.observers import EVENTS
from retrysafe.http.asgi import IdempotencyMiddleware
from retrysafe.messaging import Inbox, InboxMessage, Message, Outbox, Relay, Subscription
from retrysafe.messaging.brokers.memory.broker import MemoryBroker, MemoryConsumer
from retrysafe.protocol.events import Event, Observer
from retrysafe.protocol.messages import Envelope, PublishResult, PublishStatus
from tests.observing.telemetry import Telemetry


class Seen(list[Event]):
    """Keeps every event."""

    def __call__(self, event: Event, /) -> None:
        self.append(event)

    def of(self, name: str) -> list[Event]:
        """Those of a name, whose fields are the ones that the table has."""
        found = [event for event in self if event.name == name]
        assert all(set(event.fields) <= set(EVENTS[name].fields) for event in found)
        return found


class Routed:
    """A publisher with one queue for all topics, which had some messages already."""

    by_topic = True

    def destination(self, envelope: Envelope, /) -> str:
        return f"queue of {envelope.topic}"

    def publish(self, envelopes: Sequence[Envelope], /) -> list[PublishResult]:
        known = (PublishStatus.ACKED, PublishStatus.DUPLICATE)
        return [PublishResult(known[envelope.payload == b"2"]) for envelope in envelopes]

    def close(self) -> None:
        pass


def migrated(folder: Path) -> str:
    url = f"sqlite:///{folder}/shop.db"
    connect(url).migrate()
    return url


def test_every_way_of_writing_a_message_tells_its_type_and_aggregate(tmp_path: Path) -> None:
    migrated(tmp_path)
    seen = Seen()
    with create_engine(f"sqlite:///{tmp_path}/shop.db").begin() as tx:
        outbox = Outbox(tx.engine, source="/shop", observers=[seen])
        written = [outbox.add(tx, "orders", 1, key="o-1", type="placed.v1")]
        written += outbox.add_many(tx, [Message("orders", 2, "o-2"), Message("orders", 3)])

    async def in_async_code() -> list[Envelope]:
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/shop.db")
        outbox = Outbox(engine, source="/shop", observers=[seen])
        async with engine.begin() as tx:
            made = [await outbox.aadd(tx, "orders", 4, key="o-4")]
            made += await outbox.aadd_many(tx, [Message("orders", 5, "o-5")])
        await engine.dispose()
        return made

    written += asyncio.run(in_async_code())
    told = seen.of("message_created")
    assert [event.fields for event in told] == [
        {"topic": "orders", "message_id": one.id, "event_type": one.type, "aggregate_id": one.key or ""}
        for one in written
    ]
    assert EVENTS["message_created"].alias == "OutboxMessageCreated"
    with closing(sqlite3.connect(tmp_path / "shop.db")) as db, db:
        Outbox(f"sqlite:///{tmp_path}/shop.db", source="/shop", observers=()).add(db, "orders", 6)
    assert len(seen) == 5


def test_a_relayed_message_tells_its_destination_and_how_the_broker_took_it(tmp_path: Path) -> None:
    url = migrated(tmp_path)
    with closing(sqlite3.connect(tmp_path / "shop.db")) as db, db:
        written = Outbox(url, source="/shop").add_many(db, [Message("orders", number) for number in range(4)])
    seen = Seen()
    Relay(url, Routed(), observers=[seen]).run_once()
    told = {event.fields["message_id"]: event.fields for event in seen.of("message_relayed")}
    assert told.keys() == {one.id for one in written}
    assert {fields["destination"] for fields in told.values()} == {"queue of orders"}
    confirmed = [told[one.id]["confirmation"] for one in written]
    assert confirmed == ["acked", "acked", "duplicate", "acked"]
    assert EVENTS["message_relayed"].alias == "MessageRelayed"


def test_without_routes_the_topic_is_the_destination(tmp_path: Path) -> None:
    url = migrated(tmp_path)
    with closing(sqlite3.connect(tmp_path / "shop.db")) as db, db:
        Outbox(url, source="/shop").add(db, "orders", 1)
    seen = Seen()
    Relay(url, MemoryBroker().publisher(), observers=[seen]).run_once()
    assert [event.fields["destination"] for event in seen.of("message_relayed")] == ["orders"]


def test_a_request_and_its_replayed_response_tell_their_endpoint() -> None:
    async def place(request: Request) -> JSONResponse:
        return JSONResponse({}, status_code=201)

    seen = Seen()
    boundary = Boundary("api", store="memory://", observers=[seen])
    app = IdempotencyMiddleware(
        Starlette(routes=[Route("/orders/{id}", place, methods=["POST"])]), boundary=boundary, principal="shared"
    )

    async def twice() -> None:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            for _ in range(2):
                await client.post("/orders/7?secret=1", headers={"Idempotency-Key": '"k"'})

    asyncio.run(twice())
    (replayed,) = seen.of("replayed")
    assert replayed.fields == {"status": 201, "endpoint": "POST /orders/7"}
    assert {event.fields["endpoint"] for event in seen.of("received")} == {"POST /orders/7"}


def test_the_result_of_a_function_is_not_told() -> None:
    seen = Seen()
    boundary = Boundary("functions", store="memory://", observers=[seen])

    @boundary.once(key="of", operation="pay")
    def pay(of: str) -> dict[str, int]:
        return {"status": 201}

    pay("1")
    pay("1")
    (replayed,) = seen.of("replayed")
    assert replayed.fields == {}


class Failing(MemoryConsumer):
    """A consumer whose broker does not tell how far it is behind."""

    async def lag(self) -> dict[str, int]:
        raise OSError("no permission")


def consumed(tmp_path: Path, consumer: MemoryConsumer, until: str, *others: Observer) -> Seen:
    """Run a subscription whose handler waits for an event of this name."""
    seen, enough = Seen(), asyncio.Event()

    def observer(event: Event, /) -> None:
        seen(event)
        if event.name == until:
            enough.set()

    boundary = Boundary("stock", store=migrated(tmp_path), effects="transactional", observers=[observer, *others])

    @Inbox(boundary).handler("stock")
    async def handle(message: InboxMessage[Any]) -> None:
        await enough.wait()

    async def run() -> None:
        async with asyncio.timeout(30), Subscription(consumer, handle, lanes=1):
            await enough.wait()

    asyncio.run(run())
    return seen


@pytest.mark.slow
def test_a_subscription_tells_how_far_it_is_behind(tmp_path: Path, telemetry: Telemetry) -> None:
    broker = MemoryBroker()
    envelope = Envelope("", "orders", "o-1", "placed.v1", "/shop", None, {}, b"1", "application/json")
    broker.put([envelope._replace(id=f"o-{number}") for number in range(3)])
    first = consumed(tmp_path, broker.consumer("orders"), "consumer_lag", telemetry.observer).of("consumer_lag")[0]
    assert (first.boundary, first.operation) == ("stock", "stock")
    assert first.fields == {"partition": "orders.0", "messages": 3}
    ((labels, value),) = telemetry.points()["retrysafe.inbox.lag"]
    assert (labels["retrysafe.partition"], value) == ("orders.0", 3)


@pytest.mark.slow
def test_a_broker_that_does_not_tell_the_lag_stops_no_subscription(tmp_path: Path) -> None:
    seen = consumed(tmp_path, Failing(MemoryBroker(), ["orders"], None), "lag_uncounted")
    assert "no permission" in seen.of("lag_uncounted")[0].fields["error"]


@pytest.mark.slow
def test_the_broker_is_not_asked_when_nobody_observes(tmp_path: Path) -> None:
    boundary = Boundary("stock", store=migrated(tmp_path), effects="transactional", observers=())
    broker, handled = MemoryBroker(), asyncio.Event()
    broker.put([Envelope("o-1", "orders", None, "placed.v1", "/shop", None, {}, b"1", "application/json")])
    asked: list[str] = []

    class Asked(MemoryConsumer):
        async def lag(self) -> dict[str, int]:
            asked.append("lag")
            return {}

    @Inbox(boundary).handler("stock")
    async def handle(message: InboxMessage[Any]) -> None:
        handled.set()

    async def run() -> None:
        async with asyncio.timeout(30), Subscription(Asked(broker, ["orders"], None), handle):
            await handled.wait()

    asyncio.run(run())
    assert not asked


def test_a_partition_that_another_consumer_has_now_is_told_as_empty(tmp_path: Path) -> None:
    broker, seen = MemoryBroker(), Seen()
    inbox = Inbox(Boundary("stock", store=migrated(tmp_path), effects="transactional", observers=[seen]))

    @inbox.handler("stock")
    async def handle(message: InboxMessage[Any]) -> None:
        pass

    subscription = Subscription(broker.consumer("orders"), handle)
    assert subscription._tell_lag({"orders.7"}, {}) == set()
    (told,) = seen.of("consumer_lag")
    assert told.fields == {"partition": "orders.7", "messages": 0}
