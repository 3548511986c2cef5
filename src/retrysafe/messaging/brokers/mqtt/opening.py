"""MQTT from its URL."""

from __future__ import annotations

from collections.abc import Iterable

from retrysafe.messaging.brokers.mqtt.consumer import MqttConsumer
from retrysafe.messaging.brokers.mqtt.publisher import MqttPublisher
from retrysafe.messaging.brokers.mqtt.topology import declare
from retrysafe.protocol.records import Duration


class Mqtt:
    """Topics that begin with our name, with a session for each group."""

    def __init__(self, url: str, *, name: str, partitions: int | None, lease: Duration) -> None:
        self._url, self._prefix, self._partitions, self._lease = url, f"{name}/", partitions, lease

    async def declare(self, topics: Iterable[str], groups: Iterable[str]) -> None:
        """Declare the sessions."""
        topics = list(topics)
        for group in groups:
            await declare(self._url, topics, group=group, prefix=self._prefix, partitions=self._partitions)

    def publisher(self) -> MqttPublisher:
        """A publisher to the topics."""
        return MqttPublisher(self._url, prefix=self._prefix, partitions=self._partitions)

    def consumer(self, topic: str, group: str) -> MqttConsumer:
        """A consumer of the group's sessions."""
        return MqttConsumer(
            self._url, topic, group=group, prefix=self._prefix, partitions=self._partitions, lease=self._lease
        )
