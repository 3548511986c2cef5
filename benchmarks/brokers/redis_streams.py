"""A stream of Redis, and redis-py."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import redis.asyncio

from benchmarks import services
from benchmarks.brokers.base import Broker, new_topic, portions
from retrysafe.messaging.brokers.redis_streams.publisher import AsyncRedisStreamsPublisher
from retrysafe.messaging.cloudevents import attributes
from retrysafe.protocol.messages import Envelope


@asynccontextmanager
async def opened() -> AsyncIterator[Broker]:
    """A new stream."""
    topic = new_topic()
    client = redis.asyncio.Redis.from_url(services.url("redis"))

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
    yield Broker(topic, publisher, raw, clear)
    await clear()
    await publisher.aclose()
