"""Subscriptions that hold mostly messages that are tried again: new ones go on, and a consumer that is full says so."""

from __future__ import annotations

import asyncio
import os
import secrets
from pathlib import Path
from typing import Any

import aio_pika
import pytest

from retrysafe.messaging import InboxMessage, Subscription
from retrysafe.messaging.brokers.memory.broker import MemoryBroker
from retrysafe.messaging.brokers.rabbitmq.consumer import RabbitMQConsumer
from retrysafe.messaging.brokers.rabbitmq.publisher import RabbitMQPublisher
from retrysafe.messaging.brokers.rabbitmq.topology import declare as declare_queue
from retrysafe.messaging.brokers.sqlite import AsyncSqlitePublisher, SqliteConsumer, declare
from retrysafe.messaging.subscription import working
from tests.conftest import require
from tests.messaging.inboxes import World, envelope
from tests.messaging.test_subscription import until
from tests.tables import each_row

ONE = pytest.mark.parametrize("world", ["sqlite"], indirect=True)
TRIED = {"max_attempts": 1_000_000, "backoff_base": "1ms", "backoff_max": "2ms"}
OTHERS = 20
"""Messages behind those that fail."""


async def ends_of(broker: str, topic: str, path: Path) -> tuple[Any, Any]:
    """A publisher and a consumer that holds 20 messages of a topic, if its broker limits that."""
    if broker == "rabbitmq":
        require("rabbitmq")
        await declare_queue(url := os.environ["RETRYSAFE_TEST_RABBITMQ"], topic)
        return RabbitMQPublisher(url), RabbitMQConsumer(url, topic, prefetch=20, redelivery_window="1d")
    if broker == "sqlite":
        declare(file := path / "broker.db", [(topic, "stock")])
        return AsyncSqlitePublisher(file), SqliteConsumer(file, "stock")
    memory = MemoryBroker()
    return memory.apublisher(), memory.consumer(topic)


@pytest.mark.slow
@ONE
@each_row(
    ("broker", "bad", "keyed", "make", "full"),
    [
        ("memory", 60, True, "handler", False),
        ("memory", 60, True, "batch_handler", False),
        ("memory", 60, False, "handler", False),
        ("memory", 150, True, "handler", True),
        ("sqlite", 60, True, "handler", False),
        ("sqlite", 150, True, "handler", True),
        ("rabbitmq", 15, True, "handler", False),
        ("rabbitmq", 30, True, "handler", True),
        ("rabbitmq", 30, False, "handler", True),
    ],
)
async def test_retries_leave_room_for_new_messages_or_it_is_told(
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    broker: str,
    bad: int,
    keyed: bool,
    make: str,
    full: bool,
) -> None:
    monkeypatch.setattr(working, "FULL_AFTER", 1.0)
    topic, failing, applied = f"placed-{secrets.token_hex(6)}", True, set[str]()
    before = len(world.told)

    @getattr(world.inbox(), make)("stock", **TRIED)
    async def handle(message: InboxMessage[Any]) -> None:
        if failing and int(message.envelope.id) < bad:
            raise ValueError("not yet")
        applied.add(message.envelope.id)

    publisher, consumer = await ends_of(broker, topic, tmp_path)
    sent = [envelope(n, n if keyed else None, topic=topic) for n in range(bad + OTHERS)]
    await publisher.publish(sent)
    async with Subscription(consumer, handle, in_flight=10):
        await until(lambda: "consumer_full" in world.names()[before:] or len(applied) == OTHERS)
        told = [one for one in world.told[before:] if one.name == "consumer_full"]
        assert (len(applied), len(told)) == ((0, 1) if full else (OTHERS, 0))
        failing = False
        await until(lambda: len(applied) == len(sent))
    await publisher.aclose()
    await world.boundaries[-1].aclose()
    if broker == "rabbitmq":
        async with await aio_pika.connect(os.environ["RETRYSAFE_TEST_RABBITMQ"]) as connection:
            await (await connection.channel()).queue_delete(topic)


@pytest.mark.slow
@ONE
async def test_a_quarter_of_the_places_is_for_new_messages(world: World) -> None:
    failed, blocked, applied, go = set[str](), 0, 0, asyncio.Event()

    @world.inbox(effects="keyed").handler("stock", **TRIED)
    async def handle(message: InboxMessage[Any]) -> None:
        nonlocal blocked, applied
        if int(message.envelope.id) < 8:
            if message.envelope.id not in failed:
                failed.add(message.envelope.id)
                raise ValueError("once")
            blocked += 1
            await go.wait()
        applied += 1

    broker = MemoryBroker()
    broker.put([envelope(n, n) for n in range(200)])
    async with Subscription(broker.consumer("orders"), handle, lanes=4):
        await until(lambda: applied >= 100)
        assert blocked == 3
        go.set()
        await until(lambda: applied == 200)
    await world.boundaries[-1].aclose()
