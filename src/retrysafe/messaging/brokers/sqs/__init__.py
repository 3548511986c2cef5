"""Amazon SQS and SNS: publishers to queues and to topics, consumer of queues. Needs the extra ``sqs``."""

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
    from retrysafe.messaging.brokers.sqs.consumer import SqsConsumer
    from retrysafe.messaging.brokers.sqs.publisher import SnsPublisher, SqsPublisher
    from retrysafe.messaging.brokers.sqs.topology import declare

__all__ = ["BROKER", "SnsPublisher", "SqsConsumer", "SqsPublisher", "declare"]

BROKER = BrokerSpec(
    package=__name__,
    title="Amazon SQS and SNS",
    schemes=("sqs", "sns"),
    broker="opening:Fanout",
    publisher="opening:publisher",
    options=(PREFIX, MODE, ORDERED, BROKER_TIMEOUT),
    consumer="opening:consumer",
    consumer_options=(PREFIX, ORDERED, PREFETCH, PREFETCH_BYTES, LEASE, POLL, REDELIVERY_WINDOW, BROKER_TIMEOUT),
    declaration="opening:declaration",
    declare_options=(PREFIX, ORDERED),
    extra="sqs",
    checks="checks:EXAMINATION",
)

__getattr__ = lazily(
    __name__,
    {"SnsPublisher": "publisher", "SqsConsumer": "consumer", "SqsPublisher": "publisher", "declare": "topology"},
)
