"""Redis Streams: how much of a stream is held in memory."""

from __future__ import annotations

from typing import Any

from retrysafe.messaging.brokers.redis_streams.consumer import RedisStreamsConsumer
from retrysafe.protocol.messages import Delivery
from tests.messaging.test_redis_trimming import client
from tests.messaging.test_redis_trimming import topic as topic

SIZE = 1000


async def add(topic: str, count: int) -> None:
    async with client() as connection:
        for number in range(count):
            fields: Any = {"id": str(number), "source": "/s", "type": "t", "data": b"x" * SIZE}
            await connection.xadd(f"{{{topic}}}", fields)


async def take(consumer: RedisStreamsConsumer) -> list[Delivery]:
    """All that it hands out while nothing is settled."""
    taken: list[Delivery] = []
    while found := await consumer.receive(1000, 0):
        taken += found
    return taken


async def test_large_messages_are_read_by_bytes_and_small_ones_by_number(topic: str) -> None:
    """200 messages of a megabyte, of each of many streams, killed the consumer before it had handled one."""
    await add(topic, 60)
    consumer = RedisStreamsConsumer(client(), topic, group="stock", prefetch=50, prefetch_bytes=15 * SIZE)
    taken = await take(consumer)
    assert len(taken) == 20, "fifteen, and the rest of ten"
    await consumer.ack(taken[:3])
    assert await take(consumer) == []
    await consumer.ack(taken[3:6])
    more = await take(consumer)
    assert [one.envelope.id for one in taken + more] == [str(n) for n in range(30)]
    await consumer.aclose()

    after = RedisStreamsConsumer(client(), topic, group="stock", prefetch=50, prefetch_bytes=15 * SIZE)
    left = await take(after)
    assert [one.envelope.id for one in left] == [str(n) for n in range(6, 26)], "what was left is bounded too"
    await after.ack(left)
    assert [one.envelope.id for one in await take(after)] == [str(n) for n in range(26, 50)]
    await after.aclose()

    small = RedisStreamsConsumer(client(), topic, group="mail", prefetch=50)
    assert len(await take(small)) == 50
    await small.aclose()
