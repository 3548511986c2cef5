"""Handlers fill a loop's default executor, and wait there: what they wait for, and signs of life, need none of it."""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import pytest_asyncio

from retrysafe import Boundary
from retrysafe.messaging.brokers.mqtt import MqttPublisher
from retrysafe.messaging.brokers.sqlite import AsyncSqlitePublisher, SqliteConsumer, declare
from retrysafe.protocol.messages import Envelope, PublishStatus
from tests.conftest import require


class Executor:
    """A loop's default executor, which one call fills."""

    def __init__(self) -> None:
        self._may_end = threading.Event()
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        self._work = loop.run_in_executor(None, self._may_end.wait, 20)

    @property
    def is_full(self) -> bool:
        return not self._work.done()

    async def end(self) -> None:
        """Let the call end."""
        self._may_end.set()
        await self._work


@pytest_asyncio.fixture
async def executor() -> AsyncIterator[Executor]:
    made = Executor()
    yield made
    await made.end()


async def test_a_claim_commits_although_plain_code_waits_for_it(executor: Executor, tmp_path: Path) -> None:
    boundary = Boundary("shop", store=f"sqlite:///{tmp_path}/shop.db", effects="transactional", observers=())
    async with boundary.claim("a key") as claim:
        claim.result = 1
    assert executor.is_full
    await executor.end()
    async with boundary.claim("a key") as claim:
        assert claim.replayed
    await boundary.aclose()


async def test_messages_are_published_taken_and_settled(executor: Executor, tmp_path: Path) -> None:
    file = tmp_path / "broker.db"
    declare(file, [("orders", "stock")])
    publisher, consumer = AsyncSqlitePublisher(file), SqliteConsumer(file, "stock")
    envelope = Envelope("m1", "orders", None, "orders.v1", "/shop", 1, {}, b"{}", "application/json")
    (published,) = await publisher.publish([envelope])
    assert published.status is PublishStatus.ACKED
    deliveries = await consumer.receive(1, 0)
    await consumer.ack(deliveries)
    assert await consumer.lag() == {"stock": 0}
    await publisher.aclose()
    await consumer.aclose()
    assert executor.is_full


@pytest.mark.slow
async def test_a_client_of_mqtt_connects(executor: Executor) -> None:
    """A session ends when its consumer, whose connection was lost, has not come back in time."""
    require("mqtt")
    url, topic = os.environ["RETRYSAFE_TEST_MQTT"], f"tests-{secrets.token_hex(6)}"
    publisher = MqttPublisher(url)
    envelope = Envelope("m1", topic, None, "orders.v1", "/shop", 1, {}, b"{}", "application/json")
    (published,) = await publisher.publish([envelope])
    assert published.status is PublishStatus.STALLED, "nobody subscribes"
    await publisher.aclose()
    assert executor.is_full
