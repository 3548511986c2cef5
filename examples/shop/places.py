"""Where everything is: a folder with a database for each service, and a broker, both given by the environment."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

from retrysafe.messaging import Handler, Relay, Subscription
from retrysafe.messaging.brokers.base import AsyncPublisher, Consumer

FOLDER = Path(os.environ.get("SHOP_FOLDER", "shop-data"))
BROKER = os.environ.get("SHOP_BROKER", "")  # "redis://…", "amqp://…", or nothing: then a SQLite file is the broker
LEASE = os.environ.get("SHOP_LEASE", "5s")  # how soon the work of a process that was killed is taken over
NAME = os.environ.get("SHOP_NAME", "shop")  # of what is ours at the broker
TOPIC, SERVICES, PARTITIONS = "orders.placed", ("inventory", "mail"), 4
FILE = FOLDER / "broker.db"


def store(service: str) -> str:
    """The database of a service, for store=."""
    return f"sqlite:///{FOLDER / service}.db"


def make_tables(service: str, *tables: str) -> None:
    """Make the tables of a service, unless they are there."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(FOLDER / f"{service}.db", timeout=30)) as file:
        for table in tables:
            file.execute(f"CREATE TABLE IF NOT EXISTS {table}")
        file.commit()


# ------------------------------------------------------------ the three brokers


async def make_queues() -> None:
    """Make what messages wait in: for every service its own."""
    if BROKER.startswith("amqp"):
        await make_rabbitmq_queues()
    elif not BROKER:
        from retrysafe.messaging.brokers.sqlite import declare

        declare(FILE, [(TOPIC, service) for service in SERVICES])  # Redis makes its streams by itself


async def make_rabbitmq_queues() -> None:
    """Queues of their own for both services, bound to one exchange, partition by partition."""
    import aio_pika

    from retrysafe.messaging.brokers.rabbitmq import declare

    await declare(BROKER, [f"{NAME}.{service}" for service in SERVICES], partitions=PARTITIONS)
    async with await aio_pika.connect(BROKER) as connection:
        channel = await connection.channel()
        exchange = await channel.declare_exchange(NAME, aio_pika.ExchangeType.DIRECT, durable=True)
        for number in range(PARTITIONS):
            for service in SERVICES:
                queue = await channel.get_queue(f"{NAME}.{service}.{number}")
                await queue.bind(exchange, f"{TOPIC}.{number}")


def publisher() -> AsyncPublisher:
    """What the relay publishes to."""
    if BROKER.startswith("amqp"):
        from retrysafe.messaging.brokers.rabbitmq import RabbitMQPublisher

        return RabbitMQPublisher(BROKER, exchange=NAME, partitions=PARTITIONS)
    if BROKER:
        import redis.asyncio

        from retrysafe.messaging.brokers.redis_streams import AsyncRedisStreamsPublisher

        return AsyncRedisStreamsPublisher(
            redis.asyncio.Redis.from_url(BROKER), prefix=f"{NAME}:", partitions=PARTITIONS
        )
    from retrysafe.messaging.brokers.sqlite import AsyncSqlitePublisher

    return AsyncSqlitePublisher(FILE)


def consumer(service: str) -> Consumer:
    """What a service takes its messages from."""
    if BROKER.startswith("amqp"):
        from retrysafe.messaging.brokers.rabbitmq import RabbitMQConsumer

        return RabbitMQConsumer(BROKER, f"{NAME}.{service}", partitions=PARTITIONS)
    if BROKER:
        import redis.asyncio

        from retrysafe.messaging.brokers.redis_streams import RedisStreamsConsumer

        client = redis.asyncio.Redis.from_url(BROKER)
        return RedisStreamsConsumer(client, TOPIC, group=service, prefix=f"{NAME}:", partitions=PARTITIONS, lease=LEASE)
    from retrysafe.messaging.brokers.sqlite import SqliteConsumer

    return SqliteConsumer(FILE, service, hold=LEASE)


# ------------------------------------------------------------ running until SIGTERM


async def consume(service: str, handler: Handler[..., None]) -> None:
    """Handle the messages of a service until SIGTERM; what was begun is finished."""
    subscription = Subscription(consumer(service), handler)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, subscription.stop)
    await subscription.arun_forever()


async def relay(service: str) -> None:
    """Publish what a service has in its outbox until SIGTERM."""
    target = publisher()
    working = Relay(store(service), target, lease=LEASE)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, working.stop)
    await working.arun_forever()
    await target.aclose()
