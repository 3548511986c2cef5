"""A topic of Google Pub/Sub, and the clients of its interface. A request has messages of one ordering key only."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from google.pubsub_v1 import types

from benchmarks import services
from benchmarks.brokers.base import AT_ONCE, WAIT, Broker, Receive, new_topic, receiving, windows
from retrysafe.messaging.brokers.pubsub import PubSubConsumer, PubSubPublisher, declare
from retrysafe.messaging.brokers.pubsub.client import PubSubService
from retrysafe.messaging.brokers.pubsub.messages import content_of, subscription_path, topic_path
from retrysafe.messaging.brokers.pubsub.opening import options_of
from retrysafe.protocol.messages import Envelope

GROUP = "bench"


@asynccontextmanager
async def opened() -> AsyncIterator[Broker]:
    """A new topic with a subscription that keeps the order of keys."""
    options, topic = options_of(services.url("pubsub")), new_topic()
    await declare(topics=topic, group=GROUP, **options)
    service = PubSubService(options.get("endpoint"), WAIT)
    clients = await service.open()
    path = topic_path(options["project"], "", topic)
    subscription = subscription_path(options["project"], "", topic, GROUP)

    async def one(envelope: Envelope) -> None:
        data, attributes, key = content_of(envelope, "binary")
        message = types.PubsubMessage(data=data, attributes=attributes, ordering_key=key)
        await clients.publisher.publish(topic=path, messages=[message], retry=None, timeout=WAIT)

    async def raw(written: Sequence[Envelope]) -> None:
        await windows(written, one)

    async def clear() -> None:
        """A subscription that is made anew has nothing of what was published before."""
        await clients.subscriber.delete_subscription(subscription=subscription)
        await declare(topics=topic, group=GROUP, **options)

    publisher = PubSubPublisher(**options)
    make = partial(PubSubConsumer, topics=topic, group=GROUP, poll="1s", **options)
    raw_consumer = partial(raw_receiving, clients.subscriber, subscription)
    yield Broker(topic, publisher, raw, clear, partial(receiving, make), raw_consumer)
    await publisher.aclose()
    await clients.subscriber.delete_subscription(subscription=subscription)
    await clients.publisher.delete_topic(topic=path)
    await service.aclose()


@asynccontextmanager
async def raw_receiving(client: Any, subscription: str) -> AsyncIterator[Receive]:
    """Pulls with the raw client, and acknowledges before it pulls more."""

    async def receive() -> int:
        pulled = await client.pull(subscription=subscription, max_messages=AT_ONCE, retry=None, timeout=WAIT)
        found = [(one.ack_id, one.message.data, dict(one.message.attributes)) for one in pulled.received_messages]
        if found:
            await client.acknowledge(subscription=subscription, ack_ids=[id_ for id_, _, _ in found])
        return len(found)

    yield receive
