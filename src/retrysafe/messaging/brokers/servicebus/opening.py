"""Service Bus from a URL such as servicebus://NAME.servicebus.windows.net."""

from __future__ import annotations

from retrysafe.messaging.brokers.base import Broker
from retrysafe.messaging.brokers.servicebus.consumer import ServiceBusConsumer
from retrysafe.messaging.brokers.servicebus.publisher import ServiceBusPublisher
from retrysafe.messaging.brokers.servicebus.topology import declare
from retrysafe.protocol.records import Duration

_KEPT = "7d"


def broker(url: str, *, name: str, partitions: int | None, lease: Duration) -> Broker:
    """Topics whose names begin with our name, with a subscription for each group; their lanes have sessions."""
    prefix = f"{name}-"
    return Broker(
        lambda topics, group: declare(url, topics, group=group, prefix=prefix, lease=lease, keep=_KEPT),
        lambda: ServiceBusPublisher(url, prefix=prefix, partitions=partitions),
        lambda topic, group: ServiceBusConsumer(url, topic, group=group, prefix=prefix, redelivery_window=_KEPT),
    )
