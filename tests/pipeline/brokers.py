"""The brokers that the pipeline is run on: each with its publisher, its consumer, and a look at what it still has."""

from __future__ import annotations

from typing import Any, Protocol

from retrysafe.messaging.brokers.sqlite import AsyncSqlitePublisher, SqliteConsumer, declare
from retrysafe.ports import AsyncPublisher, Consumer
from tests.pipeline.books import TOPIC

PARTITIONS = 6


class Broker(Protocol):
    """A broker, named by a text that is handed to processes."""

    async def prepare(self) -> None:
        """Make queues."""

    def publisher(self) -> AsyncPublisher: ...

    def consumer(self, database: str) -> Consumer: ...

    async def left(self) -> int:
        """How many messages it has, when no consumer is connected."""

    async def remove(self) -> None:
        """Remove the queues."""


class SqliteBroker:
    """A file."""

    def __init__(self, path: str) -> None:
        self._path = path

    async def prepare(self) -> None:
        declare(self._path, [(TOPIC, "inventory")])

    def publisher(self) -> AsyncPublisher:
        return AsyncSqlitePublisher(self._path)

    def consumer(self, database: str) -> Consumer:
        return SqliteConsumer(self._path, "inventory", hold="1s")

    async def left(self) -> int:
        consumer = SqliteConsumer(self._path, "inventory")
        found = await consumer.receive(1_000_000, 0)
        await consumer.aclose()
        return len(found)

    async def remove(self) -> None:
        return


KINDS: dict[str, Any] = {"sqlite": SqliteBroker}


def broker(kind: str, where: str) -> Broker:
    """The broker of a kind at an address."""
    made: Broker = KINDS[kind](where)
    return made
