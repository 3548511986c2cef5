"""Relaying: messages from an outbox on PostgreSQL to a broker, beside the raw client that publishes the same bytes.

Every turn writes its messages first, which is not counted; a meter adds only what a side takes to get them to the
broker, confirmed. Keys are all different, as orders' are; retries, order and dead letters are on.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import psycopg

from benchmarks.postgresql import database
from benchmarks.rows import Row, Side, Sides, Unit
from retrysafe.messaging import Message, Outbox, Relay
from retrysafe.messaging.cloudevents import attributes
from retrysafe.protocol.messages import Envelope

BACKLOG = 10_000
WINDOW = 200
"""How many messages the raw client has under way."""


class Meter:
    """Seconds that sides have added."""

    def __init__(self) -> None:
        self.total = 0.0

    def __call__(self) -> float:
        """The clock of a unit."""
        return self.total


def rows() -> Sequence[Row]:
    """One message relayed."""
    found = []
    for name, aim, sides in (("rabbitmq", 0.90, _rabbitmq), ("redis", 0.70, _redis)):
        meter = Meter()
        unit = Unit("of floor", meter, lambda ours, floor: floor / ours, more_is_better=True)
        found.append(Row(f"relay asyncpg/{name}", partial(sides, meter), unit, aim=aim))
    return found


def _sides(
    runner: asyncio.Runner,
    meter: Meter,
    url: str,
    topic: str,
    publisher: Any,
    raw: Callable[[Sequence[Envelope]], Awaitable[object]],
    clear: Callable[[], Awaitable[object]],
) -> Sides:
    outbox = Outbox(url, source="/bench")
    relay = Relay(url.replace("postgresql:", "postgresql+asyncpg:"), publisher, batch=500, observers=())
    messages = [Message(topic, {"order": n, "total": 120}, key=f"order-{n}") for n in range(BACKLOG)]

    def measured(work: Callable[[Sequence[Envelope]], Awaitable[object]], *, stored: bool) -> Side:
        def side(keys: Sequence[str]) -> None:
            with psycopg.connect(url) as connection:
                written = outbox.add_many(connection, messages)
                if not stored:
                    connection.rollback()
            runner.run(clear())  # type: ignore[arg-type]
            began = time.perf_counter()
            runner.run(work(written))  # type: ignore[arg-type]
            meter.total += (time.perf_counter() - began) / BACKLOG * len(keys)

        return side

    async def ours(written: Sequence[Envelope]) -> None:
        assert (await relay.arun_once()).published == BACKLOG

    return Sides(measured(ours, stored=True), measured(raw, stored=False))


@contextmanager
def _rabbitmq(meter: Meter) -> Iterator[Sides]:
    import aio_pika

    from retrysafe.messaging.brokers.rabbitmq.envelope import headers_of
    from retrysafe.messaging.brokers.rabbitmq.publisher import RabbitMQPublisher

    broker, topic = os.environ["RETRYSAFE_TEST_RABBITMQ"], f"bench-{secrets.token_hex(4)}"
    with database() as url, asyncio.Runner() as runner:

        async def opened() -> tuple[Any, Any, Any]:
            connection = await aio_pika.connect(broker)
            channel = await connection.channel()
            queue = await channel.declare_queue(topic, durable=True, arguments={"x-queue-type": "quorum"})
            return connection, channel, queue

        connection, channel, queue = runner.run(opened())

        async def raw(written: Sequence[Envelope]) -> None:
            for start in range(0, len(written), WINDOW):
                await asyncio.gather(*(one(envelope) for envelope in written[start : start + WINDOW]))

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

        publisher = RabbitMQPublisher(broker)
        yield _sides(runner, meter, url, topic, publisher, raw, queue.purge)
        runner.run(publisher.aclose())
        runner.run(queue.delete(if_unused=False, if_empty=False))
        runner.run(connection.close())


@contextmanager
def _redis(meter: Meter) -> Iterator[Sides]:
    import redis.asyncio

    from retrysafe.messaging.brokers.redis_streams.publisher import AsyncRedisStreamsPublisher

    broker, topic = os.environ["RETRYSAFE_TEST_REDIS"], f"bench-{secrets.token_hex(4)}"
    with database() as url, asyncio.Runner() as runner:
        client = redis.asyncio.Redis.from_url(broker)

        async def raw(written: Sequence[Envelope]) -> None:
            for start in range(0, len(written), WINDOW):
                pipeline = client.pipeline(transaction=False)
                for envelope in written[start : start + WINDOW]:
                    fields: Any = {**attributes(envelope), "data": envelope.payload}
                    pipeline.xadd(f"{{{topic}}}", fields)
                await pipeline.execute()

        async def clear() -> None:
            names = [name async for name in client.scan_iter(f"{{{topic}}}*", 10_000)]
            if names:
                await client.delete(*names)

        publisher = AsyncRedisStreamsPublisher(client, remember="1m")
        yield _sides(runner, meter, url, topic, publisher, raw, clear)
        runner.run(clear())
        runner.run(publisher.aclose())
