"""RabbitMQ: publisher, consumer, and the queues that they meet in. Needs the extra ``rabbitmq``."""

from __future__ import annotations

from retrysafe.messaging.brokers.rabbitmq.consumer import RabbitMQConsumer
from retrysafe.messaging.brokers.rabbitmq.publisher import RabbitMQPublisher
from retrysafe.messaging.brokers.rabbitmq.topology import NEVER, declare

__all__ = ["NEVER", "RabbitMQConsumer", "RabbitMQPublisher", "declare"]
