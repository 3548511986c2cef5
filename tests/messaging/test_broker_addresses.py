"""Addresses by which relays of one database tell brokers apart; nothing connects."""

from __future__ import annotations

from typing import Any

import redis
import redis.asyncio

from retrysafe.messaging.brokers.kafka.publisher import KafkaPublisher
from retrysafe.messaging.brokers.mqtt.publisher import MqttPublisher
from retrysafe.messaging.brokers.nats.publisher import NatsPublisher
from retrysafe.messaging.brokers.pubsub.publisher import PubSubPublisher
from retrysafe.messaging.brokers.rabbitmq.publisher import RabbitMQPublisher
from retrysafe.messaging.brokers.redis_streams.publisher import AsyncRedisStreamsPublisher, RedisStreamsPublisher
from retrysafe.messaging.brokers.servicebus.publisher import ServiceBusPublisher
from retrysafe.messaging.brokers.sqlite.broker import SqlitePublisher
from retrysafe.messaging.brokers.sqs.publisher import SnsPublisher, SqsPublisher
from retrysafe.messaging.brokers.sync_publisher import SyncPublisher


def _redis(url: str, **options: Any) -> RedisStreamsPublisher:
    return RedisStreamsPublisher(redis.Redis.from_url(url), **options)


def test_two_publishers_to_one_place_have_one_address_and_others_another() -> None:
    sends = "servicebus://{}.servicebus.windows.net"
    for one, same, *others in (
        (KafkaPublisher("kafka://b,a:1"), KafkaPublisher("kafka://a:1,b"), KafkaPublisher("kafka://c")),
        (
            RabbitMQPublisher("amqp://u:p@h/v"),
            RabbitMQPublisher("amqp://H/v"),
            RabbitMQPublisher("amqp://h/w"),
            RabbitMQPublisher("amqp://h/v", exchange="other"),
        ),
        (NatsPublisher("nats://u:p@h"), SyncPublisher(lambda: NatsPublisher("nats://h")), NatsPublisher("nats://i")),
        (MqttPublisher("mqtt://u:p@h"), MqttPublisher("mqtt://h"), MqttPublisher("mqtt://h", prefix="other")),
        (*(ServiceBusPublisher(sends.format(name)) for name in ("P:K@n", "Q:L@n", "P:K@m")),),
        (*(SqsPublisher(region=name) for name in ("eu", "eu", "us")), SnsPublisher(region="eu")),
        (*(PubSubPublisher(name) for name in "ppq"), PubSubPublisher("p", endpoint="h:1")),
        (
            _redis("redis://:p@h"),
            AsyncRedisStreamsPublisher(redis.asyncio.Redis.from_url("redis://h:6379/0")),
            _redis("redis://h/1"),
            _redis("redis://i/0"),
            _redis("redis://h", prefix="other"),
        ),
        (*(SqlitePublisher(path) for path in ("/tmp/../tmp/a.db", "/tmp/a.db", "/tmp/b.db")),),
    ):
        assert one.broker_address == same.broker_address
        assert len({publisher.broker_address for publisher in (one, *others)}) == 1 + len(others)
        assert "p@" not in one.broker_address
