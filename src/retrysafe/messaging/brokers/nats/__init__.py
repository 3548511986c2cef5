"""NATS JetStream: publisher, consumer, and the stream that they meet in. Needs the extra ``nats``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrysafe.messaging.brokers.spec import BROKER_TIMEOUT, PARTITIONS, PREFIX, BrokerSpec, Option, lazily

if TYPE_CHECKING:
    from retrysafe.messaging.brokers.nats.consumer import NatsConsumer
    from retrysafe.messaging.brokers.nats.publisher import NatsPublisher
    from retrysafe.messaging.brokers.nats.topology import declare

__all__ = ["BROKER", "NatsConsumer", "NatsPublisher", "declare"]

BROKER = BrokerSpec(
    package=__name__,
    title="NATS",
    schemes=("nats", "tls"),
    broker="opening:Nats",
    publisher="opening:publisher",
    options=(
        PREFIX,
        Option("credentials", "a file of NATS credentials (.creds)", metavar="FILE"),
        BROKER_TIMEOUT,
        PARTITIONS,
    ),
    extra="nats",
    checks="checks:EXAMINATION",
)

__getattr__ = lazily(
    __name__,
    {"NatsConsumer": "consumer", "NatsPublisher": "publisher", "declare": "topology"},
)
