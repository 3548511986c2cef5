"""Kafka from its URL."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from retrysafe.messaging.brokers.kafka.consumer import KafkaConsumer
from retrysafe.messaging.brokers.kafka.publisher import AsyncKafkaPublisher
from retrysafe.messaging.brokers.kafka.topics import declare
from retrysafe.protocol.records import Duration


class Kafka:
    """Topics whose names begin with our name; so do the groups'."""

    def __init__(self, url: str, *, name: str, partitions: int | None, lease: Duration) -> None:
        self._url, self._prefix, self._partitions, self._lease = url, f"{name}.", partitions, lease

    async def declare(self, topics: Iterable[str], groups: Iterable[str]) -> None:
        """Make the topics; groups make themselves."""
        await asyncio.to_thread(declare, self._url, topics, prefix=self._prefix, partitions=self._partitions)

    def publisher(self) -> AsyncKafkaPublisher:
        """A publisher to the topics."""
        return AsyncKafkaPublisher(self._url, prefix=self._prefix)

    def consumer(self, topic: str, group: str) -> KafkaConsumer:
        """A consumer of a topic in a group."""
        return KafkaConsumer(self._url, topic, group=f"{self._prefix}{group}", prefix=self._prefix, session=self._lease)
