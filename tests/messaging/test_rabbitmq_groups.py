"""RabbitMQ: exchanges, and the groups whose queues are bound to them."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections import Counter, defaultdict
from itertools import chain
from pathlib import Path
from string import ascii_letters
from typing import Any
from urllib.parse import urlsplit

import aio_pika
import pytest

from retrysafe import Boundary
from retrysafe.errors import ConfigurationError
from retrysafe.messaging import Envelope, Inbox, InboxMessage, QueueMissing, Subscription
from retrysafe.messaging.brokers.rabbitmq.connecting import LoginRefused
from retrysafe.messaging.brokers.rabbitmq.consumer import RabbitMQConsumer
from retrysafe.messaging.brokers.rabbitmq.publisher import RabbitMQPublisher
from retrysafe.messaging.brokers.rabbitmq.topology import declare
from retrysafe.protocol.messages import Delivery, PublishStatus
from retrysafe.testing.consumers import Trial
from tests.conftest import require
from tests.messaging.harnesses import bench
from tests.tables import each_row


async def test_every_group_of_an_exchange_gets_every_message() -> None:
    require("rabbitmq")
    url, name = os.environ["RETRYSAFE_TEST_RABBITMQ"], secrets.token_hex(6)
    topic, shop = f"placed-{name}", f"shop-{name}"
    for group in ("stock", "mail"):
        await declare(url, topic, exchange=shop, group=group, partitions=2)
    publisher = RabbitMQPublisher(url, exchange=shop, partitions=2)
    sent = [
        Envelope(str(number), topic, f"k{number}", "t", "/s", None, {}, b"{}", "application/json")
        for number in range(10)
    ]
    assert {one.status for one in await publisher.publish(sent)} == {PublishStatus.ACKED}
    await publisher.aclose()
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        for group in ("stock", "mail"):
            consumer = RabbitMQConsumer(url, topic, group=group, partitions=2)
            arrived: list[Delivery] = []
            while len(arrived) < len(sent):
                arrived += await consumer.receive(100, 5)
            await consumer.ack(arrived)
            await consumer.aclose()
            assert sorted((one.envelope for one in arrived), key=lambda one: one.id) == sent
            for number in range(2):
                await channel.queue_delete(f"{group}.{topic}.{number}")
            await channel.queue_delete(f"{group}.{topic}.consumers")
        await channel.exchange_delete(shop)


async def test_a_group_without_an_exchange_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="needs exchange="):
        await declare("amqp://127.0.0.1:1/", "placed", group="mail")


@pytest.mark.slow
async def test_a_queue_that_is_missing_is_told_at_once_and_found_when_it_is_declared(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    require("rabbitmq")
    url, topic = os.environ["RETRYSAFE_TEST_RABBITMQ"], f"placed-{secrets.token_hex(6)}"
    handled = asyncio.Event()
    boundary = Boundary("stock", store=f"sqlite:///{tmp_path / 'store.db'}", effects="keyed", window="7d")

    @Inbox(boundary).handler("stock")
    async def handle(message: InboxMessage[Any]) -> None:
        handled.set()

    async def told() -> logging.LogRecord:
        while True:
            for record in caplog.records:
                if record.getMessage().startswith("queue_missing"):
                    return record
            await asyncio.sleep(0.01)

    subscription = Subscription(RabbitMQConsumer(url, topic, redelivery_window="1d"), handle)
    async with subscription:
        record = await asyncio.wait_for(told(), 10)
        assert record.levelno == logging.ERROR
        assert f"RabbitMQ has no queue '{topic}'" in record.getMessage()
        assert "retrysafe topics declare --broker URL --topic TOPIC" in record.getMessage()
        await declare(url, topic)
        publisher = RabbitMQPublisher(url)
        sent = Envelope("1", topic, None, "t", "/s", None, {}, b"{}", "application/json")
        assert [one.status for one in await publisher.publish([sent])] == [PublishStatus.ACKED]
        await publisher.aclose()
        await asyncio.wait_for(handled.wait(), 30)
    await boundary.aclose()
    async with await aio_pika.connect(url) as connection:
        await (await connection.channel()).queue_delete(topic)


async def test_without_a_subscription_a_missing_queue_is_an_error_of_its_own() -> None:
    require("rabbitmq")
    url, topic = os.environ["RETRYSAFE_TEST_RABBITMQ"], f"placed-{secrets.token_hex(6)}"
    for group in (None, "mail"):
        consumer = RabbitMQConsumer(url, topic, group=group)
        with pytest.raises(QueueMissing, match=f"no queue '{'' if group is None else 'mail.'}{topic}'"):
            await consumer.receive(1, 5)
        await consumer.aclose()


@each_row("login", ["guest:not-its-password@{}/", "guest:guest@{}/nowhere"])
async def test_a_login_that_is_refused_says_what_to_correct(login: str) -> None:
    require("rabbitmq")
    address = urlsplit(os.environ["RETRYSAFE_TEST_RABBITMQ"])
    url = "amqp://" + login.format(f"{address.hostname}:{address.port}")
    publisher, consumer = RabbitMQPublisher(url), RabbitMQConsumer(url, ["orders"])
    placed = Envelope("1", "orders", "k", "t", "/s", None, {}, b"{}", "application/json")
    [result] = await publisher.publish([placed])
    await publisher.aclose()
    assert result.status is PublishStatus.UNAVAILABLE
    with pytest.raises(LoginRefused) as raised:
        await consumer.receive(1, 0.1)
    await consumer.aclose()
    assert result.error == str(raised.value)
    assert result.error.startswith("the broker refused the login: correct user, password and virtual host in its URL (")
    assert not any(part in result.error for part in ("not-its-password", "object at"))


@pytest.mark.slow
async def test_a_consumer_that_joins_gets_its_share_of_a_held_backlog_in_order() -> None:
    require("rabbitmq")
    async with bench("rabbitmq") as broker:
        trial = Trial(broker)
        await trial.publish(*ascii_letters * 10)
        seen: dict[str, list[int]] = defaultdict(list)
        handled: Counter[str] = Counter()
        shared, done = asyncio.Event(), asyncio.Event()

        async def work(name: str, consumer: Any) -> None:
            while not done.is_set():
                for one in await consumer.receive(10, 0.2):
                    if not shared.is_set():
                        await asyncio.sleep(0.02)
                    seen[one.envelope.key or ""].append(int(one.envelope.payload))
                    handled[name] += 1
                    await consumer.ack([one])
                if handled["second"] > 30:
                    shared.set()
                if name == "first" and handled["first"] > 30:
                    await shared.wait()

        async with trial.consumer() as first, trial.consumer() as second, asyncio.timeout(60):
            working = [asyncio.create_task(work("first", first))]
            while not handled["first"]:  # noqa: ASYNC110 - it has the whole backlog
                await asyncio.sleep(0.01)
            working.append(asyncio.create_task(work("second", second)))
            await shared.wait()
            while len({*chain(*seen.values())}) < 520:  # noqa: ASYNC110 - two tasks count
                await asyncio.sleep(0.01)
            done.set()
            await asyncio.gather(*working)
        assert all([*dict.fromkeys(numbers)] == sorted({*numbers}) for numbers in seen.values())
