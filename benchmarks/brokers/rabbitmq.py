"""A quorum queue of RabbitMQ, and aio-pika."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import aio_pika

from benchmarks import services
from benchmarks.brokers.base import AT_ONCE, WAIT, WINDOW, Broker, Receive, new_topic, receiving, windows
from retrysafe.messaging.brokers.amqp_binding import headers_of
from retrysafe.messaging.brokers.rabbitmq.consumer import RabbitMQConsumer
from retrysafe.messaging.brokers.rabbitmq.publisher import RabbitMQPublisher
from retrysafe.messaging.brokers.rabbitmq.topology import declare
from retrysafe.protocol.messages import Envelope


@asynccontextmanager
async def opened() -> AsyncIterator[Broker]:
    """A new queue."""
    url, topic = services.url("rabbitmq"), new_topic()
    connection = await aio_pika.connect(url)
    channel = await connection.channel()
    await declare(url, topic)
    queue = await channel.get_queue(topic)

    async def one(envelope: Envelope) -> None:
        message = aio_pika.Message(
            envelope.payload,
            message_id=envelope.id,
            type=envelope.type,
            content_type=envelope.media_type,
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            headers={**headers_of(envelope, "amqp")},
        )
        await channel.default_exchange.publish(message, topic, mandatory=True)

    async def raw(written: Sequence[Envelope]) -> None:
        await windows(written, one)

    publisher = RabbitMQPublisher(url)
    make = partial(RabbitMQConsumer, url, topic)
    yield Broker(topic, publisher, raw, queue.purge, partial(receiving, make), partial(raw_receiving, url, topic))
    await publisher.aclose()
    await queue.delete(if_unused=False, if_empty=False)
    await connection.close()


@asynccontextmanager
async def raw_receiving(url: str, topic: str) -> AsyncIterator[Receive]:
    """A raw consumer on a connection of its own, which acknowledges each message."""
    connection = await aio_pika.connect(url)
    channel = await connection.channel()
    await channel.set_qos(prefetch_count=WINDOW)
    arrived: asyncio.Queue[Any] = asyncio.Queue()
    await (await channel.get_queue(topic)).consume(arrived.put)

    async def receive() -> int:
        found = [await asyncio.wait_for(arrived.get(), WAIT)]
        while not arrived.empty() and len(found) < AT_ONCE:
            found.append(arrived.get_nowait())
        for message in found:
            await message.ack()
        return len(found)

    yield receive
    await connection.close()
