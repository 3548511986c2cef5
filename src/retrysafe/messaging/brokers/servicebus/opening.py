"""Service Bus from a URL such as servicebus://NAME.servicebus.windows.net."""

from __future__ import annotations

from collections.abc import Iterable

from retrysafe.messaging.brokers.servicebus.consumer import ServiceBusConsumer
from retrysafe.messaging.brokers.servicebus.publisher import ServiceBusPublisher
from retrysafe.messaging.brokers.servicebus.topology import declare
from retrysafe.protocol.records import Duration

_KEPT = "7d"


class ServiceBusTopics:
    """Topics whose names begin with our name, with a subscription for each group; their lanes have sessions."""

    def __init__(self, url: str, *, name: str, partitions: int | None, lease: Duration) -> None:
        self._url, self._prefix, self._partitions, self._lease = url, f"{name}-", partitions, lease

    async def declare(self, topics: Iterable[str], groups: Iterable[str]) -> None:
        """Make topics and subscriptions."""
        topics = list(topics)
        for group in groups:
            await declare(self._url, topics, group=group, prefix=self._prefix, lease=self._lease, keep=_KEPT)

    def publisher(self) -> ServiceBusPublisher:
        """A publisher to the topics."""
        return ServiceBusPublisher(self._url, prefix=self._prefix, partitions=self._partitions)

    def consumer(self, topic: str, group: str) -> ServiceBusConsumer:
        """A consumer of the group's subscription."""
        return ServiceBusConsumer(self._url, topic, group=group, prefix=self._prefix, redelivery_window=_KEPT)
