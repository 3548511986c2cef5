"""Alerts straight from PostgreSQL: each query has rows when its fault is there, and none of them in a quiet system."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn
from urllib.parse import quote

import psycopg
import pytest

from retrysafe import Boundary
from retrysafe.backends import registry
from retrysafe.cli import main
from retrysafe.messaging import Inbox, InboxMessage, Message, Outbox, Relay
from retrysafe.messaging.brokers.memory.publisher import MemoryPublisher
from retrysafe.messaging.relay.operator import OutboxOperator
from retrysafe.observability.alerts import ALERTS
from retrysafe.observability.postgresql_alerts import QUERIES
from retrysafe.protocol.messages import Envelope, PublishResult, PublishStatus

LATE = "UPDATE retrysafe_outbox SET created = created - 61000000"


class World:
    """A schema of its own with all tables."""

    def __init__(self, server: str) -> None:
        self.schema = f"alerts_{secrets.token_hex(6)}"
        self.db = psycopg.connect(server, autocommit=True)
        self.db.execute(f"CREATE SCHEMA {self.schema}".encode())
        self.db.execute(f"SET search_path = {self.schema}".encode())
        self.url = f"{server}?options={quote(f'-csearch_path={self.schema}')}"
        self.backend = registry.connect(self.url)
        self.backend.migrate()
        self.outbox = Outbox(self.url, source="/shop", observers=())

    def boundary(self, **settings: Any) -> Boundary:
        return Boundary(f"b-{secrets.token_hex(4)}", store=self.url, observers=(), **settings)

    def write(self, *topics: str) -> None:
        with psycopg.connect(self.url) as tx:
            self.outbox.add_many(tx, [Message(topic, 1, "key") for topic in topics])

    def relay(self, publisher: Any, **settings: Any) -> None:
        Relay(self.url, publisher, observers=(), **settings).run_once()

    def alerts(self) -> set[str]:
        """The names of the alerts whose query has rows."""
        return {name for name, sql in QUERIES.items() if self.db.execute(sql.encode()).fetchall()}

    def close(self) -> None:
        self.backend.close()
        self.db.execute(f"DROP SCHEMA {self.schema} CASCADE".encode())
        self.db.close()


@pytest.fixture
def world(postgresql: str) -> Iterator[World]:
    made = World(postgresql)
    yield made
    made.close()


class Says:
    """A publisher that says the same of each message."""

    def __init__(self, status: PublishStatus) -> None:
        self._status = status

    def publish(self, envelopes: Sequence[Envelope], /) -> list[PublishResult]:
        return [PublishResult(self._status, "no")] * len(envelopes)

    def close(self) -> None:
        pass


def unknown(world: World) -> None:
    with pytest.raises(ConnectionError), world.boundary(effects="external").claim("k", operation="pay"):
        raise ConnectionError


def late(world: World) -> None:
    world.write("orders")
    world.db.execute(LATE)


def deep(world: World) -> None:
    world.write("orders")
    columns = "bucket, lane, message_id, topic, message_type, source, created, headers, payload, media_type"
    sql = f"INSERT INTO retrysafe_outbox ({columns}) SELECT {columns} FROM retrysafe_outbox, generate_series(1, 10000)"
    world.db.execute(sql.encode())


def relay_gone(world: World) -> None:
    sql = "INSERT INTO retrysafe_outbox_relays SELECT 'gone', 'lease', n, n FROM "
    world.db.execute(sql + "(SELECT CAST(extract(epoch FROM now() - interval '61 s') * 1000000 AS bigint) AS n) AS t")


def given_up(world: World) -> None:
    world.write("orders")
    world.relay(Says(PublishStatus.REJECTED))


def parked(world: World) -> None:
    world.write("orders")
    world.relay(Says(PublishStatus.REJECTED), on_dead="park")


def dead_letter(world: World) -> None:
    @Inbox(world.boundary(effects="transactional", window="7d")).handler("stock", max_attempts=1)
    def handle(message: InboxMessage[Any]) -> NoReturn:
        raise ValueError

    handle.handle(Envelope("1", "orders", "o-1", "placed.v1", "/shop", None, {}, b"1", "application/json"))


FAULTS: dict[Callable[[World], None], str] = {
    unknown: "RetrysafeOutcomesUnknown",
    late: "RetrysafeOutboxLate",
    deep: "RetrysafeOutboxDeep",
    relay_gone: "RetrysafeRelayFailing",
    given_up: "RetrysafeMessagesGivenUp",
    parked: "RetrysafeMessagesGivenUp",
    dead_letter: "RetrysafeDeadLetters",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_its_fault_fires_an_alert_and_no_other_does(world: World, fault: Callable[[World], None]) -> None:
    assert world.alerts() == set()
    fault(world)
    assert world.alerts() == {FAULTS[fault]}


def test_a_claim_that_waits_for_a_lock_fires(world: World) -> None:
    boundary = world.boundary()
    waiting = threading.Thread(target=lambda: boundary.once(key="of", operation="pay")(lambda of: None)("k"))
    with psycopg.connect(world.url) as locking:
        locking.execute("LOCK TABLE retrysafe_records")
        waiting.start()
        sql = QUERIES["RetrysafeStoreSlow"].encode()
        tries = (world.db.execute(b"SELECT pg_sleep(0.1)") and world.db.execute(sql).fetchall() for _ in range(300))
        assert next(filter(None, tries), None)
    waiting.join()
    assert world.alerts() == set()


def test_every_alert_has_its_fault() -> None:
    assert {*FAULTS.values(), "RetrysafeStoreSlow"} == QUERIES.keys() <= {alert.name for alert in ALERTS}


def test_a_quiet_system_fires_nothing(world: World) -> None:
    with world.boundary().claim("k", operation="pay") as claim:
        claim.result = 1
    world.write("orders", "paused", "delayed")
    with OutboxOperator(world.url, observers=()) as operator:
        operator.pause("paused")
    world.relay(MemoryPublisher())
    world.write("delayed")
    world.relay(Says(PublishStatus.RETRYABLE), backoff_base="1h", backoff_max="1h")
    world.db.execute(LATE)
    world.write("orders")
    assert world.alerts() == set()


def test_the_command_prints_them_as_one_file(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["alerts", "--sql"]) == 0
    printed = capsys.readouterr().out
    assert [line.split()[1] for line in printed.splitlines() if line.startswith("-- Retrysafe")] == [
        alert.name for alert in ALERTS if alert.name in QUERIES
    ]
    world.db.execute(printed.encode())
