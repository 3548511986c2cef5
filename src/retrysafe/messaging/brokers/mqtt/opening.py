"""MQTT from its URL."""

from __future__ import annotations

from typing import Any

from retrysafe.messaging.brokers.base import Broker
from retrysafe.messaging.brokers.mqtt.consumer import MqttConsumer
from retrysafe.messaging.brokers.mqtt.publisher import MqttPublisher
from retrysafe.messaging.brokers.mqtt.topology import declare
from retrysafe.protocol.records import Duration


def broker(url: str, *, name: str, partitions: int | None, lease: Duration) -> Broker:
    """Topics that begin with our name, with a session for each group."""
    shared: dict[str, Any] = {"prefix": f"{name}/", "partitions": partitions}
    return Broker(
        lambda topics, group: declare(url, topics, group=group, **shared),
        lambda: MqttPublisher(url, **shared),
        lambda topic, group: MqttConsumer(url, topic, group=group, lease=lease, **shared),
    )
