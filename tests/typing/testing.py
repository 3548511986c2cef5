"""`retrysafe.testing` as users write it; a type checker reads this file, nothing runs it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, assert_type

import pytest

from retrysafe import Boundary
from retrysafe.backends.backend import Backend
from retrysafe.backends.memory.store import MemoryClient, MemoryStore
from retrysafe.backends.spec import StoreAccess
from retrysafe.messaging import Envelope
from retrysafe.messaging.brokers.base import Consumer
from retrysafe.messaging.brokers.memory.broker import MemoryBroker
from retrysafe.protocol.requests import Ask
from retrysafe.testing import (
    AsyncHarness,
    Clock,
    ConsumerBench,
    ConsumerFeatures,
    ConsumerSuite,
    FaultyBroker,
    Harness,
    Outcome,
    PublisherFeatures,
    PublisherSuite,
    Publishing,
    StoreSuite,
    SyncHarness,
    aassert_once,
    aconcurrently,
    age,
    assert_once,
    concurrently,
    crash_points,
    redelivered,
)

boundary = Boundary("typed", store="sqlite:///typed.db")
charges: list[str] = []


def charge() -> str:
    return "charged"


async def acharge() -> str:
    return "charged"


async def counted() -> int:
    return len(charges)


assert_type(assert_once(charge, effects=charges), str)
assert_type(assert_once(charge, effects=lambda: len(charges), copies=8, retries=0), str)
assert_type(concurrently(charge), list[Outcome[str]])
assert_type(redelivered([1, 2], seed="s", chance=0.5, out_of_order=True), list[int])


async def in_async_code() -> None:
    assert_type(await aassert_once(acharge, effects=counted), str)
    assert_type(await aassert_once(acharge, effects=charges, copies=8), str)
    assert_type(await aconcurrently(acharge, copies=4), list[Outcome[str]])
    async with Clock(boundary) as clock:
        assert_type(await clock.aadvance("25h") + await clock.alapse(), int)


with Clock(boundary, "sqlite:///other.db") as clock:
    assert_type(clock.advance(3600), int)
    assert_type(clock.lapse(), int)


def crashed(path: Path) -> None:
    assert crash_points(lambda state: charge(), fresh=lambda: str(path), check=lambda state: None).ok


class Mine(MemoryStore):
    """A store of one's own."""


@age.register(Mine)
def age_mine(store: Mine, keys: Collection[bytes], micros: int) -> Iterator[Ask[Any]]:
    yield Ask(micros, lambda answer: None)


def backend() -> Backend:
    return Backend(Mine(), StoreAccess("mine://", sync=MemoryClient))


class TestMine(StoreSuite):
    @pytest.fixture
    def harness(self) -> Harness:
        return SyncHarness(backend())


class TestMineInAsyncCode(StoreSuite):
    @pytest.fixture
    def harness(self) -> Iterator[Harness]:
        made = AsyncHarness(backend())
        yield made
        made.close()


class MyPublishing(Publishing):
    features = PublisherFeatures(ordered=False)
    topic = "orders"

    async def arrived(self) -> Sequence[Envelope]:
        return []


class TestMyPublisher(PublisherSuite): ...


class MyBench:
    topic = "orders"
    features = ConsumerFeatures()

    def __init__(self) -> None:
        self.broker = MemoryBroker()

    async def consumer(self) -> Consumer:
        return self.broker.consumer(self.topic)

    async def crash(self, consumer: Consumer) -> None:
        await consumer.aclose()

    async def publish(self, envelopes: Sequence[Envelope]) -> None:
        self.broker.put(envelopes)


@asynccontextmanager
async def bench() -> AsyncIterator[ConsumerBench]:
    yield MyBench()


class TestMyConsumer(ConsumerSuite):
    @pytest.fixture
    def consumer_bench(self) -> Callable[[], AbstractAsyncContextManager[ConsumerBench]]:
        return bench


def publishing(retrysafe_broker: FaultyBroker) -> None:
    with retrysafe_broker.outage():
        ...
    with retrysafe_broker.relay_dies():
        ...
