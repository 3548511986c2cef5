"""Queues and topics that lose messages are found at real brokers; those that `declare` makes are sound."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import Iterator

import aio_pika
import pytest

from retrysafe.doctor import diagnose
from retrysafe.messaging.brokers import kafka, rabbitmq, sqs
from retrysafe.messaging.brokers.kafka.properties import properties_of
from retrysafe.messaging.brokers.kafka.topics import admin
from tests.conftest import require
from tests.messaging.harnesses.sqs import options_of, service, without_queue, without_topic


def ids(url: str, *topics: str) -> list[str]:
    return [one.id for one in diagnose(brokers=[url], topics=topics, within=20)]


QUEUES = {
    "rabbitmq-quorum": {"durable": True},
    "rabbitmq-dead-letters": {"durable": True, "arguments": {"x-queue-type": "quorum"}},
}


@pytest.fixture
def rabbit() -> str:
    require("rabbitmq")
    return os.environ["RETRYSAFE_TEST_RABBITMQ"]


@pytest.mark.parametrize("check", QUEUES)
def test_a_queue_that_loses_messages(check: str, rabbit: str) -> None:
    name = f"doctor-{secrets.token_hex(6)}"

    async def go() -> None:
        async with await aio_pika.connect(rabbit) as connection:
            channel = await connection.channel()
            await channel.declare_queue(name, **QUEUES[check])
            try:
                assert await asyncio.to_thread(ids, rabbit, name) == [check]
            finally:
                await (await connection.channel()).queue_delete(name)

    asyncio.run(go())


def test_queues_as_they_are_declared_and_none(rabbit: str) -> None:
    names = [f"doctor-{secrets.token_hex(6)}" for _ in range(2)]

    async def go() -> None:
        await rabbitmq.declare(rabbit, names[0])
        await rabbitmq.declare(rabbit, names[1], ordered=False)
        async with await aio_pika.connect(rabbit) as connection:
            try:
                assert await asyncio.to_thread(ids, rabbit, *names) == []
            finally:
                for name in names:
                    await (await connection.channel()).queue_delete(name)

    asyncio.run(go())
    assert ids(rabbit, "doctor-none") == ["rabbitmq-queue"]


@pytest.fixture
def topic() -> Iterator[tuple[str, str]]:
    require("kafka")
    url, name = os.environ["RETRYSAFE_TEST_KAFKA"], f"doctor-{secrets.token_hex(6)}"
    kafka.declare(url, [name], partitions=1, settings={"retention.ms": "-1"})
    yield url, name
    client = admin(properties_of(url, {}))
    for gone in client.delete_topics([name]).values():
        gone.result()


def test_topics_that_keep_messages_for_ever_on_one_broker(topic: tuple[str, str]) -> None:
    assert ids(*topic) == ["kafka-replicas", "kafka-retention"]
    assert ids(topic[0], "doctor-none") == ["kafka-topic"]


@pytest.fixture
def queue() -> Iterator[str]:
    require("sns")
    name = f"doctor-{secrets.token_hex(6)}"
    yield name
    url = os.environ["RETRYSAFE_TEST_SNS"]
    for one in (name, f"{name}.fifo", f"{name}-dead"):
        asyncio.run(without_queue(url, one))
        asyncio.run(without_topic(url, one))


def with_scheme(scheme: str) -> str:
    return scheme + os.environ["RETRYSAFE_TEST_SNS"].removeprefix("sns")


def test_queues_that_lose_order_and_messages(queue: str) -> None:
    url = with_scheme("sqs")
    assert ids(url, queue) == ["sqs-queue"]

    async def make() -> None:
        async with service("sqs", url) as client:
            dead = (await client.call("create_queue", QueueName=f"{queue}-dead"))["QueueUrl"]
            told = await client.call("get_queue_attributes", QueueUrl=dead, AttributeNames=["QueueArn"])
            policy = {"deadLetterTargetArn": told["Attributes"]["QueueArn"], "maxReceiveCount": 3}
            settings = {"RedrivePolicy": json.dumps(policy), "MessageRetentionPeriod": "3600"}
            await client.call("create_queue", QueueName=queue, Attributes=settings)

    asyncio.run(make())
    assert ids(url, queue) == ["sqs-dead-letters", "sqs-order", "sqs-retention"]
    asyncio.run(sqs.declare(queue, **options_of(url)))
    assert ids(url, queue) == []


def test_a_topic_that_no_queue_subscribes_to(queue: str) -> None:
    url = with_scheme("sns")
    assert ids(url, queue) == ["sqs-queue"]

    async def make() -> None:
        async with service("sns", url) as client:
            await client.call("create_topic", Name=f"{queue}.fifo", Attributes={"FifoTopic": "true"})

    asyncio.run(make())
    assert ids(url, queue) == ["sns-subscription"]
    asyncio.run(sqs.declare(queue, group="mail", **options_of(url)))
    assert ids(url, queue) == []
    asyncio.run(without_queue(url, f"mail_2e_{queue}.fifo"))


def test_a_dead_broker_is_a_finding_without_its_password() -> None:
    said = diagnose(brokers=["amqp://guest:s3cr3t-word@127.0.0.1:1/"], topics=["q"])
    assert [one.id for one in said] == ["broker-unreachable"]
    assert "s3cr3t-word" not in repr(said)
