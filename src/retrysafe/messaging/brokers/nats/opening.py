"""NATS from its URL."""

from __future__ import annotations

from collections.abc import Iterable

from retrysafe.messaging.brokers.nats.consumer import NatsConsumer
from retrysafe.messaging.brokers.nats.publisher import NatsPublisher
from retrysafe.messaging.brokers.nats.topology import declare
from retrysafe.protocol.records import Duration


class Nats:
    """A stream of our name, which keeps the subjects that begin with it. Consumers make what is a group's."""

    def __init__(self, url: str, *, name: str, partitions: int | None, lease: Duration) -> None:
        self._url, self._name, self._partitions, self._lease = url, name, partitions, lease

    async def declare(self, topics: Iterable[str], groups: Iterable[str]) -> None:
        """Declare the stream."""
        await declare(self._url, topics, stream=self._name, prefix=f"{self._name}.", partitions=self._partitions)

    def publisher(self) -> NatsPublisher:
        """A publisher to the subjects."""
        return NatsPublisher(self._url, prefix=f"{self._name}.", partitions=self._partitions)

    def consumer(self, topic: str, group: str) -> NatsConsumer:
        """A consumer of the subjects."""
        return NatsConsumer(
            self._url, topic, group=group, prefix=f"{self._name}.", partitions=self._partitions, lease=self._lease
        )
