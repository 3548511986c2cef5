"""Debezium's outbox event router on our table, as its page configures it, in Kafka Connect, with an inbox behind."""

from __future__ import annotations

import json
import os
import re
import secrets
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import psycopg
import pytest
from cloudevents.core.bindings import kafka as binding
from cloudevents.core.formats.json import JSONFormat

from retrysafe import Boundary
from retrysafe.backends.registry import connect
from retrysafe.messaging import Inbox, InboxMessage, Outbox, Subscription
from retrysafe.messaging.brokers.kafka import KafkaConsumer, declare
from retrysafe.messaging.brokers.kafka.messages import envelope_from
from retrysafe.protocol.messages import Envelope
from retrysafe.protocol.redelivery_policy import MessageOutcome
from tests.conftest import absent, require
from tests.faults.helpers import ROOT, until
from tests.faults.servers import LogicalCluster, postgresql_programs
from tests.messaging.harnesses.kafka import delete, every_record
from tests.messaging.own_brokers import DebeziumWorker

HEARTBEAT = "__debezium-heartbeat."
PAGE = (ROOT / "docs" / "how-to" / "debezium.md").read_text(encoding="utf-8")
(CONFIG,) = (json.loads(text) for text in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL))
STATEMENTS = [one for text in re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL) for one in text.strip().splitlines()]


class Debezium:
    """A worker with the page's connector on a database with an outbox, and the topic that it publishes to."""

    def __init__(self, worker: DebeziumWorker, server: LogicalCluster) -> None:
        self._worker, self.server = worker, server
        self.kafka, self.topic = os.environ["RETRYSAFE_TEST_KAFKA"], f"debezium-{secrets.token_hex(6)}"
        self._outbox, self.written = Outbox(server.url, source="/shop"), list[Envelope]()
        where = urlsplit(server.url)
        self.config = CONFIG | {
            "database.hostname": where.hostname,
            "database.port": str(where.port),
            "database.user": where.username,
            "database.password": "",
            "database.dbname": where.path.strip("/"),
            "topic.prefix": self.topic,
            "heartbeat.interval.ms": "100",
        }

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Ask Kafka Connect."""
        headers = {"Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"{self._worker.url}{path}", data, headers, method=method)
        try:
            with urlopen(request, timeout=30) as answer:
                return json.loads(answer.read() or b"null")
        except HTTPError as error:
            raise AssertionError(error.read().decode()) from error

    def connect(self) -> None:
        """Give the worker its connector, as after each of its starts."""
        self.ask("PUT", f"/connectors/{self.topic}/config", self.config)

    def kill(self) -> None:
        """SIGKILL the worker, and start another one in its place."""
        self._worker.kill()
        self._worker.start()
        self.connect()

    def note_how_far_it_is(self) -> None:
        """Have it write down its offset now, as it does every minute: that of a heartbeat from now on."""
        beats = len(self.records(HEARTBEAT))
        until(lambda: len(self.records(HEARTBEAT)) > beats + 1)
        for verb, state in (("stop", "STOPPED"), ("resume", "RUNNING")):
            self.ask("PUT", f"/connectors/{self.topic}/{verb}")
            until(
                lambda state=state: self.ask("GET", f"/connectors/{self.topic}/status")["connector"]["state"] == state
            )

    def write(self, *payloads: Any, **terms: Any) -> None:
        """Write messages in a transaction of their own."""
        with psycopg.connect(self.server.url) as tx:
            self.written += [self._outbox.add(tx, self.topic, one, **terms) for one in payloads]

    def write_orders(self, numbers: range) -> None:
        for number in numbers:
            self.write({"n": number}, key=f"customer {number % 5}", sequence=number)

    def roll_back(self) -> None:
        """Write a message that is not committed."""
        with psycopg.connect(self.server.url) as tx:
            self._outbox.add(tx, self.topic, {"n": -1})
            tx.rollback()

    def records(self, prefix: str = "") -> list[Any]:
        return every_record(self.kafka, f"{prefix}{self.topic}")

    def arrived(self) -> list[Envelope]:
        """Return the records as a consumer of ours reads them."""
        return [envelope_from(one.headers() or (), one.key(), one.value(), self.topic) for one in self.records()]

    def until_arrived(self) -> None:
        until(lambda: {one.id for one in self.written} <= {one.id for one in self.arrived()})


@pytest.fixture
def debezium() -> Iterator[Debezium]:
    require("kafka")
    programs = postgresql_programs()
    if programs is None:
        absent("there is no PostgreSQL server to start")
    if not DebeziumWorker.is_installed():
        absent("no Debezium: run scripts/services install debezium")
    port = str(urlsplit(os.environ["RETRYSAFE_TEST_KAFKA"]).port)
    with closing(LogicalCluster(programs)) as server, closing(DebeziumWorker(RETRYSAFE_KAFKA_PORT=port)) as worker:
        with closing(connect(server.url)) as backend:
            backend.migrate()
        with server.admin() as owner:
            owner.execute(STATEMENTS[0].encode())
        made = Debezium(worker, server)
        declare(made.kafka, [made.topic], partitions=3)
        yield made
        delete(made.kafka, made.topic, f"{HEARTBEAT}{made.topic}")


@pytest.mark.slow
@pytest.mark.one_of("slow tests")
async def test_messages_of_debezium_are_whole_and_an_inbox_drops_its_repeats(debezium: Debezium) -> None:
    debezium.write({"n": 0}, key="Zoë", headers={"tenant": "ä", "X-Odd": "1"}, sequence=1 << 40)
    debezium.write(b"\0\xff", b"", key=None, media_type="application/x-bytes")
    debezium.connect()
    debezium.until_arrived()  # earlier messages, too
    debezium.write_orders(range(20))
    debezium.roll_back()
    debezium.until_arrived()
    debezium.note_how_far_it_is()
    first = debezium.arrived()
    assert Counter(one.id for one in first) == Counter(one.id for one in debezium.written)
    assert {one.id: one for one in first} == {one.id: one for one in debezium.written}
    assert all(is_a_cloudevent(one) for one in debezium.records())

    debezium.write_orders(range(20, 40))
    debezium.until_arrived()
    debezium.kill()
    debezium.write_orders(range(40, 50))
    debezium.until_arrived()
    again = len(debezium.records()) - len(debezium.written)
    assert again >= 20  # all since it had written down how far it was

    handled: list[Envelope] = []
    told = await consumed(debezium, handled)
    assert told == {MessageOutcome.HANDLED: len(debezium.written), MessageOutcome.DUPLICATE: again}
    for key in {one.key for one in debezium.written} - {None}:
        assert [one for one in handled if one.key == key] == [one for one in debezium.written if one.key == key]
    assert {one.id for one in handled} == {one.id for one in debezium.written}


def is_a_cloudevent(record: Any) -> bool:
    """Tell whether a stranger's SDK reads it as one."""
    message = binding.KafkaMessage(headers=ce_headers(record), key=record.key(), value=record.value())
    event = binding.from_binary(message, JSONFormat())
    return bool(event.get_id() and event.get_type() and event.get_source() == "/shop")


def ce_headers(record: Any) -> dict[str, bytes]:
    return {name: octets for name, octets in record.headers() if name.startswith("ce_") or name == "content-type"}


async def consumed(debezium: Debezium, handled: list[Envelope]) -> Counter[Any]:
    """Return the outcomes of all messages in the topic."""
    boundary = Boundary("stock", store=debezium.server.url, effects="transactional", window="15d")
    inbox = Inbox(boundary)

    @inbox.handler("stock")
    def handle(message: InboxMessage[Any]) -> None:
        handled.append(message.envelope)

    consumer = KafkaConsumer(debezium.kafka, debezium.topic, group=debezium.topic, session="1s")
    total, told = len(debezium.records()), Counter[Any]()
    while told.total() < total:
        told += await Subscription(consumer, handle).arun_once(wait=5)
    await consumer.aclose()
    boundary.close()
    return told


@pytest.mark.slow
def test_a_slot_that_was_lost_is_mended_from_the_table(debezium: Debezium) -> None:
    debezium.connect()
    debezium.write_orders(range(5))
    debezium.until_arrived()
    debezium.ask("PUT", f"/connectors/{debezium.topic}/stop")
    with debezium.server.admin() as person:
        until(lambda: not person.execute("SELECT 1 FROM pg_replication_slots WHERE active").fetchall())
        person.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
    debezium.write_orders(range(5, 10))
    debezium.ask("PUT", f"/connectors/{debezium.topic}/resume")
    debezium.until_arrived()


@pytest.mark.slow
def test_messages_confirmed_to_the_slot_may_be_removed(debezium: Debezium) -> None:
    _, note, look, has_reached, remove = STATEMENTS
    debezium.connect()
    debezium.write_orders(range(5))
    debezium.until_arrived()
    with debezium.server.admin() as job, psycopg.connect(debezium.server.url) as late:
        debezium._outbox.add(late, debezium.topic, {"n": 5}, key="late")
        job.execute(note.encode())
        ((upto,),) = job.execute(look.encode()).fetchall()
        late.commit()
        reached = re.sub(r"'\d/\w+'", f"'{upto}'", has_reached).encode()
        for _ in range(5):  # its note may be of a heartbeat before that of the last record
            debezium.note_how_far_it_is()
            if job.execute(reached).fetchall() == [(True,)]:
                break
        else:
            pytest.fail("the slot never confirmed what had arrived")
        job.execute(remove.encode())
        left = "SELECT message_key FROM retrysafe_outbox"
        assert job.execute(left).fetchall() == [("late",)]
