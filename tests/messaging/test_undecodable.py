"""A RabbitMQ message that the client library cannot decode stops no queue."""

from __future__ import annotations

import asyncio
import base64
import os
import secrets
import struct
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import aio_pika
import pytest
from aiormq import Channel as Wire
from aiormq import spec
from aiormq.abc import ChannelFrame

from retrysafe import Boundary
from retrysafe.messaging import Inbox, InboxMessage, InboxOperator, Subscription
from retrysafe.messaging.brokers.rabbitmq import RabbitMQConsumer, declare
from retrysafe.messaging.brokers.rabbitmq.confirms import encode_frames
from tests.conftest import require
from tests.faults.helpers import DEADLINE

THEN = datetime(2100, 1, 1, tzinfo=UTC)
HEADERS = {"cloudEvents:source": "/shop", "cloudEvents:type": "orders.placed.v1"}
FIRST, LAST = struct.pack(">Q", int(THEN.timestamp())), struct.pack(">Q", (1 << 63) - 1)
WRONG: dict[str, tuple[dict[str, Any], bytes, bytes, str]] = {
    "timestamp": ({"timestamp": THEN}, FIRST, LAST, "handled"),
    "correlation id": ({"correlation_id": "MARKED"}, b"MARKED", b"\xff\xfeRKED", "handled"),
    "routing key": ({}, b"ROUTED", b"\xff\xfeUTED", "handled"),
    "app id": ({"app_id": "MARKED"}, b"MARKED", b"\xff\xfeRKED", "dead"),
    "header": ({"headers": {**HEADERS, "at": THEN}}, FIRST, LAST, "dead"),
    "name of a header": ({"headers": {**HEADERS, "MARKED": "1"}}, b"MARKED", b"\xff\xfeRKED", "dead"),
}


@pytest.fixture
async def queue() -> AsyncIterator[str]:
    require("rabbitmq")
    name = f"undecodable-{secrets.token_hex(6)}"
    await declare(os.environ["RETRYSAFE_TEST_RABBITMQ"], name)
    async with await aio_pika.connect(os.environ["RETRYSAFE_TEST_RABBITMQ"]) as connection:
        channel = await connection.channel()
        await (await channel.get_queue(name)).bind("amq.fanout")
        yield name
        await channel.queue_delete(name)


async def published(id: str, properties: dict[str, Any], before: bytes, after: bytes) -> None:
    """Publish a message of which some octets are changed on the wire."""
    async with await aio_pika.connect(os.environ["RETRYSAFE_TEST_RABBITMQ"]) as connection:
        wire = cast(Wire, await (await connection.channel(publisher_confirms=False)).get_underlay_channel())
        told = {"message_id": id, "content_type": "application/json", "headers": {**HEADERS}, **properties}
        command = spec.Basic.Publish(exchange="amq.fanout", routing_key="ROUTED")
        octets = encode_frames(wire, command, spec.Basic.Properties(**told), b'{"n":1}').octets
        drained = wire.create_future()
        frame = ChannelFrame(octets.replace(before, after), should_close=False, drain_future=drained)
        await wire.write_queue.put(frame)
        await drained


@pytest.mark.slow
@pytest.mark.fault(53)
@pytest.mark.parametrize("wrong", WRONG)
async def test_a_message_that_cannot_be_decoded_stops_no_queue(wrong: str, queue: str, tmp_path: Path) -> None:
    store, handled = f"sqlite:///{tmp_path / 'inbox.db'}", []
    inbox = Inbox(Boundary("stock", store=store, window="14d", observers=()))

    @inbox.handler("stock")
    async def handle(message: InboxMessage[Any]) -> None:
        handled.append((message.envelope.id, message.envelope.source, message.data))

    properties, before, after, became = WRONG[wrong]
    await published("first", {}, b"", b"")
    await published("wrong", properties, before, after)
    await published("last", {}, b"", b"")
    consumer = RabbitMQConsumer(os.environ["RETRYSAFE_TEST_RABBITMQ"], queue, redelivery_window="1d")
    async with asyncio.timeout(DEADLINE), Subscription(consumer, handle):
        while "last" not in {id for id, *_ in handled}:  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.01)
    expected = ["first", "last", *(["wrong"] if became == "handled" else [])]
    assert [(id, source) for id, source, _ in sorted(handled, key=lambda one: one[0])] == [
        (id, "/shop") for id in expected
    ]
    with InboxOperator(store, observers=()) as operator:
        dead = [one.arrival.envelope for one in operator.dead()]
    assert len(dead) == (became == "dead")
    for letter in dead:
        assert (letter.id, letter.payload, letter.topic) == ("", b'{"n":1}', queue)
        assert after in base64.b64decode(letter.headers["properties"])
        assert "Error" in letter.headers["undecodable"]
    await inbox.boundary.aclose()
