"""NATS JetStream: publisher, consumer, and the stream that they meet in. Needs the extra ``nats``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrysafe.messaging.brokers.spec import BrokerSpec, lazily

if TYPE_CHECKING:
    from retrysafe.messaging.brokers.nats.consumer import NatsConsumer
    from retrysafe.messaging.brokers.nats.publisher import NatsPublisher
    from retrysafe.messaging.brokers.nats.topology import declare

__all__ = ["BROKER", "NatsConsumer", "NatsPublisher", "declare"]

BROKER = BrokerSpec(
    package=__name__,
    title="NATS",
    schemes=("nats", "tls"),
    publisher="publisher:NatsPublisher",
    consumer="consumer:NatsConsumer",
    declaration="topology:declare",
    declares=("stream", "prefix", "partitions", "replicas", "credentials"),
    extra="nats",
    checks="checks:EXAMINATION",
)

__getattr__ = lazily(__name__, consumer="NatsConsumer", publisher="NatsPublisher", topology="declare")
