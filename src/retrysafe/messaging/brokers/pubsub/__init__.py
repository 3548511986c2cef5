"""Google Pub/Sub: publisher to topics, consumer of subscriptions. Needs the extra ``pubsub``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrysafe.messaging.brokers.spec import BrokerSpec, lazily

if TYPE_CHECKING:
    from retrysafe.messaging.brokers.pubsub.consumer import PubSubConsumer
    from retrysafe.messaging.brokers.pubsub.publisher import PubSubPublisher
    from retrysafe.messaging.brokers.pubsub.topology import declare

__all__ = ["BROKER", "PubSubConsumer", "PubSubPublisher", "declare"]

BROKER = BrokerSpec(
    package=__name__,
    title="Google Pub/Sub",
    schemes=("pubsub",),
    publisher="opening:publisher",
    consumer="opening:consumer",
    broker="opening:broker",
    declaration="opening:declaration",
    declares=("prefix", "ordered", "lease"),
    passed_to={
        "opening:publisher": "publisher:PubSubPublisher",
        "opening:consumer": "consumer:PubSubConsumer",
        "opening:declaration": "topology:declare",
    },
    extra="pubsub",
    checks="checks:EXAMINATION",
)

__getattr__ = lazily(__name__, consumer="PubSubConsumer", publisher="PubSubPublisher", topology="declare")
