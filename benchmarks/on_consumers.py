"""From the insert to the consumer: how much later than a direct publish a message arrives, on RabbitMQ.

What counts is the median of a turn: the time from the commit, or the publish, until the message is received.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Any

import aio_pika
import psycopg

from benchmarks import services
from benchmarks.rows import FLOOR, OURS, Row, Side, Turn
from benchmarks.stores import database
from retrysafe.messaging import Outbox, Relay
from retrysafe.messaging.brokers.rabbitmq.consumer import RabbitMQConsumer
from retrysafe.messaging.brokers.rabbitmq.publisher import RabbitMQPublisher
from retrysafe.messaging.brokers.rabbitmq.topology import declare

MESSAGES = 100


def rows() -> Sequence[Row]:
    """One row: in process, with the relay woken by the writer."""
    sides = {OURS: partial(_side, "ours"), FLOOR: partial(_side, "floor")}
    name = "insert → consumer on RabbitMQ"
    return [Row(name, "a direct publish, p50", sides, needs=("postgresql", "rabbitmq"), operations=MESSAGES)]


@contextmanager
def _side(name: str) -> Iterator[Side]:
    with database() as url, asyncio.Runner() as runner:
        bench = _Bench(url, services.url("rabbitmq"))
        runner.run(bench.open())
        try:
            yield Side(lambda keys: runner.run(getattr(bench, name)(keys)))
        finally:
            runner.run(bench.close())


class _Bench:
    def __init__(self, url: str, broker: str) -> None:
        self.url, self.broker = url, broker
        self.ours_topic, self.floor_topic = (f"bench-{secrets.token_hex(6)}" for _ in range(2))

    async def open(self) -> None:
        await declare(self.broker, [self.ours_topic, self.floor_topic])
        self.outbox = Outbox(self.url, source="/bench")
        self.writer = await psycopg.AsyncConnection.connect(self.url, autocommit=True)
        self.consumer = RabbitMQConsumer(self.broker, self.ours_topic)
        self.publisher = RabbitMQPublisher(self.broker)
        self.relay = Relay(self.url, self.publisher, observers=())
        await self.relay.__aenter__()
        self.connection = await aio_pika.connect(self.broker)
        channel = await self.connection.channel()
        self.exchange = channel.default_exchange
        self.arrived: asyncio.Queue[Any] = asyncio.Queue()
        queue = await channel.get_queue(self.floor_topic)
        await queue.consume(self.arrived.put)

    async def ours(self, keys: Sequence[str]) -> Turn:
        times = []
        for key in keys:
            async with self.writer.transaction():
                await self.outbox.aadd(self.writer, self.ours_topic, {"order": key}, key=key)
            begun = time.perf_counter()
            self.outbox.wake()
            found = await self.consumer.receive(1, 30.0)
            times.append(time.perf_counter() - begun)
            await self.consumer.ack(found)
        return Turn(median(times), None)

    async def floor(self, keys: Sequence[str]) -> Turn:
        times = []
        for key in keys:
            begun = time.perf_counter()
            message = aio_pika.Message(b'{"order": "%s"}' % key.encode(), delivery_mode=2)
            publishing = asyncio.ensure_future(self.exchange.publish(message, self.floor_topic, mandatory=True))
            found = await self.arrived.get()
            times.append(time.perf_counter() - begun)
            await found.ack()
            await publishing
        return Turn(median(times), None)

    async def close(self) -> None:
        await self.relay.__aexit__()
        await self.publisher.aclose()
        await self.consumer.aclose()
        await self.writer.close()
        channel = await self.connection.channel()
        for topic in (self.ours_topic, self.floor_topic):
            await channel.queue_delete(topic)
        await self.connection.close()
