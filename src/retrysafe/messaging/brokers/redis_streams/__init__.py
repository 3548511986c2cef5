"""Redis Streams: publishers and consumer. Needs the extra ``redis``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrysafe.messaging.brokers.spec import (
    KEEP,
    LEASE,
    PARTITIONS,
    PREFETCH,
    PREFETCH_BYTES,
    PREFIX,
    REDELIVERY_WINDOW,
    BrokerSpec,
    Option,
    is_yes,
    lazily,
)

if TYPE_CHECKING:
    from retrysafe.messaging.brokers.redis_streams.consumer import RedisStreamsConsumer
    from retrysafe.messaging.brokers.redis_streams.publisher import AsyncRedisStreamsPublisher, RedisStreamsPublisher

__all__ = ["BROKER", "AsyncRedisStreamsPublisher", "RedisStreamsConsumer", "RedisStreamsPublisher"]

BROKER = BrokerSpec(
    package=__name__,
    title="Redis Streams",
    schemes=("redis", "rediss"),
    broker="opening:RedisStreams",
    publisher="opening:publisher",
    async_publisher="opening:async_publisher",
    options=(
        Option("remember", "how long a message is known (1h)", default="1h", metavar="TIME"),
        Option("length", "about how many entries a stream keeps at most (default: all)", type=int, metavar="N"),
        PREFIX,
        PARTITIONS,
    ),
    consumer="opening:consumer",
    consumer_options=(
        PARTITIONS,
        PREFIX,
        PREFETCH,
        PREFETCH_BYTES,
        LEASE,
        REDELIVERY_WINDOW,
        Option("leases", "the store of the consumers' leases, if it is not the broker", metavar="URL"),
        Option(
            "delete",
            "whether settled entries are removed at once: for the only group",
            choices=("yes", "no"),
            convert=is_yes,
        ),
        KEEP,
    ),
    extra="redis",
    checks="checks:EXAMINATION",
)

__getattr__ = lazily(
    __name__,
    {
        "AsyncRedisStreamsPublisher": "publisher",
        "RedisStreamsConsumer": "consumer",
        "RedisStreamsPublisher": "publisher",
    },
)
