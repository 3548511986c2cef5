"""A SQLite file as a broker, under the suites."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from unittest.mock import patch

from retrysafe.messaging.brokers.base import Consumer
from retrysafe.messaging.brokers.registry import broker_at
from retrysafe.messaging.brokers.sqlite import broker
from retrysafe.messaging.brokers.sqlite.broker import (
    AsyncSqlitePublisher,
    SqliteConsumer,
    SqlitePublisher,
    declare,
    path_of,
)
from retrysafe.messaging.cloudevents import envelope_of
from retrysafe.protocol.messages import Envelope
from retrysafe.testing.publishers import PublisherFeatures, Publishing
from tests.messaging.harnesses.base import Bench, Harness, Place


class SqliteBench(Bench):
    """A queue of a file, which nothing leads to but its path."""

    async def open(self) -> SqliteBench:
        self.path = path_of(self.url)
        declare(self.path, [(self.topic, self.topic)])
        self.publisher = AsyncSqlitePublisher(self.path)
        return self

    async def consumer(self) -> Consumer:
        return SqliteConsumer(self.path, self.topic, hold="1s")

    async def crash(self, consumer: Consumer) -> None:
        """It gives no sign of life any more."""
        assert isinstance(consumer, SqliteConsumer)
        if (session := consumer._session) is not None:
            session._renewing.cancel()
            await asyncio.wait([session._renewing])
            session._name = "dead"

    async def clean(self) -> None:
        """It goes with its file."""


class File(Publishing):
    """The way to a file is cut by a writer that keeps it locked."""

    features = PublisherFeatures(reports_missing=True)
    topic, elsewhere, beside = "orders", "nowhere", "mails"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._locking: sqlite3.Connection | None = None
        declare(path, [(self.topic, "stock"), (self.beside, "mail")])

    async def stall(self) -> bool:
        """Its topic is bound to no queue."""
        with closing(sqlite3.connect(self._path)) as file, file:
            file.execute("DELETE FROM bindings WHERE topic = ?", [self.topic])
        return True

    async def unstall(self) -> None:
        declare(self._path, [(self.topic, "stock")])

    async def cut(self) -> bool:
        self._locking = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        self._locking.execute("BEGIN IMMEDIATE")
        return True

    async def mend(self) -> None:
        assert self._locking is not None
        self._locking.close()

    async def arrived(self) -> Sequence[Envelope]:
        with closing(sqlite3.connect(self._path)) as file:
            rows = file.execute(
                "SELECT attributes, payload FROM deliveries WHERE queue = 'stock' ORDER BY id"
            ).fetchall()
        return [envelope_of(json.loads(given), payload) for given, payload in rows]


@asynccontextmanager
async def sqlite_file(folder: Path) -> AsyncIterator[Publishing]:
    with patch.object(broker, "BUSY", 0.05):
        made = File(folder / "broker.db")
        made.publisher = SqlitePublisher(folder / "broker.db")
        yield made
        made.publisher.close()


def url(folder: Path) -> str:
    return f"sqlite:///{folder}/broker.db"


async def left(at: Place) -> int:
    consumer = broker_at(at.url, name=at.name).consumer(at.topic, at.group)
    found = await consumer.receive(1_000_000, 0)
    await consumer.aclose()
    return len(found)


async def remove(at: Place) -> None:
    """It goes with its file."""


HARNESS = Harness(
    "sqlite",
    bench=SqliteBench,
    publishings={"sqlite": sqlite_file},
    in_folder=url,
    group=("--group", "{name}.{group}.{topic}"),
    left=left,
    remove=remove,
)
