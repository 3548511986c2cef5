"""Google Pub/Sub: publisher to topics, consumer of subscriptions. Needs the extra ``pubsub``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrysafe.messaging.brokers.spec import (
    BROKER_TIMEOUT,
    LEASE,
    MODE,
    ORDERED,
    POLL,
    PREFETCH,
    PREFETCH_BYTES,
    PREFIX,
    REDELIVERY_WINDOW,
    BrokerSpec,
    lazily,
)

if TYPE_CHECKING:
    from retrysafe.messaging.brokers.pubsub.consumer import PubSubConsumer
    from retrysafe.messaging.brokers.pubsub.publisher import PubSubPublisher
    from retrysafe.messaging.brokers.pubsub.topology import declare

__all__ = ["BROKER", "PubSubConsumer", "PubSubPublisher", "declare"]

BROKER = BrokerSpec(
    package=__name__,
    title="Google Pub/Sub",
    schemes=("pubsub",),
    broker="opening:PubSubTopics",
    publisher="opening:publisher",
    options=(PREFIX, MODE, BROKER_TIMEOUT),
    consumer="opening:consumer",
    consumer_options=(PREFIX, PREFETCH, PREFETCH_BYTES, POLL, REDELIVERY_WINDOW, BROKER_TIMEOUT),
    declaration="opening:declaration",
    declare_options=(PREFIX, ORDERED, LEASE),
    extra="pubsub",
    checks="checks:EXAMINATION",
)

__getattr__ = lazily(
    __name__,
    {"PubSubConsumer": "consumer", "PubSubPublisher": "publisher", "declare": "topology"},
)
