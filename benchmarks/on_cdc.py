"""From the commit to the broker, at 5,000 messages a second from another process: reading the log, beside polling.

What counts is a quantile of a turn: the time from the return of the commit until RabbitMQ has confirmed the message.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import secrets
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial

import aio_pika
import psycopg

from benchmarks import services
from benchmarks.rows import FLOOR, OURS, Row, Side, Turn
from benchmarks.stores import database
from retrysafe.messaging import Message, Outbox, Relay
from retrysafe.messaging.brokers.rabbitmq.publisher import RabbitMQPublisher
from retrysafe.messaging.brokers.rabbitmq.topology import declare
from retrysafe.messaging.cdc import Slot
from retrysafe.protocol.messages import Envelope, PublishResult, PublishStatus

MESSAGES, RATE, TOGETHER = 5_000, 5_000, 25
"""The messages of a turn, those committed in a second, and those in one commit."""


def rows() -> Sequence[Row]:
    """The same twice, for two quantiles."""
    return [
        Row(
            f"change data capture to RabbitMQ{suffix}",
            f"a relay that polls, {words} at 5,000 a second",
            {OURS: partial(_side, True, quantile), FLOOR: partial(_side, False, quantile)},
            needs=("postgresql-18", "rabbitmq"),
            operations=MESSAGES,
        )
        for suffix, words, quantile in (("", "p99", 0.99), (", p50", "p50", 0.5))
    ]


@contextmanager
def _side(reads_log: bool, quantile: float) -> Iterator[Side]:
    context = multiprocessing.get_context("spawn")
    with (
        database(service="postgresql-18") as url,
        ProcessPoolExecutor(1, context) as writer,
        asyncio.Runner() as runner,
    ):
        bench = _Bench(url, services.url("rabbitmq"), reads_log)
        runner.run(bench.open())
        try:
            yield Side(lambda keys: runner.run(bench.turn(writer, keys, quantile)))
        finally:
            runner.run(bench.close())


class _Noting(RabbitMQPublisher):
    """Notes when each message was confirmed."""

    confirmed: dict[str, float]

    async def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
        results = await super().publish(envelopes)
        now = time.perf_counter()
        for envelope, result in zip(envelopes, results, strict=True):
            if result.status is PublishStatus.ACKED:
                self.confirmed.setdefault(envelope.id, now)
        return results


class _Bench:
    def __init__(self, url: str, broker: str, reads_log: bool) -> None:
        self.url, self.broker, self.topic = url, broker, f"bench-{secrets.token_hex(6)}"
        self.slot = Slot(url, name=f"bench_{secrets.token_hex(6)}") if reads_log else None

    async def open(self) -> None:
        await declare(self.broker, [self.topic])
        self.publisher = _Noting(self.broker)
        self.publisher.confirmed = {}
        store = self.url.replace("postgresql:", "postgresql+asyncpg:")
        self.relay = Relay(store, self.publisher, batch=500, observers=(), cdc=self.slot)
        await self.relay.__aenter__()
        while self.slot is not None and not (await asyncio.to_thread(self.slot.status)).active:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)
        self.connection = await aio_pika.connect(self.broker)
        self.channel = await self.connection.channel()

    async def turn(self, writer: ProcessPoolExecutor, keys: Sequence[str], quantile: float) -> Turn:
        await (await self.channel.get_queue(self.topic)).purge()
        confirmed = self.publisher.confirmed
        confirmed.clear()
        writing = asyncio.get_running_loop().run_in_executor(writer, _write, self.url, self.topic, keys)
        committed = await writing
        while committed.keys() - confirmed.keys():  # noqa: ASYNC110 - nor does the relay
            await asyncio.sleep(0.01)
        took = sorted(confirmed[id_] - at for id_, at in committed.items())
        return Turn(took[int(quantile * len(took))], None)

    async def close(self) -> None:
        await self.relay.__aexit__()
        if self.slot is not None:
            await asyncio.to_thread(self.slot.drop)
        await self.publisher.aclose()
        await self.channel.queue_delete(self.topic)
        await self.connection.close()


def _write(url: str, topic: str, keys: Sequence[str]) -> dict[str, float]:
    """Commit messages in a steady stream; when each was committed, by the clock that processes share."""
    outbox, committed, begun = Outbox(url, source="/bench"), dict[str, float](), time.perf_counter()
    with psycopg.connect(url) as connection:
        for start in range(0, len(keys), TOGETHER):
            time.sleep(max(0.0, begun + start / RATE - time.perf_counter()))
            messages = [Message(topic, {"total": 120}, key=key) for key in keys[start : start + TOGETHER]]
            written = outbox.add_many(connection, messages)
            connection.commit()
            committed |= dict.fromkeys((one.id for one in written), time.perf_counter())
    return committed
