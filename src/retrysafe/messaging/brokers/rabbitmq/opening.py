"""RabbitMQ from its URL."""

from __future__ import annotations

from retrysafe.messaging.brokers.base import Broker
from retrysafe.messaging.brokers.rabbitmq.consumer import RabbitMQConsumer
from retrysafe.messaging.brokers.rabbitmq.publisher import RabbitMQPublisher
from retrysafe.messaging.brokers.rabbitmq.topology import declare
from retrysafe.protocol.records import Duration


def broker(url: str, *, name: str, partitions: int | None, lease: Duration) -> Broker:
    """An exchange of our name, to which each group's queues are bound. The broker sees when a consumer is gone."""
    return Broker(
        lambda topics, group: declare(url, topics, partitions=partitions, exchange=name, group=f"{name}.{group}"),
        lambda: RabbitMQPublisher(url, exchange=name, partitions=partitions),
        lambda topic, group: RabbitMQConsumer(url, topic, partitions=partitions, group=f"{name}.{group}"),
    )
