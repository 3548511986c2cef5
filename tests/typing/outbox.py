"""The outbox and its relay as users write them; a type checker reads this file, nothing runs it."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import assert_type

import httpx

from retrysafe.admin.sweeper import Swept
from retrysafe.messaging import (
    DeadLetterFilter,
    Envelope,
    Message,
    Outbox,
    OutboxOperator,
    OutboxSweeper,
    PublishResult,
    PublishStatus,
    Relay,
    Relayed,
)
from retrysafe.messaging.brokers.base import AsyncPublisher, Publisher
from retrysafe.messaging.brokers.memory.publisher import AsyncMemoryPublisher, MemoryPublisher
from retrysafe.messaging.brokers.rabbitmq.publisher import RabbitMQPublisher
from retrysafe.messaging.brokers.webhook import AsyncWebhookPublisher, WebhookPublisher
from retrysafe.webhooks.sender import AsyncSender, Endpoint, Sender

outbox = Outbox("sqlite:///shop.db", source="/shop", largest=1000)


def place(tx: sqlite3.Connection) -> None:
    assert_type(outbox.add(tx, "orders", {"order": 1}, key="A", sequence=3, headers={"tenant": "x"}), Envelope)
    assert_type(outbox.add_many(tx, [Message("orders", b"x", key="A")]), list[Envelope])
    outbox.wake()


class Mine:
    def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
        return [PublishResult(PublishStatus.RETRYABLE, "busy", 1.0) for _ in envelopes]

    def close(self) -> None: ...


endpoint = Endpoint("https://example.com/hook", "whsec_bmV3")
publishers: list[Publisher] = [
    Mine(),
    MemoryPublisher(),
    WebhookPublisher(Sender(httpx.Client(), max_attempts=1), {"orders": endpoint}),
]
async_publishers: list[AsyncPublisher] = [
    AsyncMemoryPublisher(),
    RabbitMQPublisher("amqp://localhost/"),
    AsyncWebhookPublisher(AsyncSender(httpx.AsyncClient(), max_attempts=1), lambda envelope: None),
]
relay = Relay(
    "sqlite:///shop.db",
    publishers[0],
    hold="lease",
    lease="10s",
    on_dead="park",
    keep_published=True,
    stalled_after="5m",
)
assert_type(relay.run_once(), Relayed)


async def beside() -> None:
    async with Relay("sqlite:///shop.db", async_publishers[0], concurrency=8) as running:
        assert_type(running, Relay)
    assert_type(await relay.arun_once(), Relayed)


def look() -> None:
    with OutboxOperator("sqlite:///shop.db", actor="me") as operator:
        operator.pause("orders")
        assert_type(operator.resume("orders"), bool)
        assert_type(operator.redrive(DeadLetterFilter(topic="orders"), limit=10, reason="mended"), int)
        assert_type([letter.error for letter in operator.dead()], list[str])
        assert_type(operator.status().oldest_due, float)
    assert_type(OutboxSweeper("sqlite:///shop.db", older_than="7d").run_once(), Swept)
