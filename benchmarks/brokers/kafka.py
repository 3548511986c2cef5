"""A topic of Kafka, and confluent-kafka."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from benchmarks import services
from benchmarks.brokers.base import AT_ONCE, BRIEF, WAIT, Broker, Receive, new_topic, nothing, receiving
from retrysafe.messaging.brokers.kafka import AsyncKafkaPublisher, KafkaConsumer, declare
from retrysafe.messaging.brokers.kafka.messages import record_of
from retrysafe.protocol.messages import Envelope

PARTITIONS = 4


def brokers() -> dict[str, Any]:
    """Return the settings of every raw client."""
    return {"bootstrap.servers": services.url("kafka").removeprefix("kafka://"), "log_level": 0}


@asynccontextmanager
async def opened() -> AsyncIterator[Broker]:
    """A new topic."""
    url, topic = services.url("kafka"), new_topic()
    await asyncio.to_thread(declare, url, [topic], partitions=PARTITIONS)
    producer = Producer({**brokers(), "acks": "all", "enable.idempotence": True, "linger.ms": 1})

    async def raw(written: Sequence[Envelope]) -> None:
        confirmed = 0

        def report(error: KafkaError | None, _: object) -> None:
            nonlocal confirmed
            confirmed += error is None

        for envelope in written:
            place, key, value, headers = record_of(envelope, "binary", "")
            producer.produce(place, value, key, headers=headers, on_delivery=report)
            producer.poll(0)
        producer.flush(WAIT)
        assert confirmed == len(written)

    publisher = AsyncKafkaPublisher(url)
    make = partial(KafkaConsumer, url, topic, group=topic)
    yield Broker(topic, publisher, raw, nothing, partial(receiving, make), partial(raw_receiving, topic))
    await publisher.aclose()
    await asyncio.to_thread(delete, topic)


@asynccontextmanager
async def raw_receiving(topic: str) -> AsyncIterator[Receive]:
    """A raw consumer, which commits what it has received before it receives more."""
    consumer = raw_consumer(topic)

    async def receive() -> int:
        found = consumer.consume(AT_ONCE, BRIEF)
        while not found:
            found = consumer.consume(AT_ONCE, BRIEF)
        for message in found:
            if (error := message.error()) is not None:
                raise KafkaException(error)
            message.headers(), message.key(), message.value()
        consumer.commit(asynchronous=False)
        return len(found)

    yield receive
    consumer.close()


def raw_consumer(topic: str) -> Any:
    """A raw consumer of a topic, in a group named like it."""
    settings = {"group.id": topic, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    consumer = Consumer({**brokers(), **settings, "isolation.level": "read_committed"})
    consumer.subscribe([topic])
    return consumer


def delete(*topics: str) -> None:
    """Delete topics."""
    operator = AdminClient(brokers())
    for deleted in operator.delete_topics([*topics]).values():
        deleted.result()
