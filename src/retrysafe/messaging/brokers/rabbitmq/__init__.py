"""RabbitMQ: publisher, consumer, and the queues that they meet in. Needs the extra ``rabbitmq``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrysafe.messaging.brokers.spec import BrokerSpec, lazily

if TYPE_CHECKING:
    from retrysafe.messaging.brokers.rabbitmq.consumer import RabbitMQConsumer
    from retrysafe.messaging.brokers.rabbitmq.publisher import RabbitMQPublisher
    from retrysafe.messaging.brokers.rabbitmq.topology import NEVER, declare

__all__ = ["BROKER", "NEVER", "RabbitMQConsumer", "RabbitMQPublisher", "declare"]

BROKER = BrokerSpec(
    package=__name__,
    title="RabbitMQ",
    schemes=("amqp", "amqps"),
    publisher="publisher:RabbitMQPublisher",
    consumer="consumer:RabbitMQConsumer",
    declaration="topology:declare",
    declares=("partitions", "ordered", "exchange"),
    extra="rabbitmq",
    checks="checks:EXAMINATION",
)

__getattr__ = lazily(__name__, consumer="RabbitMQConsumer", publisher="RabbitMQPublisher", topology="NEVER declare")
