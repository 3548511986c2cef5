"""Benches for consumers on the real brokers."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar
from urllib.parse import urlsplit

from retrysafe.messaging.brokers.base import Consumer
from retrysafe.protocol.messages import Envelope, PublishStatus
from retrysafe.testing.consumers import ConsumerFeatures
from tests.faults.proxies.framing_amqp import AMQPFraming
from tests.faults.proxies.framing_redis import RedisFraming
from tests.faults.proxies.proxy import Proxy

PARTITIONS = 4


class Bench:
    """A topic, spread over partitions; every consumer reaches the broker by a proxy of its own."""

    features = ConsumerFeatures()
    framing: ClassVar[Any]
    publisher: Any

    def __init__(self, url: str, **options: Any) -> None:
        self.url, self.options = url, options
        self.topic = f"suite-{secrets.token_hex(6)}"
        self.proxies: dict[Consumer, Proxy] = {}

    async def consumer(self) -> Consumer:
        parts = urlsplit(self.url)
        proxy = Proxy((parts.hostname or "127.0.0.1", parts.port or self.framing.default_port), self.framing)
        credentials, _, _ = parts.netloc.rpartition("@")
        url = parts._replace(netloc=f"{credentials}{'@' * bool(credentials)}127.0.0.1:{proxy.port}").geturl()
        made = self.make(url)
        self.proxies[made] = proxy
        return made

    def make(self, url: str) -> Consumer:
        raise NotImplementedError

    async def crash(self, consumer: Consumer) -> None:
        """The broker hears nothing more of it."""
        self.proxies[consumer].close()
        await consumer.aclose()
        del self.proxies[consumer]

    async def publish(self, envelopes: Sequence[Envelope]) -> None:
        """One after the other, so that the order is that of the list."""
        for envelope in envelopes:
            (published,) = await self.publisher.publish([envelope])
            assert published.status in (PublishStatus.ACKED, PublishStatus.DUPLICATE), published

    async def clean(self) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        """Consumers are closed by those who opened them."""
        await self.clean()
        await self.publisher.aclose()
        for proxy in self.proxies.values():
            proxy.close()


class RabbitMQBench(Bench):
    framing = AMQPFraming

    async def open(self) -> RabbitMQBench:
        from retrysafe.messaging.brokers.rabbitmq.publisher import RabbitMQPublisher
        from retrysafe.messaging.brokers.rabbitmq.topology import declare

        await declare(self.url, self.topic, partitions=PARTITIONS)
        self.publisher = RabbitMQPublisher(self.url, partitions=PARTITIONS)
        return self

    def make(self, url: str) -> Consumer:
        from retrysafe.messaging.brokers.rabbitmq.consumer import RabbitMQConsumer

        return RabbitMQConsumer(url, self.topic, partitions=PARTITIONS, **self.options)

    async def clean(self) -> None:
        import aio_pika

        async with await aio_pika.connect(self.url) as connection:
            channel = await connection.channel()
            for number in range(PARTITIONS):
                await channel.queue_delete(f"{self.topic}.{number}")


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


class MemoryBench(Bench):
    """In one process: a crash is an end like any other."""

    async def open(self) -> MemoryBench:
        from retrysafe.messaging.brokers.memory.broker import MemoryBroker

        self.broker = MemoryBroker(partitions=PARTITIONS)
        self.publisher = self.broker.apublisher()
        return self

    async def consumer(self) -> Consumer:
        return self.broker.consumer(self.topic)

    async def crash(self, consumer: Consumer) -> None:
        await consumer.aclose()

    async def clean(self) -> None:
        """It goes with this object."""


BENCHES: dict[str, Any] = {"memory": MemoryBench, "rabbitmq": RabbitMQBench, "redis": RedisBench}


@asynccontextmanager
async def bench(name: str, url: str = "", **options: Any) -> AsyncIterator[Any]:
    """A new topic of a broker, by default of the shared one."""
    made = await BENCHES[name](url or os.environ.get(f"RETRYSAFE_TEST_{name.upper()}", ""), **options).open()
    try:
        yield made
    finally:
        await made.close()
