"""Redis Streams from the URL of a server."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import redis
import redis.asyncio

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


class RedisStreams:
    """Streams whose names begin with ``name``. Publishers create streams, and consumers create groups."""

    def __init__(self, url: str, *, name: str, partitions: int | None, lease: Duration) -> None:
        self._url, self._prefix, self._partitions, self._lease = url, f"{name}:", partitions, lease

    async def declare(self, topics: Iterable[str], groups: Iterable[str]) -> None:
        """Do nothing: streams and groups are created when they are first used."""

    def publisher(self) -> AsyncRedisStreamsPublisher:
        """A publisher to the streams."""
        client = redis.asyncio.Redis.from_url(self._url)
        return AsyncRedisStreamsPublisher(client, prefix=self._prefix, partitions=self._partitions)

    def consumer(self, topic: str, group: str) -> RedisStreamsConsumer:
        """A consumer of the streams."""
        client = redis.asyncio.Redis.from_url(self._url)
        return RedisStreamsConsumer(
            client, topic, group=group, prefix=self._prefix, partitions=self._partitions, lease=self._lease
        )
