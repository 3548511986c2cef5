"""Kafka: publishers, consumer, and the topics that they meet in. Needs the extra ``kafka``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrysafe.messaging.brokers.spec import (
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
    broker="opening:Kafka",
    publisher="publisher:KafkaPublisher",
    async_publisher="publisher:AsyncKafkaPublisher",
    options=(
        PREFIX,
        MODE,
        Option("delivery_timeout", "how long a delivery may take (20s)", default="20s", metavar="TIME"),
    ),
    consumer="consumer:KafkaConsumer",
    consumer_options=(
        PREFIX,
        PREFETCH,
        PREFETCH_BYTES,
        REDELIVERY_WINDOW,
        Option("session", "how long a dead consumer keeps its partitions", metavar="TIME"),
        Option("leave_within", "how long a partition that moves is kept for messages in progress", metavar="TIME"),
    ),
    declaration="opening:declaration",
    declare_options=(PREFIX, PARTITIONS, REPLICAS),
    extra="kafka",
    checks="checks:EXAMINATION",
)

__getattr__ = lazily(
    __name__,
    {
        **dict.fromkeys(("AsyncKafkaPublisher", "KafkaPublisher"), "publisher"),
        **dict.fromkeys(("Aborted", "Committed", "KafkaTransactions", "Recreated"), "transactions"),
        "KafkaConsumer": "consumer",
        "KafkaLedger": "ledger",
        "KafkaState": "offsets",
        "declare": "topics",
    },
)
