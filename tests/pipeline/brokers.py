"""The brokers that the pipeline is run on: each with its publisher, its consumer, and a look at what it still has."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

import aio_pika
import redis.asyncio

from retrysafe.messaging.brokers import sqlite
from retrysafe.messaging.brokers.base import AsyncPublisher, Consumer
from retrysafe.messaging.brokers.rabbitmq.consumer import RabbitMQConsumer
from retrysafe.messaging.brokers.rabbitmq.publisher import RabbitMQPublisher
from retrysafe.messaging.brokers.rabbitmq.topology import declare
from retrysafe.messaging.brokers.redis_streams.consumer import RedisStreamsConsumer
from retrysafe.messaging.brokers.redis_streams.publisher import AsyncRedisStreamsPublisher, stream_of
from retrysafe.protocol.ordering import partitions_of

PARTITIONS = 6
GROUP = "inventory"


class Broker(Protocol):
    """A broker and a topic. It is made anew in every process."""

    async def prepare(self) -> None:
        """Make queues, where publishers do not."""

    def publisher(self) -> AsyncPublisher: ...

    def consumer(self) -> Consumer: ...

    async def left(self) -> int:
        """How many messages it has that were not settled, when no consumer is connected any more."""

    async def remove(self) -> None:
        """Remove the queues."""


class RabbitMQ:
    """Quorum queues, each with a single active consumer."""

    def __init__(self, url: str, topic: str) -> None:
        self._url, self._topic = url, topic

    async def prepare(self) -> None:
        await declare(self._url, self._topic, partitions=PARTITIONS)

    def publisher(self) -> AsyncPublisher:
        return RabbitMQPublisher(self._url, partitions=PARTITIONS)

    def consumer(self) -> Consumer:
        return RabbitMQConsumer(self._url, self._topic, partitions=PARTITIONS)

    async def left(self) -> int:
        async with await aio_pika.connect(self._url) as connection:
            channel = await connection.channel()
            found = 0
            for queue in partitions_of(self._topic, PARTITIONS):
                declared = await channel.declare_queue(queue, passive=True)
                found += declared.declaration_result.message_count or 0
            return found

    async def remove(self) -> None:
        async with await aio_pika.connect(self._url) as connection:
            channel = await connection.channel()
            for queue in partitions_of(self._topic, PARTITIONS):
                await channel.queue_delete(queue)


class RedisStreams:
    """Streams, each held by one consumer of the group under a lease."""

    def __init__(self, url: str, topic: str) -> None:
        self._url, self._topic = url, topic

    def _client(self) -> redis.asyncio.Redis:
        return redis.asyncio.Redis.from_url(self._url)

    async def prepare(self) -> None:
        return

    def publisher(self) -> AsyncPublisher:
        return AsyncRedisStreamsPublisher(self._client(), partitions=PARTITIONS)

    def consumer(self) -> Consumer:
        return RedisStreamsConsumer(self._client(), self._topic, group=GROUP, partitions=PARTITIONS, lease="2s")

    async def left(self) -> int:
        client, found = self._client(), 0
        for place in partitions_of(self._topic, PARTITIONS):
            for group in await client.xinfo_groups(stream_of("", place)):
                found += group["pending"] + group["lag"]
        await client.aclose()
        return found

    async def remove(self) -> None:
        client = self._client()
        async for key in client.scan_iter(match=f"{{{self._topic}.*", count=1000):
            await client.delete(key)
        await client.aclose()


class SqliteFile:
    """A file."""

    def __init__(self, path: str, topic: str) -> None:
        self._path, self._topic = path, topic

    async def prepare(self) -> None:
        sqlite.declare(self._path, [(self._topic, GROUP)])

    def publisher(self) -> AsyncPublisher:
        return sqlite.AsyncSqlitePublisher(self._path)

    def consumer(self) -> Consumer:
        return sqlite.SqliteConsumer(self._path, GROUP, hold="2s")

    async def left(self) -> int:
        consumer = self.consumer()
        found = await consumer.receive(1_000_000, 0)
        await consumer.aclose()
        return len(found)

    async def remove(self) -> None:
        return


KINDS: dict[str, Any] = {"rabbitmq": RabbitMQ, "redis": RedisStreams, "sqlite": SqliteFile}


def broker(kind: str, where: str, topic: str) -> Broker:
    """The broker of a kind at an address."""
    made: Broker = KINDS[kind](where, topic)
    return made


def address(kind: str, folder: Path) -> str:
    """Where the broker of a kind is; `KeyError` for a service that is not there."""
    return str(folder / "broker.db") if kind == "sqlite" else os.environ[f"RETRYSAFE_TEST_{kind.upper()}"]
