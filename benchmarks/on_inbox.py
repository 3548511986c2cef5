"""Consuming from RabbitMQ into PostgreSQL: each message applied once, beside a raw consumer that applies all it gets.

Both sides take the messages of a quorum queue that was filled before, write a row for each, commit, and ack: message by
message, or several in a transaction. The floor has no record of what it has handled. What counts is the time from
connecting to the last message; ours checks payloads against their digests, and counts attempts.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import aio_pika
import asyncpg

from benchmarks import services
from benchmarks.rows import FLOOR, OURS, Row, Side, Stopwatch, Turn
from benchmarks.stores import database
from retrysafe import Boundary
from retrysafe.messaging import Inbox, Subscription
from retrysafe.messaging.brokers.rabbitmq.consumer import RabbitMQConsumer
from retrysafe.messaging.brokers.rabbitmq.publisher import RabbitMQPublisher
from retrysafe.messaging.brokers.rabbitmq.topology import declare
from retrysafe.protocol.messages import Envelope

ONE = "INSERT INTO applied (number) VALUES ($1)"
MANY = "INSERT INTO applied (number) SELECT unnest($1::int[])"


class Way(NamedTuple):
    """The handling of messages: the maker of the handler, how many share a transaction, how many at once, how many."""

    make: str
    portion: int
    workers: int
    messages: int


WAYS = {
    "single": Way("handler", 1, 16, 1000),
    "batched": Way("batch_handler", 100, 2, 2000),
    "set-based": Way("set_handler", 500, 2, 5000),
}


def rows() -> Sequence[Row]:
    """One message consumed."""
    return [
        Row(
            f"inbox asyncpg/rabbitmq, {name}",
            "a raw consumer that writes the same",
            {OURS: partial(_side, way, "ours"), FLOOR: partial(_side, way, "floor")},
            needs=("postgresql", "rabbitmq"),
            operations=way.messages,
        )
        for name, way in WAYS.items()
    ]


@contextmanager
def _side(way: Way, name: str) -> Iterator[Side]:
    with database() as url, asyncio.Runner() as runner:
        bench = _Bench(url, services.url("rabbitmq"), way)
        runner.run(bench.open())
        try:
            yield Side(lambda keys: runner.run(bench.turn(getattr(bench, name), len(keys))))
        finally:
            runner.run(bench.close())


class _Bench:
    def __init__(self, url: str, broker: str, way: Way) -> None:
        self.url, self.broker, self.way, self.messages = url, broker, way, way.messages
        self.topic = f"bench-{secrets.token_hex(6)}"
        self.applied: set[int] = set()
        """The applied messages, once or, after a batch that was rolled back, again."""
        self.done = asyncio.Event()

    async def open(self) -> None:
        await declare(self.broker, self.topic)
        self.connection = await aio_pika.connect(self.broker)
        self.queue = await (await self.connection.channel()).get_queue(self.topic)
        self.publisher = RabbitMQPublisher(self.broker)
        self.pool = await asyncpg.create_pool(self.url, min_size=10, max_size=10)
        await self.pool.execute("CREATE TABLE applied (number int NOT NULL)")
        store = self.url.replace("postgresql:", "postgresql+asyncpg:")
        self.boundary = Boundary("bench", store=store, effects="transactional", observers=())
        self.handler = getattr(Inbox(self.boundary), self.way.make)("bench")(
            self.apply_many if self.way.make == "set_handler" else self.apply
        )

    async def close(self) -> None:
        await self.publisher.aclose()
        await self.pool.close()
        await self.boundary.aclose()
        await self.queue.delete(if_unused=False, if_empty=False)
        await self.connection.close()

    async def turn(self, work: Callable[[], Awaitable[Turn]], messages: int) -> Turn:
        """Fill the queue, then let a side empty it.

        What the turn before had handled and its broker had not noted as acked is none of this one's work.
        """
        await self.queue.purge()
        self.messages = messages
        run = secrets.token_hex(6)
        for start in range(0, messages, 500):
            numbers = range(start, min(start + 500, messages))
            await self.publisher.publish([self.envelope(run, number) for number in numbers])
        self.applied.clear()
        self.done.clear()
        return await work()

    def envelope(self, run: str, number: int) -> Envelope:
        payload = json.dumps({"order": number}).encode()
        return Envelope(
            f"{run}-{number}", self.topic, f"{number}", "placed.v1", "/bench", None, {}, payload, "application/json"
        )

    def count(self, numbers: Sequence[int]) -> None:
        self.applied.update(numbers)
        if len(self.applied) == self.messages:
            self.done.set()

    # ------------------------------------------------------------ ours

    async def ours(self) -> Turn:
        watch = Stopwatch()
        consumer = RabbitMQConsumer(self.broker, self.topic, prefetch=1000)
        async with Subscription(consumer, self.handler, lanes=self.way.workers):
            await self.done.wait()
            return watch.turn(self.messages)

    async def apply(self, message: Any) -> None:
        number = message.data["order"]
        await message.tx.execute(ONE, number)
        self.count([number])

    async def apply_many(self, messages: Any) -> None:
        numbers = [message.data["order"] for message in messages]
        await messages[0].tx.execute(MANY, numbers)
        self.count(numbers)

    # ------------------------------------------------------------ by hand

    async def floor(self) -> Turn:
        watch = Stopwatch()
        arrived: asyncio.Queue[Any] = asyncio.Queue()
        async with await aio_pika.connect(self.broker) as connection:
            channel = await connection.channel()
            await channel.set_qos(1000)
            await (await channel.get_queue(self.topic)).consume(arrived.put)
            workers = [asyncio.create_task(self.work_off(arrived)) for _ in range(self.way.workers)]
            await self.done.wait()
            turn = watch.turn(self.messages)
            await arrived.join()
            for worker in workers:
                worker.cancel()
            return turn

    async def work_off(self, arrived: asyncio.Queue[Any]) -> None:
        while True:
            messages = [await arrived.get()]
            while len(messages) < self.way.portion and not arrived.empty():
                messages.append(arrived.get_nowait())
            numbers = [json.loads(message.body)["order"] for message in messages]
            async with self.pool.acquire() as connection, connection.transaction():
                if self.way.make == "set_handler":
                    await connection.execute(MANY, numbers)
                else:
                    for number in numbers:
                        await connection.execute(ONE, number)
            self.count(numbers)
            for message in messages:
                await message.ack()
                arrived.task_done()
