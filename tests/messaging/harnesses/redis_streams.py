"""Redis Streams under the suites."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from retrysafe.messaging.brokers.base import Consumer
from retrysafe.messaging.cloudevents import envelope_of
from retrysafe.protocol.messages import Envelope
from retrysafe.protocol.ordering import partitions_of
from retrysafe.testing.publishers import PublisherFeatures
from tests.faults.proxies.framing_redis import RedisFraming
from tests.messaging.harnesses.base import (
    PARTITIONS,
    Bench,
    Harness,
    Killed,
    OnARoad,
    Page,
    Place,
    by_road,
    road_to,
)
from tests.messaging.own_brokers import OwnBroker


class RedisBench(Bench):
    framing = RedisFraming

    def client(self) -> Any:
        import redis.asyncio

        return redis.asyncio.Redis.from_url(self.url)

    async def open(self) -> RedisBench:
        from retrysafe.messaging.brokers.redis_streams.publisher import AsyncRedisStreamsPublisher

        self.publisher = AsyncRedisStreamsPublisher(
            self.client(), prefix="tests:", partitions=PARTITIONS, remember="1ms"
        )
        return self

    def make(self, url: str) -> Consumer:
        import redis.asyncio

        from retrysafe.messaging.brokers.redis_streams.consumer import RedisStreamsConsumer

        options = {"group": "inventory", "lease": "1s", **self.options}
        client = redis.asyncio.Redis.from_url(url)
        return RedisStreamsConsumer(client, self.topic, prefix="tests:", partitions=PARTITIONS, **options)

    async def clean(self) -> None:
        async with self.client() as client:
            names = [name async for name in client.scan_iter(f"tests:{{{self.topic}*")]
            if names:
                await client.delete(*names)


class Streams(OnARoad):
    features = PublisherFeatures(duplicates=True)
    url: str

    async def stall(self) -> bool:
        """Something else has the name of its stream."""
        import redis.asyncio

        async with redis.asyncio.Redis.from_url(self.url) as client:
            with suppress(redis.ResponseError):  # there is none yet
                await client.rename(f"tests:{{{self.topic}}}", f"tests:{{{self.topic}}}:kept")
            await client.set(f"tests:{{{self.topic}}}", "in the way")
        return True

    async def unstall(self) -> None:
        import redis.asyncio

        async with redis.asyncio.Redis.from_url(self.url) as client:
            await client.delete(f"tests:{{{self.topic}}}")
            with suppress(redis.ResponseError):
                await client.rename(f"tests:{{{self.topic}}}:kept", f"tests:{{{self.topic}}}")

    async def arrived(self) -> Sequence[Envelope]:
        import redis.asyncio

        async with redis.asyncio.Redis.from_url(self.url) as client:
            found = []
            for _, fields in await client.xrange(f"tests:{{{self.topic}}}"):
                payload = fields.pop(b"data")
                found.append(envelope_of({name.decode(): value.decode() for name, value in fields.items()}, payload))
            return found


@asynccontextmanager
async def redis_streams(url: str = "", *, sync: bool) -> AsyncIterator[Streams]:
    import redis
    import redis.asyncio

    from retrysafe.messaging.brokers.redis_streams.publisher import AsyncRedisStreamsPublisher, RedisStreamsPublisher

    url = url or os.environ["RETRYSAFE_TEST_REDIS"]
    made = Streams()
    made.url = url
    made.topic = f"suite-{secrets.token_hex(6)}"
    made.beside = f"{made.topic}-beside"
    made.road = road_to(url)
    by = by_road(made.road, url)
    if sync:
        made.publisher = RedisStreamsPublisher(redis.Redis.from_url(by, socket_timeout=10), prefix="tests:")
    else:
        client = redis.asyncio.Redis.from_url(by, socket_timeout=10)
        made.publisher = AsyncRedisStreamsPublisher(client, prefix="tests:")
    yield made
    closed = made.publisher.close() if sync else made.publisher.aclose()
    if closed is not None:
        await closed
    await asyncio.to_thread(made.road.close)
    with redis.Redis.from_url(url) as client:
        client.delete(*client.keys(f"tests:{{{made.topic}*"), "nothing")


async def left(at: Place) -> int:
    import redis.asyncio

    from retrysafe.messaging.brokers.redis_streams.publisher import stream_of

    found = 0
    async with redis.asyncio.Redis.from_url(at.url) as client:
        for place in partitions_of(at.topic, at.partitions):
            for group in await client.xinfo_groups(stream_of(f"{at.name}:", place)):
                found += group["pending"] + group["lag"]
    return found


async def remove(at: Place) -> None:
    import redis.asyncio

    async with redis.asyncio.Redis.from_url(at.url) as client:
        async for key in client.scan_iter(match=f"{at.name}:*", count=1000):
            await client.delete(key)


class RedisServer(OwnBroker):
    """A Redis."""

    service = "redis"

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"


HARNESS = Harness(
    "redis",
    service="redis",
    bench=RedisBench,
    publishings={
        "redis": lambda folder: redis_streams(sync=True),
        "redis-async": lambda folder: redis_streams(sync=False),
    },
    on_other_versions=("redis-async",),
    library="redis.asyncio",
    group=("--topic", "{topic}", "--prefix", "{name}:", "--partitions", "2", "--group", "{group}"),
    killed={"redis": Killed("redis", "redis", RedisServer)},
    page=Page("REDIS_URL", lambda url: remove(Place(url, "docs", "", "", 1))),
    left=left,
    remove=remove,
)
