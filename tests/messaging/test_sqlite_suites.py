"""A SQLite file as a broker passes what is published for consumers and for publishers of any broker."""

from __future__ import annotations

import asyncio
import json
import secrets
import sqlite3
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path

import pytest

from retrysafe.messaging.brokers import sqlite
from retrysafe.messaging.brokers.base import Consumer
from retrysafe.messaging.brokers.sqlite import AsyncSqlitePublisher, SqliteConsumer, SqlitePublisher, declare
from retrysafe.messaging.cloudevents import envelope_of
from retrysafe.protocol.messages import Envelope, PublishStatus
from retrysafe.testing.consumers import ConsumerFeatures, ConsumerSuite, OpenConsumerBench
from retrysafe.testing.publishers import PublisherFeatures, PublisherSuite, Publishing


class Bench:
    """A queue of a file."""

    features = ConsumerFeatures()
    topic = "orders"

    def __init__(self, path: Path) -> None:
        self._path = path
        declare(path, [(self.topic, "stock")])

    async def consumer(self) -> Consumer:
        return SqliteConsumer(self._path, "stock", hold="1s")

    async def crash(self, consumer: Consumer) -> None:
        """It gives no sign of life any more."""
        assert isinstance(consumer, SqliteConsumer)
        if consumer._renewing is not None:
            consumer._renewing.cancel()
            await asyncio.wait([consumer._renewing])
            consumer._renewing = None
        consumer._name = "nobody"

    async def publish(self, envelopes: Sequence[Envelope]) -> None:
        publisher = AsyncSqlitePublisher(self._path)
        assert {one.status for one in await publisher.publish(envelopes)} == {PublishStatus.ACKED}
        await publisher.aclose()


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Bench]:
    yield Bench(folder / f"{secrets.token_hex(4)}.db")


class TestConsumers(ConsumerSuite):
    @pytest.fixture
    def consumer_bench(self, tmp_path: Path) -> OpenConsumerBench:
        return partial(opened, tmp_path)


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


class TestPublishers(PublisherSuite):
    @pytest.fixture
    def publishing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Publishing]:
        monkeypatch.setattr(sqlite, "BUSY", 0.05)
        made = File(tmp_path / "broker.db")
        made.publisher = SqlitePublisher(tmp_path / "broker.db")
        yield made
        made.publisher.close()
