"""Redis Streams from the URL of a server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import redis
import redis.asyncio

from retrysafe.messaging.brokers.base import Broker
from retrysafe.messaging.brokers.redis_streams.consumer import RedisStreamsConsumer
from retrysafe.messaging.brokers.redis_streams.publisher import AsyncRedisStreamsPublisher, RedisStreamsPublisher
from retrysafe.protocol.records import Duration


def publisher(url: str, **options: Any) -> RedisStreamsPublisher:
    """The publisher of `retrysafe relay`."""
    return RedisStreamsPublisher(redis.Redis.from_url(url), **options)


def async_publisher(url: str, **options: Any) -> AsyncRedisStreamsPublisher:
    """The publisher of `retrysafe relay` on an async store."""
    return AsyncRedisStreamsPublisher(redis.asyncio.Redis.from_url(url), **options)


def consumer(url: str, topics: Sequence[str], *, group: str, **options: Any) -> RedisStreamsConsumer:
    """The consumer of `retrysafe inbox run`."""
    return RedisStreamsConsumer(redis.asyncio.Redis.from_url(url), topics, group=group, **options)


def broker(url: str, *, name: str, partitions: int | None, lease: Duration) -> Broker:
    """Streams whose names begin with our name. Publishers create streams, and consumers create groups."""
    shared: dict[str, Any] = {"prefix": f"{name}:", "partitions": partitions}
    return Broker(
        lambda topics, group: asyncio.sleep(0),
        lambda: async_publisher(url, **shared),
        lambda topic, group: consumer(url, [topic], group=group, lease=lease, **shared),
    )
