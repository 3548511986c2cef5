"""Queues and topics that lose messages are found at real brokers; those that `declare` makes are sound."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import Iterator

import aio_pika
import nats as nats_client
import pytest

from retrysafe.doctor import diagnose
from retrysafe.messaging.brokers import kafka, nats, pubsub, rabbitmq, sqs
from retrysafe.messaging.brokers.kafka.properties import properties_of
from retrysafe.messaging.brokers.kafka.topics import admin
from tests.conftest import require
from tests.messaging.harnesses import pubsub as on_pubsub
from tests.messaging.harnesses.nats import without_stream
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
def stream() -> Iterator[tuple[str, str]]:
    require("nats")
    url, name = os.environ["RETRYSAFE_TEST_NATS"], f"doctor-{secrets.token_hex(6)}"
    yield url, name
    asyncio.run(without_stream(url, name))


def test_streams_that_lose_messages(stream: tuple[str, str]) -> None:
    url, name = stream
    assert ids(url, name) == ["nats-stream"]

    async def make() -> None:
        async with await nats_client.connect(url) as client:
            streams = client.jetstream()
            await streams.add_stream(name=name, subjects=[name], storage="memory", max_msgs=10, max_age=60)
            await streams.add_consumer(name, durable_name="stock", ack_policy="explicit", max_deliver=5)

    asyncio.run(make())
    weak = ["nats-age", "nats-dead-letters", "nats-discard", "nats-replicas", "nats-storage"]
    assert sorted(ids(url, name)) == weak


def test_streams_as_they_are_declared(stream: tuple[str, str]) -> None:
    """One server has them, as there is only one here."""
    url, name = stream
    asyncio.run(nats.declare(url, name, stream=name, partitions=2))
    assert ids(url, name) == ["nats-replicas"]
    assert ids(url, f"{name}.1") == ["nats-replicas"]
    asyncio.run(without_stream(url, name))
    asyncio.run(nats.declare(url, name, stream=name, keep=None))
    assert sorted(ids(url, name)) == ["nats-replicas", "nats-retention"]


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


@pytest.fixture
def subscribed() -> Iterator[tuple[str, str]]:
    require("pubsub")
    url, name = os.environ["RETRYSAFE_TEST_PUBSUB"], f"doctor-{secrets.token_hex(6)}"
    yield url, name
    asyncio.run(on_pubsub.without(url, name, "stock", "mail", prefix=""))
    asyncio.run(on_pubsub.without(url, f"{name}-dead", prefix=""))


def test_subscriptions_that_lose_order_and_messages(subscribed: tuple[str, str]) -> None:
    url, name = subscribed
    options = on_pubsub.options_of(url)
    assert ids(url, name) == ["pubsub-topic"]
    asyncio.run(pubsub.declare(topics=[name, f"{name}-dead"], **options))
    assert ids(url, name) == ["pubsub-subscription"]
    asyncio.run(pubsub.declare(topics=name, group="mail", **options))
    assert ids(url, name) == []

    async def make() -> None:
        topic, dead = (f"projects/{options['project']}/topics/{one}" for one in (name, f"{name}-dead"))
        settings = {
            "name": f"projects/{options['project']}/subscriptions/stock.{name}",
            "topic": topic,
            "ack_deadline_seconds": 10,
            "message_retention_duration": {"seconds": 3600},
            "expiration_policy": {"ttl": {"seconds": 31 * 86400}},
            "dead_letter_policy": {"dead_letter_topic": dead, "max_delivery_attempts": 5},
        }
        async with on_pubsub.service(url) as clients:
            await clients.subscriber.create_subscription(settings)

    asyncio.run(make())
    assert ids(url, name) == ["pubsub-dead-letters", "pubsub-expiration", "pubsub-order", "pubsub-retention"]


def test_an_mqtt_broker_that_grants_what_is_needed() -> None:
    require("mqtt")
    assert ids(os.environ["RETRYSAFE_TEST_MQTT"], "orders") == []


def test_an_mqtt_broker_that_grants_too_little() -> None:
    from retrysafe.messaging.brokers.mqtt.checks import CHECKS

    facts = {"qos": 0, "kept": 60, "retains": False, "secret": True, "tls": False, "local": False}
    assert [check.id for check in CHECKS if check.judge(facts)] == [check.id for check in CHECKS]


def test_a_dead_broker_is_a_finding_without_its_password() -> None:
    said = diagnose(brokers=["amqp://guest:s3cr3t-word@127.0.0.1:1/"], topics=["q"])
    assert [one.id for one in said] == ["broker-unreachable"]
    assert "s3cr3t-word" not in repr(said)
