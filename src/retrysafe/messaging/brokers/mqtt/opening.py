"""MQTT from its URL."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from retrysafe.messaging.brokers.mqtt.consumer import MqttConsumer
from retrysafe.messaging.brokers.mqtt.publisher import MqttPublisher
from retrysafe.messaging.brokers.mqtt.topology import declare
from retrysafe.messaging.brokers.spec import keep_of
from retrysafe.protocol.records import Duration


def publisher(url: str, *, asynchronous: bool, broker_timeout: Duration, **options: Any) -> MqttPublisher:
    """The publisher of `retrysafe relay`; it is for async code, whatever the store."""
    return MqttPublisher(url, timeout=broker_timeout, **options)


def consumer(url: str, topics: Sequence[str], *, group: str, broker_timeout: Duration, **options: Any) -> MqttConsumer:
    """The consumer of `retrysafe inbox run`."""
    kept = keep_of(options)
    return MqttConsumer(url, topics, group=group, timeout=broker_timeout, **kept, **options)


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
