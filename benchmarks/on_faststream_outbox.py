"""Relaying from PostgreSQL to RabbitMQ, beside faststream-outbox doing the same: each with its own table and queue.

faststream-outbox is tuned as its options allow: batches of 500, 16 workers, results written 100 at once. Its time ends
with its last handler, ours when everything is confirmed and removed. It keeps no order within a key; ours does.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import secrets
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import psycopg

from benchmarks.on_relay import Meter
from benchmarks.postgresql import database
from benchmarks.rows import Row, Sides, Unit
from retrysafe.messaging import Message, Outbox, Relay
from retrysafe.messaging.brokers.rabbitmq.publisher import RabbitMQPublisher
from retrysafe.messaging.brokers.rabbitmq.topology import declare

BACKLOG = 2000


def rows() -> Sequence[Row]:
    """One message relayed."""
    if importlib.util.find_spec("faststream_outbox") is None:
        print("skipped: faststream-outbox is not installed (the extra rivals)")
        return []
    meter = Meter()
    unit = Unit("× faststream-outbox", meter, lambda ours, theirs: theirs / ours, more_is_better=True)
    return [Row("relay asyncpg/rabbitmq, beside a rival", partial(_sides, meter), unit)]


@contextmanager
def _sides(meter: Meter) -> Iterator[Sides]:
    with database() as url, asyncio.Runner() as runner:
        bench = _Bench(url, os.environ["RETRYSAFE_TEST_RABBITMQ"])
        runner.run(bench.open())

        def side(work: Any) -> Any:
            def turn(keys: Sequence[str]) -> None:
                meter.total += runner.run(work()) / BACKLOG * len(keys)

            return turn

        try:
            yield Sides(side(bench.ours), side(bench.theirs))
        finally:
            runner.run(bench.close())


class _Bench:
    def __init__(self, url: str, broker: str) -> None:
        self.url, self.broker = url, broker
        self.topic, self.their_topic = (f"bench-{secrets.token_hex(6)}" for _ in range(2))
        self.relayed = 0
        self.done = asyncio.Event()

    async def open(self) -> None:
        from faststream.rabbit import RabbitBroker
        from faststream_outbox import OutboxBroker, make_outbox_table
        from sqlalchemy import MetaData
        from sqlalchemy.ext.asyncio import create_async_engine

        await declare(self.broker, [self.topic, self.their_topic])
        self.outbox = Outbox(self.url, source="/bench")
        self.publisher = RabbitMQPublisher(self.broker)
        store = self.url.replace("postgresql:", "postgresql+asyncpg:")
        self.relay = Relay(store, self.publisher, batch=500, observers=())
        metadata = MetaData()
        self.engine = create_async_engine(store, pool_size=20)
        table = make_outbox_table(metadata, table_name="rival_outbox")
        async with self.engine.begin() as connection:
            await connection.run_sync(metadata.create_all)
        self.rabbit = RabbitBroker(self.broker, logger=None)
        await self.rabbit.start()
        self.rival = OutboxBroker(self.engine, outbox_table=table, logger=None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            publisher = self.rabbit.publisher(self.their_topic, persist=True)
            subscriber = self.rival.subscriber(
                "orders",
                max_workers=16,
                fetch_batch_size=500,
                min_fetch_interval=0.01,
                terminal_flush_batch_size=100,
            )
        publisher(subscriber(self.counted))

    async def counted(self, body: dict[str, int]) -> dict[str, int]:
        self.relayed += 1
        if self.relayed == BACKLOG:
            self.done.set()
        return body

    async def ours(self) -> float:
        messages = [Message(self.topic, {"order": n, "total": 120}, key=f"order-{n}") for n in range(BACKLOG)]
        with psycopg.connect(self.url) as connection:
            self.outbox.add_many(connection, messages)
        began = time.perf_counter()
        assert (await self.relay.arun_once()).published == BACKLOG
        return time.perf_counter() - began

    async def theirs(self) -> float:
        self.relayed = 0
        self.done.clear()
        async with self.engine.begin() as connection:
            bodies = [{"order": n, "total": 120} for n in range(BACKLOG)]
            await self.rival.publish_batch(*bodies, queue="orders", session=connection)
        began = time.perf_counter()
        await self.rival.start()
        await self.done.wait()
        seconds = time.perf_counter() - began
        await self.rival.stop()
        return seconds

    async def close(self) -> None:
        import aio_pika

        await self.publisher.aclose()
        await self.rabbit.stop()
        await self.engine.dispose()
        async with await aio_pika.connect(self.broker) as connection:
            channel = await connection.channel()
            for topic in (self.topic, self.their_topic):
                await channel.queue_delete(topic)
