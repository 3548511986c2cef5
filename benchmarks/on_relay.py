"""Relaying: messages from an outbox on PostgreSQL to a broker, beside the raw client that publishes the same bytes.

Every turn writes its messages first, which does not count. Keys are all different, as orders' are; retries, order and
dead letters are on.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Any, NamedTuple

import psycopg

from benchmarks import services
from benchmarks.rivals.relaying import faststream_outbox
from benchmarks.rows import FLOOR, OURS, Opener, Row, Side, Stopwatch, Turn
from benchmarks.stores import database
from retrysafe.messaging import Message, Outbox, Relay
from retrysafe.messaging.cloudevents import attributes
from retrysafe.protocol.messages import Envelope

BACKLOG = 5_000
WINDOW = 200
"""How many messages the raw client has under way."""


class Broker(NamedTuple):
    """A new topic of a broker."""

    topic: str
    publisher: Any
    """Ours."""
    raw: Callable[[Sequence[Envelope]], Awaitable[object]]
    """Publishes with the raw client."""
    clear: Callable[[], Awaitable[object]]


Opened = Callable[[], AbstractAsyncContextManager[Broker]]


def rows() -> Sequence[Row]:
    """One message relayed."""
    found = []
    for name, broker, beside in (
        ("rabbitmq", rabbitmq, "aio-pika, 200 confirms under way, without a database"),
        ("redis", redis, "pipelines of 200 XADD, without a database"),
    ):
        sides: dict[str, Opener] = {OURS: partial(_side, broker, True), FLOOR: partial(_side, broker, False)}
        if name == "rabbitmq":
            sides["faststream-outbox"] = faststream_outbox
        found.append(Row(f"relay asyncpg/{name}", beside, sides, needs=("postgresql", name), operations=BACKLOG))
    return found


@contextmanager
def _side(opened: Opened, relaying: bool) -> Iterator[Side]:
    with database() as url, asyncio.Runner() as runner:
        stack = AsyncExitStack()
        broker = runner.run(_entered(stack, opened))
        outbox = Outbox(url, source="/bench")
        relay = Relay(url.replace("postgresql:", "postgresql+asyncpg:"), broker.publisher, batch=500, observers=())

        async def work(written: Sequence[Envelope]) -> Turn:
            await broker.clear()
            watch = Stopwatch()
            if relaying:
                assert (await relay.arun_once()).published == len(written)
            else:
                await broker.raw(written)
            return watch.turn(len(written))

        def turn(keys: Sequence[str]) -> Turn:
            messages = [Message(broker.topic, {"order": n, "total": 120}, key=key) for n, key in enumerate(keys)]
            with psycopg.connect(url) as connection:
                written = outbox.add_many(connection, messages)
                if not relaying:
                    connection.rollback()
            return runner.run(work(written))

        yield Side(turn)
        runner.run(stack.aclose())


async def _entered(stack: AsyncExitStack, opened: Opened) -> Broker:
    return await stack.enter_async_context(opened())


@asynccontextmanager
async def rabbitmq() -> AsyncIterator[Broker]:
    """A quorum queue."""
    import aio_pika

    from retrysafe.messaging.brokers.rabbitmq.envelope import headers_of
    from retrysafe.messaging.brokers.rabbitmq.publisher import RabbitMQPublisher

    url, topic = services.url("rabbitmq"), f"bench-{secrets.token_hex(4)}"
    connection = await aio_pika.connect(url)
    channel = await connection.channel()
    queue = await channel.declare_queue(topic, durable=True, arguments={"x-queue-type": "quorum"})

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

    publisher = RabbitMQPublisher(url)
    yield Broker(topic, publisher, raw, queue.purge)
    await publisher.aclose()
    await queue.delete(if_unused=False, if_empty=False)
    await connection.close()


@asynccontextmanager
async def redis() -> AsyncIterator[Broker]:
    """A stream."""
    import redis.asyncio

    from retrysafe.messaging.brokers.redis_streams.publisher import AsyncRedisStreamsPublisher

    topic = f"bench-{secrets.token_hex(4)}"
    client = redis.asyncio.Redis.from_url(services.url("redis"))

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
    yield Broker(topic, publisher, raw, clear)
    await clear()
    await publisher.aclose()
