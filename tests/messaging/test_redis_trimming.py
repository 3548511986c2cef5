"""Redis Streams: what every group has settled is removed, and nothing else."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis.asyncio

from retrysafe.messaging import QueueMissing
from retrysafe.messaging.brokers.redis_streams.consumer import RedisStreamsConsumer
from retrysafe.protocol.messages import Delivery
from retrysafe.protocol.ordering import partitions_of
from tests.conftest import require
from tests.stores.harnesses.redis import redis_url
from tests.tables import each_row

BLOCK = 100
"""Entries that Redis frees together."""


@pytest.fixture
async def topic() -> AsyncIterator[str]:
    require("redis")
    name = f"trimmed-{secrets.token_hex(6)}"
    yield name
    async with client() as connection:
        await connection.delete(*[key async for key in connection.scan_iter(f"{{{name}*")])


def client() -> Any:
    return redis.asyncio.Redis.from_url(redis_url())


async def add(topic: str, first: int, last: int) -> None:
    """Entries that were published long ago: 1-0, 2-0 and so on."""
    async with client() as connection:
        pipeline = connection.pipeline()
        for number in range(first, last + 1):
            pipeline.xadd(f"{{{topic}}}", {"id": str(number), "source": "/s", "type": "t"}, id=f"{number}-0")
        await pipeline.execute()


async def length(topic: str) -> int:
    async with client() as connection:
        found: int = await connection.xlen(f"{{{topic}}}")
        return found


async def settle(topic: str, group: str, upto: int, **options: Any) -> None:
    """Take part for a moment: settle what is there, up to so many, and trim what may be trimmed when it began."""
    consumer = RedisStreamsConsumer(client(), topic, group=group, **options)
    taken: list[Delivery] = []
    while len(taken) < upto:
        found = await consumer.receive(upto - len(taken), 5)
        await consumer.ack(found)
        taken += found
    await consumer.aclose()


async def look(topic: str, group: str, **options: Any) -> None:
    """Take part, and settle nothing."""
    consumer = RedisStreamsConsumer(client(), topic, group=group, **options)
    await consumer.receive(1, 0)
    await consumer.aclose()


async def test_entries_settled_by_every_group_are_removed_and_others_stay(topic: str) -> None:
    await add(topic, 1, 10 * BLOCK)
    await settle(topic, "stock", 10 * BLOCK)
    await look(topic, "mail")  # the second group: it has received some entries, and settled none
    await look(topic, "stock")
    assert await length(topic) == 10 * BLOCK
    await settle(topic, "mail", 5 * BLOCK)
    await look(topic, "stock")
    left = await length(topic)
    assert 5 * BLOCK <= left <= 6 * BLOCK

    consumer = RedisStreamsConsumer(client(), topic, group="mail")
    rest: list[Delivery] = []
    while len(rest) < 5 * BLOCK:
        found = await consumer.receive(1000, 5)
        await consumer.ack(found)
        rest += found
    await consumer.aclose()
    assert [one.envelope.id for one in rest] == [str(n) for n in range(5 * BLOCK + 1, 10 * BLOCK + 1)]


async def test_young_entries_stay_and_so_do_all_with_keep_none(topic: str) -> None:
    await add(topic, 1, 3 * BLOCK)
    await settle(topic, "stock", 3 * BLOCK, keep=None)
    await look(topic, "stock", keep=None)
    await look(topic, "stock", keep="36500d")
    assert await length(topic) == 3 * BLOCK
    await look(topic, "stock", keep="1d")
    assert await length(topic) <= BLOCK


@each_row(("publishers", "consumers"), [(None, 4), (4, None)])
async def test_streams_of_other_partitions_are_told(publishers: int | None, consumers: int | None, topic: str) -> None:
    name = f"{topic}-{publishers}"
    await add(*partitions_of(name, publishers)[:1], 1, 1)
    consumer = RedisStreamsConsumer(client(), name, group="stock", partitions=consumers)
    with pytest.raises(QueueMissing, match="give partitions="):
        await consumer.receive(1, 0)
    await add(*partitions_of(name, consumers)[:1], 1, 1)
    assert len(await consumer.receive(1, 5)) == 1
    await consumer.aclose()
