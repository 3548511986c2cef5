"""Consumers: messages received and acknowledged, without an inbox, beside the raw client that does the same.

A turn is counted from the first message of a new connection, since joining a group takes as long as the broker is set
to, until the last one is acknowledged. Ours makes an envelope of each, notes its lane, and keeps what it holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from typing import NamedTuple

from benchmarks.brokers.base import AT_ONCE, Broker, entered
from benchmarks.rows import FLOOR, OURS, Row, Side, Stopwatch, Turn
from retrysafe.protocol.messages import Envelope, PublishStatus

_TAKEN = (PublishStatus.ACKED, PublishStatus.DUPLICATE)


class Consumed(NamedTuple):
    """A broker that is consumed from: the raw client, the messages of a turn, and its module if named otherwise."""

    beside: str
    messages: int
    module: str = ""


BROKERS = {
    "rabbitmq": Consumed("aio-pika, 200 received ahead, each acknowledged", 5_000),
    "redis": Consumed("redis-py, XREADGROUP and XACK of 500 at most", 5_000, "redis_streams"),
    "kafka": Consumed("confluent-kafka, a commit for 500 at most", 10_000),
    "nats": Consumed("nats-py pulling 200 at a time, the last acknowledgement confirmed", 5_000),
    "mqtt": Consumed("paho-mqtt at QoS 1", 3_000),
    "pubsub": Consumed("Google's client, 500 a pull at most", 2_000),
    "sqs": Consumed("aiobotocore, ten a request", 500),
}


def rows() -> Sequence[Row]:
    """One message received and acknowledged."""
    return [
        Row(
            f"consumer {name}",
            consumed.beside,
            {side: partial(_side, consumed.module or name, side == OURS) for side in (OURS, FLOOR)},
            needs=(name,),
            operations=consumed.messages,
        )
        for name, consumed in BROKERS.items()
    ]


@contextmanager
def _side(module: str, ours: bool) -> Iterator[Side]:
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        broker = runner.run(entered(stack, module))
        try:
            yield Side(lambda keys: runner.run(_turn(broker, keys, ours)))
        finally:
            runner.run(stack.aclose())


async def _turn(broker: Broker, keys: Sequence[str], ours: bool) -> Turn:
    await broker.clear()
    await _fill(broker, keys)
    receiving = broker.receiving if ours else broker.raw_receiving
    assert receiving is not None
    async with receiving() as receive:
        first = 0
        while not first:
            first = await receive()
        watch, found = Stopwatch(), 0
        while first + found < len(keys):
            found += await receive()
        return watch.turn(found or len(keys))


async def _fill(broker: Broker, keys: Sequence[str]) -> None:
    payload = b'{"order": 1, "total": 120}'
    envelopes = [
        Envelope(key, broker.topic, key, "placed.v1", "/bench", None, {}, payload, "application/json") for key in keys
    ]
    for start in range(0, len(envelopes), AT_ONCE):
        for result in await broker.publisher.publish(envelopes[start : start + AT_ONCE]):
            assert result.status in _TAKEN, result
