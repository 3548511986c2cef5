"""A stream of NATS JetStream, and nats-py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import nats

from benchmarks import services
from benchmarks.brokers.base import WAIT, WINDOW, Broker, Receive, new_topic, portions, receiving
from retrysafe.messaging.brokers.nats import NatsConsumer, NatsPublisher, declare
from retrysafe.messaging.brokers.nats.messages import headers_of
from retrysafe.protocol.messages import Envelope


@asynccontextmanager
async def opened() -> AsyncIterator[Broker]:
    """A new stream, on disk."""
    url, topic = services.url("nats"), new_topic()
    await declare(url, topic, stream=topic)
    client = await nats.connect(url)
    streams = client.jetstream()

    async def raw(written: Sequence[Envelope]) -> None:
        for some in portions(written):
            sent = [
                await streams.publish_async(envelope.topic, envelope.payload, headers=headers_of(envelope))
                for envelope in some
            ]
            await asyncio.gather(*sent)

    async def clear() -> None:
        await streams.purge_stream(topic)

    publisher = NatsPublisher(url)
    make = partial(NatsConsumer, url, topic, group="bench")
    yield Broker(topic, publisher, raw, clear, partial(receiving, make), partial(raw_receiving, streams, topic))
    await publisher.aclose()
    await streams.delete_stream(topic)
    await client.close()


@asynccontextmanager
async def raw_receiving(streams: Any, topic: str) -> AsyncIterator[Receive]:
    """A raw pull consumer; the server's confirm of the last acknowledgement is waited for."""
    subscription = await streams.pull_subscribe(topic, durable="raw")

    async def receive() -> int:
        found = await subscription.fetch(WINDOW, WAIT)
        for message in found[:-1]:
            await message.ack()
        await found[-1].ack_sync()
        return len(found)

    yield receive
    await subscription.unsubscribe()
