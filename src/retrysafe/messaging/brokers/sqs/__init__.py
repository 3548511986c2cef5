"""Amazon SQS and SNS: publishers to queues and to topics, consumer of queues. Needs the extra ``sqs``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrysafe.messaging.brokers.spec import BrokerSpec, lazily

if TYPE_CHECKING:
    from retrysafe.messaging.brokers.sqs.consumer import SqsConsumer
    from retrysafe.messaging.brokers.sqs.publisher import SnsPublisher, SqsPublisher
    from retrysafe.messaging.brokers.sqs.topology import declare

__all__ = ["BROKER", "SnsPublisher", "SqsConsumer", "SqsPublisher", "declare"]

BROKER = BrokerSpec(
    package=__name__,
    title="Amazon SQS and SNS",
    schemes=("sqs", "sns"),
    publisher="opening:publisher",
    consumer="opening:consumer",
    broker="opening:broker",
    declaration="opening:declaration",
    declares=("prefix", "ordered"),
    passed_to={
        "opening:publisher": "publisher:SqsPublisher",
        "opening:consumer": "consumer:SqsConsumer",
        "opening:declaration": "topology:declare",
    },
    extra="sqs",
    checks="checks:EXAMINATION",
)

__getattr__ = lazily(__name__, consumer="SqsConsumer", publisher="SnsPublisher SqsPublisher", topology="declare")
