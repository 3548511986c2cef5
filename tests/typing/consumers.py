"""Consumers as users write them, for type checkers only."""

from __future__ import annotations

from typing import Any

import redis.asyncio

from retrysafe.messaging.brokers.base import Consumer
from retrysafe.messaging.brokers.faststream import InboxMiddleware
from retrysafe.messaging.brokers.rabbitmq.consumer import RabbitMQConsumer
from retrysafe.messaging.brokers.rabbitmq.topology import declare
from retrysafe.messaging.brokers.redis_streams.consumer import RedisStreamsConsumer
from retrysafe.messaging.inbox.inbox import Inbox
from retrysafe.messaging.subscription.subscription import Subscription
from retrysafe.testing import ConsumerBench, ConsumerFeatures


async def consume(client: redis.asyncio.Redis, inbox: Inbox, broker: Any, bench: ConsumerBench) -> None:
    await declare("amqp://host/", ["orders", "refunds"], partitions=4, ordered=True, within="5s")
    rabbitmq: Consumer = RabbitMQConsumer(
        "amqp://host/", "orders", partitions=4, only_partitions=[0, 1], redelivery_window="3d"
    )
    streams: Consumer = RedisStreamsConsumer(client, "orders", group="stock", lease="15s", leases="sqlite:///leases.db")

    @inbox.handler("stock")
    async def reserve(message: Any) -> None:
        """A handler."""

    await Subscription(rabbitmq, reserve).arun_forever()
    for delivery in await streams.receive(10, 1.0):
        await streams.give_back(delivery, 0.5)
    InboxMiddleware(inbox, "stock", max_attempts=3).install(broker)
    features: ConsumerFeatures = bench.features
    print(features.exclusive, features.durable)
