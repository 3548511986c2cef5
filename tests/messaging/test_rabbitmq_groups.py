"""RabbitMQ: exchanges, and the groups whose queues are bound to them."""

from __future__ import annotations

import os
import secrets

import aio_pika
import pytest

from retrysafe.errors import ConfigurationError
from retrysafe.messaging import Envelope
from retrysafe.messaging.brokers.rabbitmq.consumer import RabbitMQConsumer
from retrysafe.messaging.brokers.rabbitmq.publisher import RabbitMQPublisher
from retrysafe.messaging.brokers.rabbitmq.topology import declare
from retrysafe.protocol.messages import Delivery, PublishStatus
from tests.conftest import require


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
        await channel.exchange_delete(shop)


async def test_a_group_without_an_exchange_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="needs exchange="):
        await declare("amqp://127.0.0.1:1/", "placed", group="mail")
