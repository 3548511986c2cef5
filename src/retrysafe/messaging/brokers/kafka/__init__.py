"""Kafka: publishers, consumer, and the topics that they meet in. Needs the extra ``kafka``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrysafe.messaging.brokers.spec import BrokerSpec, lazily

if TYPE_CHECKING:
    from retrysafe.messaging.brokers.kafka.consumer import KafkaConsumer
    from retrysafe.messaging.brokers.kafka.ledger import KafkaLedger
    from retrysafe.messaging.brokers.kafka.offsets import KafkaState
    from retrysafe.messaging.brokers.kafka.publisher import AsyncKafkaPublisher, KafkaPublisher
    from retrysafe.messaging.brokers.kafka.topics import declare
    from retrysafe.messaging.brokers.kafka.transactions import Aborted, Committed, KafkaTransactions, Recreated

__all__ = [
    "BROKER",
    "Aborted",
    "AsyncKafkaPublisher",
    "Committed",
    "KafkaConsumer",
    "KafkaLedger",
    "KafkaPublisher",
    "KafkaState",
    "KafkaTransactions",
    "Recreated",
    "declare",
]

BROKER = BrokerSpec(
    package=__name__,
    title="Kafka",
    schemes=("kafka",),
    publisher="publisher:KafkaPublisher",
    async_publisher="publisher:AsyncKafkaPublisher",
    consumer="consumer:KafkaConsumer",
    declaration="topics:declare",
    declares=("prefix", "partitions", "replicas"),
    extra="kafka",
    checks="checks:EXAMINATION",
)

__getattr__ = lazily(
    __name__,
    publisher="AsyncKafkaPublisher KafkaPublisher",
    transactions="Aborted Committed KafkaTransactions Recreated",
    consumer="KafkaConsumer",
    ledger="KafkaLedger",
    offsets="KafkaState",
    topics="declare",
)
