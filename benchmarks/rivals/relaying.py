"""faststream-outbox relays from its own table on PostgreSQL to RabbitMQ.

It is tuned as its options allow: batches of 500, 16 workers, results written 100 at once.
"""

from __future__ import annotations

import asyncio
import secrets
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from benchmarks import services
from benchmarks.rows import Side, Stopwatch, Turn
from benchmarks.stores import database
from retrysafe.messaging.brokers.rabbitmq.topology import declare


@contextmanager
def faststream_outbox() -> Iterator[Side]:
    """Messages published together, relayed until the last handler is done."""
    with database() as url, asyncio.Runner() as runner:
        rival = _Rival(url, services.url("rabbitmq"))
        runner.run(rival.open())
        try:
            yield Side(lambda keys: runner.run(rival.turn(keys)))
        finally:
            runner.run(rival.close())


class _Rival:
    def __init__(self, url: str, broker: str) -> None:
        self.url, self.broker, self.topic = url, broker, f"bench-{secrets.token_hex(6)}"
        self.expected = self.relayed = 0
        self.done = asyncio.Event()

    async def open(self) -> None:
        from faststream.rabbit import RabbitBroker
        from faststream_outbox import OutboxBroker, make_outbox_table
        from sqlalchemy import MetaData
        from sqlalchemy.ext.asyncio import create_async_engine

        await declare(self.broker, self.topic)
        metadata = MetaData()
        self.engine = create_async_engine(self.url.replace("postgresql:", "postgresql+asyncpg:"), pool_size=20)
        table = make_outbox_table(metadata, table_name="rival_outbox")
        async with self.engine.begin() as connection:
            await connection.run_sync(metadata.create_all)
        self.rabbit = RabbitBroker(self.broker, logger=None)
        await self.rabbit.start()
        self.outbox = OutboxBroker(self.engine, outbox_table=table, logger=None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            publisher = self.rabbit.publisher(self.topic, persist=True)
            subscriber = self.outbox.subscriber(
                "orders",
                max_workers=16,
                fetch_batch_size=500,
                min_fetch_interval=0.01,
                terminal_flush_batch_size=100,
            )
        publisher(subscriber(self.counted))

    async def counted(self, body: dict[str, int]) -> dict[str, int]:
        self.relayed += 1
        if self.relayed == self.expected:
            self.done.set()
        return body

    async def turn(self, keys: Sequence[str]) -> Turn:
        self.relayed, self.expected = 0, len(keys)
        self.done.clear()
        bodies: list[Any] = [{"order": number, "total": 120} for number in range(len(keys))]
        async with self.engine.begin() as connection:
            await self.outbox.publish_batch(*bodies, queue="orders", session=connection)
        watch = Stopwatch()
        await self.outbox.start()
        await self.done.wait()
        turn = watch.turn(len(keys))
        await self.outbox.stop()
        return turn

    async def close(self) -> None:
        import aio_pika

        await self.rabbit.stop()
        await self.engine.dispose()
        async with await aio_pika.connect(self.broker) as connection:
            await (await connection.channel()).queue_delete(self.topic)
