"""A quorum queue of RabbitMQ, and aio-pika."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import aio_pika

from benchmarks import services
from benchmarks.brokers.base import Broker, new_topic, windows
from retrysafe.messaging.brokers.amqp_binding import headers_of
from retrysafe.messaging.brokers.rabbitmq.publisher import RabbitMQPublisher
from retrysafe.protocol.messages import Envelope


@asynccontextmanager
async def opened() -> AsyncIterator[Broker]:
    """A new queue."""
    url, topic = services.url("rabbitmq"), new_topic()
    connection = await aio_pika.connect(url)
    channel = await connection.channel()
    queue = await channel.declare_queue(topic, durable=True, arguments={"x-queue-type": "quorum"})

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
    yield Broker(topic, publisher, raw, queue.purge)
    await publisher.aclose()
    await queue.delete(if_unused=False, if_empty=False)
    await connection.close()
