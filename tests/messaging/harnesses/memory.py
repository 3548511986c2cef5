"""The memory broker under the suites."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from retrysafe.messaging.brokers.base import Consumer
from retrysafe.protocol.messages import Envelope
from retrysafe.testing.publishers import Publishing
from tests.messaging.harnesses.base import PARTITIONS, Bench, Harness


class MemoryBench(Bench):
    """In one process: a crash is an end like any other."""

    async def open(self) -> MemoryBench:
        from retrysafe.messaging.brokers.memory.broker import MemoryBroker

        self.broker = MemoryBroker(partitions=PARTITIONS)
        self.publisher = self.broker.apublisher()
        return self

    async def consumer(self) -> Consumer:
        return self.broker.consumer(self.topic)

    async def crash(self, consumer: Consumer) -> None:
        await consumer.aclose()

    async def clean(self) -> None:
        """It goes with this object."""


class Memory(Publishing):
    async def arrived(self) -> Sequence[Envelope]:
        return [one for one in self.publisher.published if one.topic == self.topic]


@asynccontextmanager
async def memory(*, sync: bool) -> AsyncIterator[Memory]:
    from retrysafe.messaging.brokers.memory.publisher import AsyncMemoryPublisher, MemoryPublisher

    made = Memory()
    made.topic = "orders"
    made.publisher = MemoryPublisher() if sync else AsyncMemoryPublisher()
    yield made


HARNESS = Harness(
    "memory",
    bench=MemoryBench,
    publishings={"memory": lambda folder: memory(sync=True), "memory-async": lambda folder: memory(sync=False)},
)
