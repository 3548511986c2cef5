"""Consume, transform, produce: what is in the output is what was made of the input, once, whoever dies."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from retrysafe import ConfigurationError
from retrysafe.messaging.brokers.kafka import Aborted, Committed, KafkaState, KafkaTransactions, Recreated, declare
from retrysafe.messaging.brokers.kafka.properties import LOG, properties_of
from tests.conftest import require
from tests.docs.pages import ROOT
from tests.messaging.harnesses.kafka import delete, every_record, operator
from tests.messaging.kafka_children import CALLS, drain, transformed
from tests.proving.effort import effort

RECORDS = 7


class Topics:
    """An input with records, and an output, for one test."""

    def __init__(self, url: str, partitions: int) -> None:
        self.url, self.partitions, name = url, partitions, f"tx-{secrets.token_hex(6)}"
        self.input, self.output, self.group = name, f"{name}-out", name
        declare(url, [self.input, self.output], partitions=partitions)
        self.fill(RECORDS)

    def fill(self, records: int) -> None:
        """Produce so many records to each partition of the input."""
        from confluent_kafka import Producer

        producer = Producer(properties_of(self.url, {}), logger=LOG)
        for number in range(records * self.partitions):
            producer.produce(self.input, b"%d" % number, partition=number % self.partitions)
        assert producer.flush(10) == 0

    def stream(self, name: str | None = None, **options: Any) -> KafkaTransactions:
        options = {"max_records": 2, "session": "10s", **options}
        return KafkaTransactions(self.url, self.input, group=self.group, transactional_id=name, **options)

    def child(self, name: str, die_at: int) -> Any:
        arguments = [self.url, self.input, self.output, self.group, name, str(die_at)]
        return asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.messaging.kafka_children", *arguments),
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )

    def check(self, **properties: Any) -> None:
        """The output is what is made of the input, each record once."""
        values = [one.value() for one in every_record(self.url, self.output, **properties)]
        assert sorted(values) == sorted(transformed(one.value()) for one in every_record(self.url, self.input))


@pytest.fixture
def make() -> Iterator[Callable[[int], Topics]]:
    require("kafka")
    made: list[Topics] = []

    def topics(partitions: int = 1) -> Topics:
        made.append(Topics(os.environ["RETRYSAFE_TEST_KAFKA"], partitions))
        return made[-1]

    yield topics
    for one in made:
        delete(one.url, one.input, one.output)


@pytest.mark.slow
@pytest.mark.fault(7, 9)
async def test_a_process_is_killed_between_any_two_calls(make: Callable[[int], Topics]) -> None:
    """Its successor has its transactional id, which ends what it had begun."""

    turns, calls = asyncio.Semaphore(len(CALLS)), effort(len(CALLS), 60)

    async def killed(die_at: int) -> None:
        async with turns:
            topics = await asyncio.to_thread(make, 1)
            await asyncio.to_thread(topics.fill, calls // 2)
            child = await topics.child(topics.group, die_at)
            assert await child.wait() == -signal.SIGKILL
            await asyncio.to_thread(succeed, topics, RECORDS + calls // 2)

    def succeed(topics: Topics, records: int) -> None:
        with topics.stream(topics.group) as stream:
            drain(stream, topics.output, records)
        topics.check()

    async with asyncio.TaskGroup() as group:
        for at in range(calls):
            group.create_task(killed(1 + at))


@pytest.mark.fault(9, 58)
def test_a_zombie_with_the_same_id_commits_nothing(make: Callable[[int], Topics]) -> None:
    topics = make(1)
    with ExitStack() as stack:
        zombie = stack.enter_context(topics.stream(topics.group))
        tx = produced(zombie, topics, until_left=lambda: stack.enter_context(topics.stream(topics.group)).close())
        assert isinstance(tx.outcome, Recreated)
        assert tx.outcome.error.fatal()
        outcomes = drain(zombie, topics.output, RECORDS)  # it has the id again
        assert outcomes == [Committed(2), Committed(2), Committed(2), Committed(1)]
    topics.check()


@pytest.mark.slow
@pytest.mark.one_of("slow tests")
@pytest.mark.fault(50)
def test_a_stream_goes_on_when_brokers_are_back_that_did_not_answer_in_time(make: Callable[[int], Topics]) -> None:
    topics = make(1)
    with ExitStack() as stack:
        stream = stack.enter_context(topics.stream(topics.group, timeout="2s"))
        broker = stream._properties["bootstrap.servers"]

        def fence() -> None:
            stack.enter_context(topics.stream(topics.group)).close()
            stream._properties["bootstrap.servers"] = "127.0.0.1:1"

        with pytest.raises(KafkaException):
            produced(stream, topics, until_left=fence)
        with pytest.raises(KafkaException), stream.transaction(0.1):
            pass
        stream._properties["bootstrap.servers"] = broker
        assert drain(stream, topics.output, RECORDS) == [Committed(2), Committed(2), Committed(2), Committed(1)]
    topics.check()


def committed(topics: Topics, offset: int) -> None:
    """Set the offset of the group."""
    client = Consumer(properties_of(topics.url, {"group.id": topics.group}), logger=LOG)
    client.commit(offsets=[TopicPartition(topics.input, 0, offset)], asynchronous=False)
    client.close()


@pytest.mark.fault(50)
def test_a_group_that_is_ahead_of_the_topic_repeats_nothing(make: Callable[[int], Topics]) -> None:
    """A partition that has lost its end is not read from the beginning, which was transformed."""
    topics = make(1)
    committed(topics, 1000)
    with topics.stream() as stream:
        for _ in range(2):
            with pytest.raises(KafkaException, match="out of range"):
                while True:
                    with stream.transaction() as tx:
                        assert not tx.records
    committed(topics, 0)
    with topics.stream() as stream:
        drain(stream, topics.output, RECORDS)
    topics.check()


def test_records_that_a_topic_no_longer_has_are_passed_by(make: Callable[[int], Topics]) -> None:
    topics = make(1)
    committed(topics, 1)
    place = TopicPartition(topics.input, 0, 4)
    client = operator(topics.url)
    client.delete_records([place])[place].result()
    with topics.stream() as stream:
        assert drain(stream, topics.output, RECORDS) == [Committed(2), Committed(1)]
    topics.check()


def produced(stream: KafkaTransactions, topics: Topics, until_left: Callable[[], Any]) -> Any:
    """The first transaction with records; something happens before its block is left."""
    while True:
        with stream.transaction(0.1) as tx:
            for record in tx.records:
                tx.produce(topics.output, transformed(record.value()))
            if tx.records:
                until_left()
        if tx.records:
            return tx


@pytest.mark.slow
@pytest.mark.fault(9)
async def test_a_consumer_that_was_thought_dead_commits_nothing(make: Callable[[int], Topics]) -> None:
    """It has a transactional id of its own: nothing but its group refuses it."""
    topics = await asyncio.to_thread(make, 1)
    child = await topics.child("frozen", 0)
    assert await child.stdout.readline() == b"reading\n"
    child.send_signal(signal.SIGSTOP)

    def take_over() -> None:
        with topics.stream("successor") as stream:
            drain(stream, topics.output, RECORDS)

    await asyncio.to_thread(take_over)
    child.send_signal(signal.SIGCONT)
    told, _ = await child.communicate(b"\n")
    assert told in (b"Aborted\n", b"Recreated\n")
    await asyncio.to_thread(topics.check)


@pytest.mark.fault(9)
def test_a_rebalance_in_the_middle_of_a_batch(make: Callable[[int], Topics]) -> None:
    topics = make(2)
    with topics.stream() as one, ExitStack() as stack:

        def another() -> None:
            joined = stack.enter_context(topics.stream())
            with joined.transaction(0.5) as tx:
                assert tx.records == []  # it has no partition before the first one has left it

        tx = produced(one, topics, another)
        assert isinstance(tx.outcome, Committed | Aborted)
        stack.close()
        drain(one, topics.output, 2 * RECORDS)
    topics.check()


def test_an_exception_leaves_nothing_and_the_records_come_again(make: Callable[[int], Topics]) -> None:
    topics = make(1)

    def fail() -> None:
        stream._producer.flush(10)
        raise ZeroDivisionError

    with topics.stream() as stream:
        with pytest.raises(ZeroDivisionError):
            produced(stream, topics, fail)
        drain(stream, topics.output, RECORDS)
    topics.check()
    raw = [one.value() for one in every_record(topics.url, topics.output, **{"isolation.level": "read_uncommitted"})]
    assert raw.count(b"f(0)") == 2, "the one that was aborted is there too, for who reads what is not committed"


def test_a_record_that_is_refused_aborts_its_transaction(make: Callable[[int], Topics]) -> None:
    """The client's report of a record comes when the transaction is to be committed."""
    topics = make(1)
    with topics.stream() as stream:
        while True:
            with stream.transaction(0.1) as tx:
                for record in tx.records:
                    tx.produce(f"{topics.output}-missing", record.value())
            if tx.records:
                break
        assert isinstance(tx.outcome, Aborted)
        drain(stream, topics.output, RECORDS)
    topics.check()


# ---------------------------------------------------------------- offsets beside the state


class Totals:
    """A SQLite file with what is made of records."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "state.db"
        with closing(sqlite3.connect(self.path)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("CREATE TABLE applied (value TEXT)")

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=10, check_same_thread=False)

    def applied(self) -> list[str]:
        with closing(self.connect()) as connection:
            return [value for (value,) in connection.execute("SELECT value FROM applied ORDER BY rowid")]


@pytest.fixture
def totals(tmp_path: Path) -> Totals:
    return Totals(tmp_path)


def state(topics: Topics, totals: Totals, **options: Any) -> KafkaState:
    options = {"max_records": 2, "session": "10s", "connect": totals.connect, "placeholder": "?", **options}
    return KafkaState(topics.url, topics.input, group=topics.group, **options)


def apply(stream: KafkaState, totals: Totals, until: int, before: Callable[[], Any] = lambda: None) -> list[bool]:
    """Apply records until so many are; whether each transaction with records was committed."""
    committed = []
    while len(totals.applied()) < until:
        with stream.transaction(0.1) as tx:
            for record in tx.records:
                tx.connection.execute("INSERT INTO applied VALUES (?)", [record.value().decode()])
            if tx.records:
                before()
        if tx.records:
            committed.append(tx.is_committed)
            assert len(committed) <= until, "it reads the same records again and again"
    return committed


EVERYTHING = [str(number) for number in range(RECORDS)]


def test_state_and_offsets_go_together(make: Callable[[int], Topics], totals: Totals) -> None:
    topics = make(1)
    with state(topics, totals) as stream:
        assert apply(stream, totals, 4) == [True, True]
    with state(topics, totals) as stream:
        with pytest.raises(ZeroDivisionError):
            apply(stream, totals, 6, lambda: 1 // 0)
        assert apply(stream, totals, RECORDS) == [True, True]
    assert totals.applied() == EVERYTHING


@pytest.mark.fault(50)
def test_a_state_that_is_ahead_of_the_topic_is_not_changed(make: Callable[[int], Topics], totals: Totals) -> None:
    topics = make(1)
    with state(topics, totals) as stream:
        apply(stream, totals, RECORDS)
    with closing(totals.connect()) as connection:
        connection.execute("UPDATE retrysafe_positions SET position = 1000")
        connection.commit()
    with state(topics, totals) as stream:
        for _ in range(2):
            with pytest.raises(KafkaException, match="out of range"):
                apply(stream, totals, RECORDS + 1)
    assert totals.applied() == EVERYTHING


@pytest.mark.fault(9)
def test_a_consumer_that_has_lost_a_partition_changes_nothing(make: Callable[[int], Topics], totals: Totals) -> None:
    """Another owner counts the epoch up, as one does that takes over from a consumer that is thought dead."""
    topics = make(1)

    def taken_over() -> None:
        if not taken:
            stream._connection.rollback()
            taken.append(stream._positions.take(stream._connection, f"{topics.input}/0"))

    taken: list[Any] = []
    with state(topics, totals) as stream:
        while not taken:
            with stream.transaction(0.1) as tx:
                if tx.records:
                    taken_over()
                    tx.connection.execute("INSERT INTO applied VALUES ('zombie')")
        assert not tx.is_committed
    assert totals.applied() == []
    with state(topics, totals) as stream:
        apply(stream, totals, RECORDS)
    assert totals.applied() == EVERYTHING


class Losing:
    """A connection that loses the answer to one commit: after the work, or before it."""

    def __init__(self, connection: sqlite3.Connection, *, made: bool, broken: bool) -> None:
        self._connection, self._made, self._broken = connection, made, broken
        self.armed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def commit(self) -> None:
        if not self.armed or self._made:
            self._connection.commit()
        if self.armed:
            self.armed = False
            if self._broken:
                self._connection.close()
            raise sqlite3.OperationalError("no answer")


@pytest.mark.fault(7)
@pytest.mark.parametrize("broken", [True, False])
@pytest.mark.parametrize("made", [True, False])
def test_the_answer_to_a_commit_is_lost(
    make: Callable[[int], Topics], totals: Totals, made: bool, broken: bool
) -> None:
    topics, opened = make(1), list[Losing]()

    def connect() -> Losing:
        opened.append(Losing(totals.connect(), made=made, broken=broken))
        return opened[-1]

    with state(topics, totals, connect=connect) as stream:
        apply(stream, totals, 2)
        opened[0].armed = True
        with pytest.raises(sqlite3.OperationalError, match="no answer"):
            apply(stream, totals, RECORDS)
        apply(stream, totals, RECORDS)
    assert totals.applied() == EVERYTHING
    assert len(opened) == 1 + broken


def test_connections_that_commit_by_themselves_are_refused(totals: Totals) -> None:
    for options in ({"isolation_level": None}, {}):
        connection = sqlite3.connect(totals.path, **options)  # type: ignore[call-overload]
        with closing(connection):
            if options:
                with pytest.raises(ConfigurationError, match="autocommit"):
                    KafkaState("kafka://127.0.0.1:1", "in", group="g", connect=lambda c=connection: c, placeholder="?")
