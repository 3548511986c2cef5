"""RabbitMQ from its URL."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers.rabbitmq.consumer import RabbitMQConsumer
from retrysafe.messaging.brokers.rabbitmq.publisher import RabbitMQPublisher
from retrysafe.messaging.brokers.rabbitmq.topology import declare
from retrysafe.protocol.records import Duration


def publisher(url: str, *, asynchronous: bool, broker_timeout: Duration, **options: Any) -> RabbitMQPublisher:
    """The publisher of `retrysafe relay`; it is for async code, whatever the store."""
    return RabbitMQPublisher(url, timeout=broker_timeout, **options)


def consumer(
    url: str,
    topics: Sequence[str],
    *,
    group: str,
    broker_timeout: Duration,
    only_partitions: str | None = None,
    **options: Any,
) -> RabbitMQConsumer:
    """The consumer of `retrysafe inbox run`; without a group of the queues that all share."""
    numbers = None if only_partitions is None else [_number(one) for one in only_partitions.split(",")]
    return RabbitMQConsumer(
        url, topics, group=group or None, timeout=broker_timeout, only_partitions=numbers, **options
    )


def _number(text: str) -> int:
    if not text.strip().isdecimal():
        raise ConfigurationError(f"--only-partitions: {text!r} is no number.")
    return int(text)


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
