"""Kafka from its URL."""

from __future__ import annotations

import asyncio

from retrysafe.messaging.brokers.base import Broker
from retrysafe.messaging.brokers.kafka.consumer import KafkaConsumer
from retrysafe.messaging.brokers.kafka.publisher import AsyncKafkaPublisher
from retrysafe.messaging.brokers.kafka.topics import declare
from retrysafe.protocol.records import Duration


def broker(url: str, *, name: str, partitions: int | None, lease: Duration) -> Broker:
    """Topics whose names begin with our name; so do the groups', which make themselves."""
    prefix = f"{name}."
    return Broker(
        lambda topics, _: asyncio.to_thread(declare, url, topics, prefix=prefix, partitions=partitions),
        lambda: AsyncKafkaPublisher(url, prefix=prefix),
        lambda topic, group: KafkaConsumer(url, topic, group=f"{prefix}{group}", prefix=prefix, session=lease),
    )
