"""Redis Streams: publishers and consumer. Needs the extra ``redis``."""

from __future__ import annotations

from retrysafe.messaging.brokers.redis_streams.consumer import RedisStreamsConsumer
from retrysafe.messaging.brokers.redis_streams.publisher import AsyncRedisStreamsPublisher, RedisStreamsPublisher

__all__ = ["AsyncRedisStreamsPublisher", "RedisStreamsConsumer", "RedisStreamsPublisher"]
