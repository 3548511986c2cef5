"""RabbitMQ from its URL."""

from __future__ import annotations

from collections.abc import Iterable

from retrysafe.messaging.brokers.rabbitmq.consumer import RabbitMQConsumer
from retrysafe.messaging.brokers.rabbitmq.publisher import RabbitMQPublisher
from retrysafe.messaging.brokers.rabbitmq.topology import declare
from retrysafe.protocol.records import Duration


class RabbitMQ:
    """An exchange of our name, to which each group's queues are bound. The broker sees when a consumer is gone."""

    def __init__(self, url: str, *, name: str, partitions: int | None, lease: Duration) -> None:
        self._url, self._name, self._partitions = url, name, partitions

    async def declare(self, topics: Iterable[str], groups: Iterable[str]) -> None:
        """Declare the exchange and the queues."""
        topics = list(topics)
        for group in groups:
            await declare(
                self._url, topics, partitions=self._partitions, exchange=self._name, group=f"{self._name}.{group}"
            )

    def publisher(self) -> RabbitMQPublisher:
        """A publisher to the exchange."""
        return RabbitMQPublisher(self._url, exchange=self._name, partitions=self._partitions)

    def consumer(self, topic: str, group: str) -> RabbitMQConsumer:
        """A consumer of the group's queues."""
        return RabbitMQConsumer(self._url, topic, partitions=self._partitions, group=f"{self._name}.{group}")
