"""NATS JetStream: publisher, consumer, and the stream that they meet in. Needs the extra ``nats``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrysafe.messaging.brokers.spec import (
    BROKER_TIMEOUT,
    LEASE,
    MODE,
    PARTITIONS,
    PREFETCH,
    PREFETCH_BYTES,
    PREFIX,
    REDELIVERY_WINDOW,
    REPLICAS,
    BrokerSpec,
    Option,
    lazily,
)

if TYPE_CHECKING:
    from retrysafe.messaging.brokers.nats.consumer import NatsConsumer
    from retrysafe.messaging.brokers.nats.publisher import NatsPublisher
    from retrysafe.messaging.brokers.nats.topology import declare

__all__ = ["BROKER", "NatsConsumer", "NatsPublisher", "declare"]

CREDENTIALS = Option("credentials", "a file of NATS credentials (.creds)", metavar="FILE")

BROKER = BrokerSpec(
    package=__name__,
    title="NATS",
    schemes=("nats", "tls"),
    broker="opening:Nats",
    publisher="publisher:NatsPublisher",
    options=(PREFIX, MODE, CREDENTIALS, BROKER_TIMEOUT, PARTITIONS),
    consumer="consumer:NatsConsumer",
    consumer_options=(
        PARTITIONS,
        PREFIX,
        PREFETCH,
        PREFETCH_BYTES,
        LEASE,
        REDELIVERY_WINDOW,
        CREDENTIALS,
        BROKER_TIMEOUT,
    ),
    declaration="opening:declaration",
    declare_options=(
        PREFIX,
        PARTITIONS,
        REPLICAS,
        CREDENTIALS,
        Option("stream", "the name of the stream that keeps the topics", default="", metavar="NAME"),
    ),
    extra="nats",
    checks="checks:EXAMINATION",
)

__getattr__ = lazily(
    __name__,
    {"NatsConsumer": "consumer", "NatsPublisher": "publisher", "declare": "topology"},
)
