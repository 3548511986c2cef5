"""NATS from its URL."""

from __future__ import annotations

from typing import Any

from retrysafe.messaging.brokers.base import Broker
from retrysafe.messaging.brokers.nats.consumer import NatsConsumer
from retrysafe.messaging.brokers.nats.publisher import NatsPublisher
from retrysafe.messaging.brokers.nats.topology import declare
from retrysafe.protocol.records import Duration


def broker(url: str, *, name: str, partitions: int | None, lease: Duration) -> Broker:
    """A stream of our name, which keeps the subjects that begin with it. Consumers make what is a group's."""
    shared: dict[str, Any] = {"prefix": f"{name}.", "partitions": partitions}
    return Broker(
        lambda topics, _: declare(url, topics, stream=name, **shared),
        lambda: NatsPublisher(url, **shared),
        lambda topic, group: NatsConsumer(url, topic, group=group, lease=lease, **shared),
    )
