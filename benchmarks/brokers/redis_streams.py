"""A stream of Redis, and redis-py."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import redis.asyncio

from benchmarks import services
from benchmarks.brokers.base import AT_ONCE, WAIT, Broker, Receive, new_topic, portions, receiving
from retrysafe.messaging.brokers.redis_streams.consumer import RedisStreamsConsumer
from retrysafe.messaging.brokers.redis_streams.publisher import AsyncRedisStreamsPublisher
from retrysafe.messaging.cloudevents import attributes
from retrysafe.protocol.messages import Envelope


@asynccontextmanager
async def opened() -> AsyncIterator[Broker]:
    """A new stream."""
    url, topic = services.url("redis"), new_topic()
    client = redis.asyncio.Redis.from_url(url)

    async def raw(written: Sequence[Envelope]) -> None:
        for some in portions(written):
            pipeline = client.pipeline(transaction=False)
            for envelope in some:
                fields: Any = {**attributes(envelope), "data": envelope.payload}
                pipeline.xadd(f"{{{topic}}}", fields)
            await pipeline.execute()

    async def clear() -> None:
        names = [name async for name in client.scan_iter(f"{{{topic}}}*", 10_000)]
        if names:
            await client.delete(*names)

    publisher = AsyncRedisStreamsPublisher(client, remember="1m")

    def make() -> RedisStreamsConsumer:
        return RedisStreamsConsumer(redis.asyncio.Redis.from_url(url), topic, group="bench")

    yield Broker(topic, publisher, raw, clear, partial(receiving, make), partial(raw_receiving, url, f"{{{topic}}}"))
    await clear()
    await publisher.aclose()


@asynccontextmanager
async def raw_receiving(url: str, stream: str) -> AsyncIterator[Receive]:
    """A raw consumer of a new group, which acknowledges before it reads more."""
    client = redis.asyncio.Redis.from_url(url)
    await client.xgroup_create(stream, "raw", "0")

    async def receive() -> int:
        answer: Any = await client.xreadgroup("raw", "one", {stream: ">"}, count=AT_ONCE, block=int(WAIT * 1000))
        found = [entry for _, entries in answer for entry, _ in entries]
        await client.xack(stream, "raw", *found)
        return len(found)

    yield receive
    await client.aclose()
