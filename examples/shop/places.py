"""The places of all data: a folder with a database for each service, and a broker, both given by the environment."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

from retrysafe.messaging import Handler, Relay, Subscription
from retrysafe.messaging.brokers.registry import broker_at

FOLDER = Path(os.environ.get("SHOP_FOLDER", "shop-data"))
BROKER = os.environ.get("SHOP_BROKER") or f"sqlite:///{FOLDER / 'broker.db'}"  # or "redis://…", or "amqp://…"
WINDOW = "15d"  # longer than a broker keeps messages: Kafka does so for up to 14 days, unless it is told otherwise
LEASE = os.environ.get("SHOP_LEASE", "6s")  # how soon the work of a process that was killed is taken over
NAME = os.environ.get("SHOP_NAME", "shop")  # of what is ours at the broker
TOPIC, SERVICES, PARTITIONS = "orders.placed", ("inventory", "mail"), 4
broker = broker_at(BROKER, name=NAME, partitions=PARTITIONS, lease=LEASE)


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


async def make_queues() -> None:
    """Make what messages wait in: for every service its own."""
    await broker.declare([TOPIC], SERVICES)


async def consume(service: str, handler: Handler[..., None]) -> None:
    """Handle the messages of a service until SIGTERM; what was begun is finished."""
    subscription = Subscription(broker.consumer(TOPIC, service), handler)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, subscription.stop)
    await subscription.arun_forever()


async def relay(service: str) -> None:
    """Publish what a service has in its outbox until SIGTERM."""
    target = broker.publisher()
    working = Relay(store(service), target, lease=LEASE)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, working.stop)
    await working.arun_forever()
    await target.aclose()
