"""Relaying: messages from an outbox on PostgreSQL to a broker, beside the raw client that publishes the same bytes.

Every turn writes its messages first, which does not count. Keys are all different, as orders' are; retries, order and
dead letters are on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from typing import NamedTuple

import psycopg

from benchmarks.brokers.base import entered
from benchmarks.rivals.relaying import faststream_outbox
from benchmarks.rows import FLOOR, OURS, Opener, Row, Side, Stopwatch, Turn
from benchmarks.stores import database
from retrysafe.messaging import Message, Outbox, Relay
from retrysafe.protocol.messages import Envelope


class Relayed(NamedTuple):
    """A broker: its module of `benchmarks.brokers`, the raw client in words, and how many messages a turn has."""

    module: str
    beside: str
    messages: int


BROKERS = {
    "rabbitmq": Relayed("rabbitmq", "aio-pika, 200 confirms under way, without a database", 5_000),
    "redis": Relayed("redis_streams", "pipelines of 200 XADD, without a database", 5_000),
    "kafka": Relayed("kafka", "confluent-kafka, acks=all and idempotent, without a database", 5_000),
    "nats": Relayed("nats", "nats-py, 200 confirms under way, without a database", 5_000),
    "mqtt": Relayed("mqtt", "paho-mqtt at QoS 1, 200 under way, without a database", 3_000),
    "pubsub": Relayed("pubsub", "Google's client, 200 requests under way, without a database", 2_000),
    "sqs": Relayed("sqs", "aiobotocore, ten a request, without a database", 500),
}


def rows() -> Sequence[Row]:
    """One message relayed."""
    return [_row(name, relayed) for name, relayed in BROKERS.items()]


def _row(name: str, relayed: Relayed) -> Row:
    sides: dict[str, Opener] = {side: partial(_side, relayed.module, side == OURS) for side in (OURS, FLOOR)}
    if name == "rabbitmq":
        sides["faststream-outbox"] = faststream_outbox
    needs = ("postgresql", name)
    return Row(f"relay asyncpg/{name}", relayed.beside, sides, needs=needs, operations=relayed.messages)


@contextmanager
def _side(module: str, relaying: bool) -> Iterator[Side]:
    with database() as url, asyncio.Runner() as runner:
        stack = AsyncExitStack()
        broker = runner.run(entered(stack, module))
        outbox = Outbox(url, source="/bench")
        relay = Relay(url.replace("postgresql:", "postgresql+asyncpg:"), broker.publisher, batch=500, observers=())

        async def work(written: Sequence[Envelope]) -> Turn:
            await broker.clear()
            watch = Stopwatch()
            if relaying:
                assert (await relay.arun_once()).published == len(written)
            else:
                await broker.raw(written)
            return watch.turn(len(written))

        def turn(keys: Sequence[str]) -> Turn:
            messages = [Message(broker.topic, {"order": n, "total": 120}, key=key) for n, key in enumerate(keys)]
            with psycopg.connect(url) as connection:
                written = outbox.add_many(connection, messages)
                if not relaying:
                    connection.rollback()
            return runner.run(work(written))

        try:
            yield Side(turn)
        finally:
            runner.run(stack.aclose())
