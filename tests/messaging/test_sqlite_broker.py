"""A SQLite file as a broker: nothing is lost with a consumer, and a lane is with one consumer at a time."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from retrysafe.backends.sql.drivers.sqlite_pool import Borrowed
from retrysafe.messaging.brokers.sqlite import AsyncSqlitePublisher, SqliteConsumer, SqlitePublisher, broker, declare
from retrysafe.protocol.messages import Delivery, Envelope, PublishStatus
from tests.faults.helpers import auntil


def message(number: int, key: str | None, topic: str = "orders") -> Envelope:
    return Envelope(f"m{number}", topic, key, "orders.v1", "/shop", number, {"x": "y"}, b"{}", "application/json")


def names(deliveries: Sequence[Delivery]) -> list[str]:
    return [delivery.envelope.id for delivery in deliveries]


def received_and_died(file: Path) -> int:
    """Count the messages that a consumer received before its process was killed."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.write(writing, b"%d" % len(asyncio.run(SqliteConsumer(file, "stock", hold=0.2).receive(1, 0))))
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading, "rb") as said:
        return int(said.read())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "broker.db"
    declare(path, [("orders", "stock"), ("orders", "mail")])
    declare(path, [("orders", "stock")])  # again is harmless
    return path


@pytest_asyncio.fixture
async def two(file: Path) -> AsyncIterator[tuple[SqliteConsumer, SqliteConsumer]]:
    consumers = SqliteConsumer(file, "stock"), SqliteConsumer(file, "stock")
    yield consumers
    for consumer in consumers:
        await consumer.aclose()


async def test_every_bound_queue_has_the_message_as_it_was_until_it_is_settled(file: Path) -> None:
    publisher = AsyncSqlitePublisher(file)
    assert [one.status for one in await publisher.publish([message(1, "a")])] == [PublishStatus.ACKED]
    await publisher.aclose()
    for queue in ("stock", "mail"):
        consumer = SqliteConsumer(file, queue)
        (delivery,) = await consumer.receive(10, 0)
        assert delivery.envelope == message(1, "a")
        assert not delivery.redelivered
        await consumer.ack([delivery])
        assert await consumer.receive(10, 0) == []
        await consumer.aclose()
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("SELECT count(*) FROM deliveries").fetchone() == (0,)


def test_messages_without_a_queue_are_tried_again(file: Path) -> None:
    publisher = SqlitePublisher(file)
    first, second = publisher.publish([message(1, None, "unbound"), message(2, None)])
    publisher.close()
    assert first.status is PublishStatus.STALLED
    assert second.status is PublishStatus.ACKED


def test_messages_too_large_for_the_file_are_refused_alone(file: Path) -> None:
    publisher = SqlitePublisher(file)
    publisher.publish([message(0, None)])
    with Borrowed(publisher._file._connections) as connection:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 5000)
    large = message(2, None)._replace(payload=b"x" * 6000)
    said = publisher.publish([message(1, None), large, message(3, None)])
    publisher.close()
    assert [one.status for one in said] == [PublishStatus.ACKED, PublishStatus.REJECTED, PublishStatus.ACKED]


def test_a_file_that_is_no_broker_takes_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    (published,) = SqlitePublisher(tmp_path / "empty.db").publish([message(1, None)])
    assert published.status is PublishStatus.UNAVAILABLE


def test_a_file_that_is_missing_is_not_made_without_its_tables(tmp_path: Path) -> None:
    (published,) = SqlitePublisher(tmp_path / "missing.db").publish([message(1, None)])
    assert published.status is PublishStatus.UNAVAILABLE
    assert "make it with declare()" in published.error
    assert not (tmp_path / "missing.db").exists()


def test_a_relative_path_is_the_same_file_wherever_the_process_goes(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent)
    publisher = SqlitePublisher(file.name)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (published,) = publisher.publish([message(1, None)])
    publisher.close()
    assert published.status is PublishStatus.ACKED


async def test_a_lane_is_with_one_consumer_in_its_order(file: Path, two: tuple[SqliteConsumer, SqliteConsumer]) -> None:
    SqlitePublisher(file).publish([message(number, "ab"[number % 2]) for number in range(6)])
    one, other = two
    held = await one.receive(1, 0)
    assert names(held) == ["m0"]
    assert names(await other.receive(10, 0)) == ["m1", "m3", "m5"]
    assert names(await one.receive(1, 0)) == ["m2"]
    await one.aclose()
    assert names(await other.receive(10, 0)) == ["m0", "m2", "m4"]


async def test_a_message_that_waits_holds_its_lane_and_no_other(
    file: Path, two: tuple[SqliteConsumer, SqliteConsumer]
) -> None:
    SqlitePublisher(file).publish([message(0, "a"), message(1, "a"), message(2, "b")])
    one, other = two
    (first,) = await one.receive(1, 0)
    await one.give_back(first, 3600)
    assert names(await other.receive(10, 0)) == ["m2"]
    assert await one.receive(10, 0) == []
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("UPDATE deliveries SET not_before = 0")  # the hour is over
    again = await one.receive(10, 0)
    assert names(again) == ["m0", "m1"]
    assert [delivery.redelivered for delivery in again] == [True, False]


@pytest.mark.slow
async def test_messages_of_a_dead_consumer_are_handed_out_again_and_those_of_a_living_one_are_not(file: Path) -> None:
    SqlitePublisher(file).publish([message(0, "a")])
    assert received_and_died(file) == 1
    living, other = SqliteConsumer(file, "stock", hold=15.0), SqliteConsumer(file, "stock", hold=15.0)
    assert names(await living.receive(1, 30)) == ["m0"]
    assert await other.receive(1, 16.0) == []
    await living.aclose()
    assert names(await other.receive(1, 30)) == ["m0"]
    await other.aclose()


async def test_a_consumer_that_was_taken_for_dead_cannot_give_back_what_another_one_has(
    file: Path, two: tuple[SqliteConsumer, SqliteConsumer]
) -> None:
    SqlitePublisher(file).publish([message(0, "a")])
    one, other = two
    (late,) = await one.receive(1, 0)
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("UPDATE deliveries SET held_until = 0")
    (again,) = await other.receive(1, 0)
    await one.give_back(late, 0)
    assert await one.receive(1, 0) == []
    await other.ack([again])


async def test_a_receive_that_is_cancelled_keeps_nothing(
    file: Path, two: tuple[SqliteConsumer, SqliteConsumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = two
    SqlitePublisher(file).publish([message(0, "a")])
    loop, taken = asyncio.get_running_loop(), asyncio.Event()
    take = broker._SqliteSession._take

    def cancelled_meanwhile(*given: Any) -> list[Delivery]:
        found = take(*given)
        loop.call_soon_threadsafe(receiving.cancel)
        loop.call_soon_threadsafe(taken.set)
        asyncio.run_coroutine_threadsafe(taken.wait(), loop).result(60)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(broker._SqliteSession, "_take", cancelled_meanwhile)
        receiving = asyncio.ensure_future(one.receive(1, 0))
        with pytest.raises(asyncio.CancelledError):
            await receiving
    assert names(await other.receive(1, 0)) == ["m0"]


async def test_a_file_that_stays_locked_is_tried_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "BUSY", 0.0)
    publisher = SqlitePublisher(file)
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        (published,) = publisher.publish([message(0, "a")])
    assert published.status is PublishStatus.UNAVAILABLE
    publisher.close()


def test_the_file_is_not_closed_under_who_is_in_a_transaction(file: Path) -> None:
    """SQLite ended the process by SIGSEGV."""
    publisher = SqlitePublisher(file)
    with publisher._file.transaction(time.monotonic() + 10) as connection:
        closing_it = threading.Thread(target=publisher.close)
        closing_it.start()
        closing_it.join()
        assert connection.execute("SELECT 1").fetchone() == (1,)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")


async def test_a_publish_that_is_cancelled_is_over_when_it_says_so(file: Path) -> None:
    publisher = AsyncSqlitePublisher(file)
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        publishing = asyncio.create_task(publisher.publish([message(0, "a")]))
        await asyncio.sleep(0)
        publishing.cancel()
        await asyncio.sleep(0)
        assert not publishing.done()
        connection.execute("ROLLBACK")
    with pytest.raises(asyncio.CancelledError):
        await publishing
    await publisher.aclose()


async def test_messages_not_given_back_are_before_more_are_taken(
    file: Path, two: tuple[SqliteConsumer, SqliteConsumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker, "BUSY", 0.0)
    SqlitePublisher(file).publish([message(0, "a"), message(1, "a")])
    one, other = two
    held = await one.receive(10, 0)
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        for delivery in held:
            with pytest.raises(sqlite3.OperationalError):
                await one.give_back(delivery, 0.0)
        connection.execute("ROLLBACK")
    assert await other.receive(10, 0) == []
    SqlitePublisher(file).publish([message(2, "a")])
    assert names(await one.receive(10, 0)) == ["m0", "m1", "m2"]


async def test_an_idle_consumer_gives_back_what_it_could_not(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its run has ended, and it goes on to live."""
    monkeypatch.setattr(broker, "BUSY", 0.0)
    SqlitePublisher(file).publish([message(0, "a")])
    idle, other = SqliteConsumer(file, "stock", hold=0.3), SqliteConsumer(file, "stock", hold=3600)
    (held,) = await idle.receive(10, 0)
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError):
            await idle.give_back(held, 0.0)
        connection.execute("ROLLBACK")
    monkeypatch.setattr(broker, "BUSY", 10.0)
    await auntil(lambda: not idle._session._returned)
    assert names(await other.receive(10, 0)) == ["m0"]
    await idle.aclose()
    await other.aclose()
