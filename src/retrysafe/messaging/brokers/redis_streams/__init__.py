"""Redis Streams: publishers and consumer. Needs the extra ``redis``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrysafe.messaging.brokers.spec import BrokerSpec, lazily

if TYPE_CHECKING:
    from retrysafe.messaging.brokers.redis_streams.consumer import RedisStreamsConsumer
    from retrysafe.messaging.brokers.redis_streams.publisher import AsyncRedisStreamsPublisher, RedisStreamsPublisher

__all__ = ["BROKER", "AsyncRedisStreamsPublisher", "RedisStreamsConsumer", "RedisStreamsPublisher"]

BROKER = BrokerSpec(
    package=__name__,
    title="Redis Streams",
    schemes=("redis", "rediss"),
    publisher="opening:publisher",
    async_publisher="opening:async_publisher",
    consumer="opening:consumer",
    broker="opening:broker",
    passed_to={
        "opening:publisher": "publisher:RedisStreamsPublisher",
        "opening:consumer": "consumer:RedisStreamsConsumer",
    },
    extra="redis",
    checks="checks:EXAMINATION",
)

__getattr__ = lazily(
    __name__, consumer="RedisStreamsConsumer", publisher="AsyncRedisStreamsPublisher RedisStreamsPublisher"
)
