"""RabbitMQ under the suites."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from retrysafe.messaging.brokers.base import Consumer
from retrysafe.protocol.messages import Envelope
from retrysafe.protocol.ordering import partitions_of
from retrysafe.testing.publishers import PublisherFeatures
from tests.faults.proxies.framing_amqp import AMQPFraming
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
            await channel.queue_delete(f"{self.topic}.consumers")


class Rabbit(OnARoad):
    features = PublisherFeatures(reports_missing=True)
    elsewhere = "nowhere"
    look: Callable[[], Any]
    channel: Any

    async def stall(self) -> bool:
        """A queue that is missing takes nothing, and nor does one that is full."""
        await self.channel.queue_delete(self.topic)
        return True

    async def unstall(self) -> None:
        queue = await self.channel.declare_queue(self.topic, durable=True, arguments={"x-queue-type": "quorum"})
        self.look = partial(queue.get, fail=False, no_ack=True)

    async def arrived(self) -> Sequence[Envelope]:
        from retrysafe.messaging.brokers.amqp_binding import envelope_from

        found = []
        while (message := await self.look()) is not None:
            kind = {"datacontenttype": message.content_type}
            found.append(envelope_from(message.headers, kind, message.body, self.topic))
        return found


@asynccontextmanager
async def rabbitmq(url: str = "") -> AsyncIterator[Rabbit]:
    import aio_pika

    from retrysafe.messaging.brokers.rabbitmq.publisher import RabbitMQPublisher

    url = url or os.environ["RETRYSAFE_TEST_RABBITMQ"]
    made = Rabbit()
    made.topic = f"suite-{secrets.token_hex(6)}"
    made.road = road_to(url)
    made.publisher = RabbitMQPublisher(by_road(made.road, url), timeout="10s")
    async with await aio_pika.connect(url) as connection:
        made.channel = await connection.channel()
        made.beside = f"{made.topic}-beside"
        await made.channel.declare_queue(made.beside, durable=True)
        await made.unstall()
        yield made
        await made.publisher.aclose()
    async with await aio_pika.connect(url) as connection:  # the first one may have been cut
        channel = await connection.channel()
        for queue in (made.topic, made.beside):
            await channel.queue_delete(queue)
    await asyncio.to_thread(made.road.close)


def queues(at: Place) -> list[str]:
    """The queues of a group."""
    return [f"{at.name}.{at.group}.{place}" for place in partitions_of(at.topic, at.partitions)]


async def left(at: Place) -> int:
    import aio_pika

    async with await aio_pika.connect(at.url) as connection:
        channel = await connection.channel()
        declared = [await channel.declare_queue(queue, passive=True) for queue in queues(at)]
        return sum(queue.declaration_result.message_count or 0 for queue in declared)


async def remove(at: Place) -> None:
    import aio_pika

    async with await aio_pika.connect(at.url) as connection:
        channel = await connection.channel()
        for queue in queues(at):
            await channel.queue_delete(queue)
        await channel.exchange_delete(at.name)


class RabbitMQServer(OwnBroker):
    """A RabbitMQ. Of a killed node, 3.10 now and then elects no leader for a quorum queue: `stop` it instead.

    See https://github.com/rabbitmq/rabbitmq-server/issues/10070; nobody is handed anything of such a queue.
    """

    service = "rabbitmq"
    beside = 2  # Erlang's port mapper and its distribution

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    def stop(self) -> None:
        """Let it end in order."""
        self._services("stop")


class RabbitMQ4Server(RabbitMQServer):
    """A RabbitMQ 4, which may be killed."""

    service = "rabbitmq-4"


async def without_queues(url: str) -> None:
    """The queues of the pages are not there."""
    import aio_pika

    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        groups = ("stock.docs-placed", "mail.docs-placed")
        for queue in ("docs-mail", *groups, *(f"docs-orders.{number}" for number in range(4))):
            await channel.queue_delete(queue)


HARNESS = Harness(
    "rabbitmq",
    service="rabbitmq",
    bench=RabbitMQBench,
    publishings={"rabbitmq": lambda folder: rabbitmq()},
    on_other_versions=("rabbitmq",),
    library="aio_pika",
    group=("--topic", "{topic}", "--partitions", "2", "--group", "{name}.{group}"),
    killed={"rabbitmq": Killed("rabbitmq", "rabbitmq-4", RabbitMQ4Server)},
    page=Page("RABBITMQ_URL", without_queues),
    left=left,
    remove=remove,
)
