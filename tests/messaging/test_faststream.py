"""FastStream on its real brokers: applied once, acked after the commit, and refused where messages could be lost."""

from __future__ import annotations

import asyncio
import os
import secrets
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from faststream import AckPolicy
from faststream.rabbit import RabbitBroker, RabbitQueue
from faststream.redis import RedisBroker, StreamSub

from retrysafe import Boundary, ConfigurationError, current
from retrysafe.messaging import Envelope, Inbox
from retrysafe.messaging.brokers.faststream import InboxMiddleware
from tests.conftest import require
from tests.faults.helpers import DEADLINE
from tests.messaging.harnesses import bench
from tests.tables import each_row

QUORUM = {"x-queue-type": "quorum", "x-delivery-limit": 2_000_000_000}


class Service:
    """A service with a stock, on a queue or stream of its own."""

    def __init__(self, kind: str, path: Path) -> None:
        self.kind, self.path = kind, path
        self.topic = f"fast-{secrets.token_hex(6)}"
        self.failures = 0
        self.idle = 300
        self.begun = asyncio.Event()
        with closing(sqlite3.connect(path)) as made:
            made.execute("CREATE TABLE IF NOT EXISTS stock (number INTEGER)")

    def broker(self, policy: Any = AckPolicy.MANUAL, *, hold: asyncio.Event | None = None) -> Any:
        boundary = Boundary(
            "stock", store=f"sqlite:///{self.path}", effects="transactional", window="24h", observers=()
        )
        inbox = InboxMiddleware(Inbox(boundary), "inventory", max_attempts=3, backoff_base="10ms", backoff_max="20ms")
        made: Any = self.made()

        async def reserve(data: Any) -> None:
            self.begun.set()
            current().tx.execute("INSERT INTO stock VALUES (?)", (data["number"],))
            if hold is not None:
                await hold.wait()
            if self.failures:
                self.failures -= 1
                raise ValueError("not now")

        for source in self.sources():
            reserve = made.subscriber(**source, ack_policy=policy)(reserve)
        inbox.install(made)
        return made

    def made(self) -> Any:
        if self.kind == "rabbitmq":
            return RabbitBroker(os.environ["RETRYSAFE_TEST_RABBITMQ"], graceful_timeout=0.1)
        return RedisBroker(os.environ["RETRYSAFE_TEST_REDIS"], graceful_timeout=0.1)

    def sources(self) -> list[dict[str, Any]]:
        if self.kind == "rabbitmq":
            return [{"queue": RabbitQueue(self.topic, durable=True, arguments=QUORUM)}]
        options = {"stream": f"{{{self.topic}}}", "group": "inventory", "consumer": "one", "polling_interval": 20}
        return [{"stream": StreamSub(**options)}, {"stream": StreamSub(**options, min_idle_time=self.idle)}]

    def envelope(self, number: int) -> Envelope:
        payload = b'{"number": %d}' % number
        return Envelope(f"{number}", self.topic, "A", "placed.v1", "/shop", None, {}, payload, "application/json")

    def stock(self) -> list[int]:
        with closing(sqlite3.connect(self.path)) as looking:
            return [number for (number,) in looking.execute("SELECT number FROM stock ORDER BY 1")]

    def dead(self) -> int:
        with closing(sqlite3.connect(self.path)) as looking:
            (count,) = looking.execute("SELECT count(*) FROM retrysafe_inbox_dead").fetchone()
        return int(count)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE):
            while not await asyncio.to_thread(condition):  # noqa: ASYNC110 - the condition is in files and brokers
                await asyncio.sleep(0.02)


@pytest.fixture(params=["rabbitmq", "redis"])
async def service(request: pytest.FixtureRequest, tmp_path: Path) -> Service:
    require(request.param)
    return Service(request.param, tmp_path / "stock.db")


async def publish(service: Service, *numbers: int, broker: Any) -> None:
    """As our publishers do, to a queue or stream that FastStream has declared."""
    if service.kind == "rabbitmq":
        from retrysafe.messaging.brokers.rabbitmq.publisher import RabbitMQPublisher

        publisher: Any = RabbitMQPublisher(os.environ["RETRYSAFE_TEST_RABBITMQ"])
    else:
        import redis.asyncio

        from retrysafe.messaging.brokers.redis_streams.publisher import AsyncRedisStreamsPublisher

        client = redis.asyncio.Redis.from_url(os.environ["RETRYSAFE_TEST_REDIS"])
        publisher = AsyncRedisStreamsPublisher(client, remember="1ms")
    for number in numbers:
        await publisher.publish([service.envelope(number)])
    await publisher.aclose()


async def remove(service: Service) -> None:
    async with bench(service.kind) as made:
        if service.kind == "rabbitmq":
            import aio_pika

            async with await aio_pika.connect(made.url) as connection:
                channel = await connection.channel()
                await channel.queue_delete(service.topic)
        else:
            async with made.client() as client:
                await client.delete(f"{{{service.topic}}}")


@pytest.mark.fault(50)
@pytest.mark.parametrize("policy", [AckPolicy.MANUAL, AckPolicy.NACK_ON_ERROR])
async def test_duplicates_are_applied_once_and_settled(service: Service, policy: Any) -> None:
    broker = service.broker(policy)
    await broker.start()
    await publish(service, 1, 2, 1, 3, 2, 1, broker=broker)
    await service.until(lambda: service.stock() == [1, 2, 3])
    await publish(service, 4, broker=broker)
    await service.until(lambda: service.stock() == [1, 2, 3, 4])
    await broker.stop()
    await remove(service)


@pytest.mark.fault(53)
async def test_a_failure_is_tried_again_and_what_fails_for_good_is_in_the_dead_letters(service: Service) -> None:
    service.idle = 60_000  # a message is tried again in its place, however long that takes
    broker = service.broker()
    await broker.start()
    service.failures = 2
    await publish(service, 1, broker=broker)
    await service.until(lambda: service.stock() == [1])
    service.failures = 3
    await publish(service, 2, broker=broker)
    await service.until(lambda: service.dead() == 1)
    await publish(service, 3, broker=broker)
    await service.until(lambda: service.stock() == [1, 3])
    await broker.stop()
    await remove(service)


@pytest.mark.slow
@pytest.mark.fault(50)
async def test_uncommitted_messages_are_not_acked(service: Service) -> None:
    hold = asyncio.Event()
    broker = service.broker(hold=hold)
    await broker.start()
    await publish(service, 1, broker=broker)
    await service.begun.wait()
    assert service.stock() == []
    service.failures = 1
    await broker.stop()
    hold.set()
    assert service.stock() == []
    later = service.broker()
    await later.start()
    try:
        await service.until(lambda: service.stock() == [1])
    finally:
        await later.stop()
    await remove(service)


# ---------------------------------------------------------------- refusals


def installed(broker: Any, tmp_path: Path) -> Any:
    boundary = Boundary("stock", store=f"sqlite:///{tmp_path}/stock.db", effects="transactional", observers=())
    InboxMiddleware(Inbox(boundary), "inventory").install(broker)
    return broker


async def handle(data: Any) -> None:
    """A subscriber."""


@each_row("policy", [AckPolicy.ACK_FIRST, AckPolicy.ACK, AckPolicy.REJECT_ON_ERROR, None])
async def test_a_broker_does_not_start_with_an_ack_policy_that_loses_messages(policy: Any, tmp_path: Path) -> None:
    broker = installed(RabbitBroker("amqp://127.0.0.1:1/"), tmp_path)
    broker.subscriber("orders", **({} if policy is None else {"ack_policy": policy}))(handle)
    with pytest.raises(ConfigurationError, match=r"handle.*has ack_policy="):
        await broker.start()


@each_row(
    ("source", "said"),
    [
        ({"channel": "orders"}, "keeps nothing"),
        ({"list": "orders"}, "keeps nothing"),
        ({"stream": StreamSub("orders")}, "without settling"),
        ({"stream": StreamSub("orders", group="g", consumer="c", no_ack=True)}, "without settling"),
        ({"stream": StreamSub("orders", group="g", consumer="c", batch=True)}, "takes batches"),
        ({"stream": StreamSub("orders", group="g", consumer="c")}, "nobody reads again"),
    ],
)
async def test_a_broker_does_not_start_with_a_source_that_loses_messages(
    source: dict[str, Any], said: str, tmp_path: Path
) -> None:
    broker = installed(RedisBroker("redis://127.0.0.1:1/"), tmp_path)
    options = {"ack_policy": AckPolicy.MANUAL} if "stream" in source and source["stream"].group else {}
    broker.subscriber(**source, **options)(handle)
    with pytest.raises(ConfigurationError, match=said):
        await broker.start()


async def test_publishing_after_the_commit_is_refused(tmp_path: Path) -> None:
    broker = installed(RabbitBroker("amqp://127.0.0.1:1/"), tmp_path)
    broker.publisher("placed")(broker.subscriber("orders", ack_policy=AckPolicy.MANUAL)(handle))
    with pytest.raises(ConfigurationError, match="Outbox"):
        await broker.start()
