"""The fault itself fires its alert: by the metrics that the real libraries, stores and brokers make of it.

Each fault happens to a process whose metrics OpenTelemetry's Prometheus exporter exposes. They are scraped after every
minute, of minutes that pass when the test says so, and promtool judges the series by the rules that
`retrysafe alerts` prints. `test_alerts` has the thresholds.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from contextvars import Context
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import psycopg
import pytest

from retrysafe import InProgress, KeyReused, LeaseLost, ResultUnreadable, RetrysafeError
from retrysafe.admin.sweeper import Sweeper
from retrysafe.claims.encryption import Keyring
from retrysafe.console import Console, Principal
from retrysafe.http.client import Host, Retries
from retrysafe.http.client.httpx import RetryTransport
from retrysafe.messaging import Relay, Subscription
from retrysafe.messaging.brokers.memory.broker import MemoryBroker
from retrysafe.messaging.brokers.memory.publisher import MemoryPublisher
from retrysafe.messaging.brokers.rabbitmq.consumer import RabbitMQConsumer
from retrysafe.observability.alerts import ALERTS
from retrysafe.protocol.events import Event
from retrysafe.protocol.messages import PublishStatus
from tests.conftest import require
from tests.console.visiting import Visitor
from tests.observing.alarmed import USUAL, Process, Says, envelope
from tests.ports import free_port

Fault = Callable[[Process], None]


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    require("prometheus")
    made = Process(tmp_path)
    yield made
    made.close()


def unknown(process: Process) -> None:
    with pytest.raises(ConnectionError), process.boundary("payments", effects="external").claim("k"):
        raise ConnectionError
    process.usual(1)


def not_stored(process: Process) -> None:
    """Another writer keeps the file for longer than the lease."""
    over, file = threading.Event(), process.folder / "locked.db"

    def ends(event: Event) -> None:
        if event.name == "result_not_stored":
            over.set()

    boundary = process.boundary("payments", f"sqlite:///{file}?busy=0.02s", ends, lease="1s")
    process.work("migrates", boundary)
    with closing(sqlite3.connect(file, isolation_level=None, check_same_thread=False)) as other:
        with suppress(RetrysafeError), boundary.claim("k") as claim:
            claim.result = 1
            other.execute("BEGIN IMMEDIATE")
        assert over.wait(60)
        other.rollback()
    process.usual(1)


def lease_lost(process: Process) -> None:
    boundary = process.boundary("payments")
    with pytest.raises(LeaseLost), boundary.claim("k"):
        process.sql("UPDATE retrysafe_records SET token = token + 1, attempt = 'another' WHERE state = 'running'")
    process.usual(1)


def runs_stranded(process: Process) -> None:
    """The caller of work in steps has gone."""
    boundary = process.boundary("trips", effects="keyed")
    with pytest.raises(TimeoutError), boundary.claim("k") as claim:
        claim.step("charge", str)
        raise TimeoutError
    process.sql("UPDATE retrysafe_records SET updated = updated - 3601000000 WHERE state = 'released'")
    Sweeper(process.url, observers=[process.observer]).run_once()
    process.usual(10)


def store_failing(process: Process) -> None:
    """The tables are gone, as after a restore of the wrong backup."""
    file = process.folder / "restored.db"
    boundary = process.boundary("payments", f"sqlite:///{file}")
    process.work("migrates", boundary)
    with closing(sqlite3.connect(file)) as db, db:
        db.execute("DROP TABLE retrysafe_records")

    def claim(number: int) -> None:
        with pytest.raises(Exception, match="retrysafe_records"):
            process.work(f"k{number}", boundary)

    process.repeat(12, claim)


def store_slow(process: Process) -> None:
    """A claim waits for a lock for longer than a second, once in four minutes; there are no others."""
    url = process.postgresql()
    boundary = process.boundary("payments", f"{url}?options={quote('-clock_timeout=1100')}")
    process.work("migrates", boundary)
    with psycopg.connect(url) as locking:
        locking.execute("LOCK TABLE retrysafe_records")

        def claim(number: int) -> None:
            if number % 4 == 0:
                with pytest.raises(RetrysafeError):
                    process.work(f"k{number}", boundary)

        process.repeat(16, claim)


def unreadable(process: Process) -> None:
    """A key of the keyring was removed too early."""
    process.work("k", process.boundary("payments", encryption=Keyring({"old": Keyring.generate()})))
    after = process.boundary("payments", encryption=Keyring({"new": Keyring.generate()}))
    with pytest.raises(ResultUnreadable):
        process.work("k", after)
    process.usual(1)


def keys_reused(process: Process) -> None:
    process.work("k", payload=1)

    def claim(number: int) -> None:
        for other in range(5):
            with pytest.raises(KeyReused):
                process.work("k", payload=f"{number}-{other}")

    process.repeat(25, claim)


def retry_storm(process: Process) -> None:
    boundary = process.boundary("payments", "memory://")
    process.repeat(24, lambda number: [process.work("k", boundary) for _ in range(100)])


def conflicts(process: Process) -> None:
    boundary = process.boundary("payments", "memory://")

    def claim(number: int) -> None:
        for _ in range(8):
            with pytest.raises(InProgress):
                Context().run(process.work, "k", boundary)

    with boundary.claim("k") as claimed:
        process.repeat(25, claim)
        claimed.result = 1


def new_keys_jump(process: Process) -> None:
    """A client begins to make a new key for each attempt."""
    boundary = process.boundary("payments", "memory://")

    def claim(minute: int) -> None:
        for number in range(100 if minute >= 40 else 10):
            process.work(f"{minute}-{number}", boundary)

    process.repeat(60, claim)


def weak_setting(process: Process) -> None:
    url = f"{process.postgresql()}?options={quote('-csynchronous_commit=off')}"
    process.work("k", process.boundary("payments", url))
    process.usual(1)


def doctor_findings(process: Process) -> None:
    process.sql("DROP INDEX retrysafe_records_tombstone")
    examine(process)
    process.usual(1)


def examine(process: Process) -> None:
    """Load the page of the doctor, which tells observers what it has found."""
    store = f"sqlite:///{process.file}"  # it would find the process's own synchronous=NORMAL
    console = Console(store, access=lambda request: Principal("ada"), observers=[process.observer])

    async def load() -> int:
        visitor = Visitor(console)
        page = await visitor.get("/doctor")
        await visitor.close()
        return page.status

    assert asyncio.run(load()) == 200
    console.close()


def outbox_late(process: Process) -> None:
    """No relay runs."""
    process.write("orders")

    def pass_a_minute(number: int) -> None:
        process.sql("UPDATE retrysafe_outbox SET created = created - 60000000")
        process.report()

    process.repeat(8, pass_a_minute)


def outbox_deep(process: Process) -> None:
    """A topic is paused, and written to all the same."""
    process.write(*["orders"] * 10_001)
    process.repeat(12, lambda number: process.report())


def relay_failing(process: Process) -> None:
    """The tables of the outbox are gone; a failure a minute."""
    relays, ended = list[Relay](), process.minutes + 6

    def minute(event: Event) -> None:
        if event.name == "relay_failed":
            process.minute()
            if process.minutes == ended:
                relays[0].stop()

    process.sql("DROP TABLE retrysafe_outbox")
    relays.append(Relay(process.url, MemoryPublisher(), observers=[process.observer, minute]))
    relays[0].run_forever()
    process.repeat(6, lambda number: None)


def destination_stalled(process: Process) -> None:
    """A queue is full; a probe a minute."""
    process.write("orders")

    def probe(number: int) -> None:
        process.sql("UPDATE retrysafe_outbox_attempts SET not_before = 0")
        process.relay(Says(PublishStatus.STALLED))

    process.repeat(20, probe)


def given_up(process: Process) -> None:
    process.write("orders")
    process.relay(Says(PublishStatus.REJECTED))
    process.usual(1)


def dead_letter(process: Process) -> None:
    """A handler fails."""

    @process.inbox.handler("mails", max_attempts=1)
    def mail(message: Any) -> None:
        raise ValueError

    mail.handle(envelope(0))
    process.usual(1)


def consumer_failing(process: Process) -> None:
    """Nothing listens where the broker was; a failure a minute."""
    ended = process.minutes + 8

    async def consume() -> None:
        def minute(event: Event) -> None:
            if event.name == "consumer_failed":
                process.minute()
                if process.minutes == ended:
                    subscription.stop()

        inbox = process.consumes(minute)
        consumer = RabbitMQConsumer(f"amqp://127.0.0.1:{free_port()}/", "orders", redelivery_window="1h")
        subscription = Subscription(consumer, inbox.handler("mails")(lambda message: None))
        async with asyncio.timeout(120):
            await subscription.arun_forever()

    asyncio.run(consume())
    process.repeat(4, lambda number: None)


def consumer_behind(process: Process) -> None:
    """More is published than handled."""
    broker = MemoryBroker()
    broker.put([envelope(number) for number in range(1_001)])
    told = asyncio.Event()

    async def consume() -> None:
        inbox = process.consumes(lambda event: told.set() if event.name == "consumer_lag" else None)

        @inbox.handler("mails")
        async def mail(message: Any) -> None:
            await told.wait()

        async with asyncio.timeout(60), Subscription(broker.consumer("orders"), mail, lanes=1, in_flight=1):
            await told.wait()

    asyncio.run(consume())
    process.repeat(17, lambda number: None)


def webhooks_refused(process: Process) -> None:
    """The provider has another secret than we have."""

    def receive(minute: int) -> None:
        for number in range(5):
            assert process.receive(f"bad_{minute}-{number}", secret="whsec_" + "QUJD" * 8) == 400

    process.repeat(25, receive)


def client_gives_up(process: Process) -> None:
    """The other service is away."""
    origin = f"http://127.0.0.1:{free_port()}"
    calls = Retries(hosts=[Host(origin, retention="24h")], max_attempts=2, base="1ms", observers=[process.observer])

    def call(number: int) -> None:
        for _ in range(3):
            with pytest.raises(httpx.ConnectError):
                client.post(origin, content=b"{}")

    with httpx.Client(transport=RetryTransport(calls)) as client:
        process.repeat(25, call)


FAULTS: dict[Fault, str] = {
    unknown: "RetrysafeOutcomesUnknown",
    not_stored: "RetrysafeResultsNotStored",
    lease_lost: "RetrysafeLeasesLost",
    runs_stranded: "RetrysafeRunsStranded",
    store_failing: "RetrysafeStoreFailing",
    store_slow: "RetrysafeStoreSlow",
    unreadable: "RetrysafeResultsUnreadable",
    keys_reused: "RetrysafeKeysReused",
    retry_storm: "RetrysafeRetryStorm",
    conflicts: "RetrysafeConflictsMany",
    new_keys_jump: "RetrysafeNewKeysJump",
    weak_setting: "RetrysafeSettingsWeak",
    doctor_findings: "RetrysafeDoctorFindings",
    outbox_late: "RetrysafeOutboxLate",
    outbox_deep: "RetrysafeOutboxDeep",
    relay_failing: "RetrysafeRelayFailing",
    destination_stalled: "RetrysafeDestinationStalled",
    given_up: "RetrysafeMessagesGivenUp",
    dead_letter: "RetrysafeDeadLetters",
    consumer_failing: "RetrysafeConsumerFailing",
    consumer_behind: "RetrysafeConsumerBehind",
    webhooks_refused: "RetrysafeWebhooksRefused",
    client_gives_up: "RetrysafeClientGivesUp",
}
BESIDE: dict[Fault, set[str]] = {
    store_slow: {"RetrysafeStoreFailing"},
}
"""The other alerts that are true then."""


def test_every_alert_has_a_fault_that_happens() -> None:
    assert {*FAULTS.values()} == {alert.name for alert in ALERTS}


@pytest.mark.one_of("a fault fires its alert and no other", of=3)
@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_fires_its_alert_and_no_other(process: Process, fault: Fault) -> None:
    process.usual(USUAL)
    fault(process)
    before, after = process.firing(USUAL - 1, process.minutes - 1)
    assert before == set()
    assert after == {FAULTS[fault]} | BESIDE.get(fault, set())


@pytest.mark.slow
def test_usual_work_fires_nothing(process: Process) -> None:
    """More than an hour of it, which some conditions look back."""
    examine(process)
    process.usual(75)
    minutes = range(5, 75, 5)
    assert process.firing(*minutes) == [set()] * len(minutes)
