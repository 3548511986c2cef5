"""Publishers for event loops publish from sync code, by a thread with a loop of its own."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest

from retrysafe.errors import ConfigurationError
from retrysafe.messaging import Message, Outbox, PublishResult, PublishStatus, Relay, SyncPublisher
from retrysafe.messaging.brokers import sync_publisher
from retrysafe.messaging.brokers.memory import AsyncMemoryPublisher
from retrysafe.messaging.brokers.registry import broker_at, specs
from retrysafe.protocol.messages import Envelope
from tests.conftest import require
from tests.messaging.harnesses import BY_FOLDER, HARNESSES
from tests.messaging.harnesses.base import Place
from tests.operating.conftest import surroundings

TOPIC, GROUP = "orders", "inventory"
WITHOUT_SYNC = [
    harness.name
    for spec in specs()
    if not spec.async_publisher
    for harness in BY_FOLDER[spec.name]
    if harness.left is not None
]
ENVELOPE = Envelope("01-1", TOPIC, "A", "placed.v1", "/shop", None, {}, b"1", "application/json")


def write(store: str, count: int) -> None:
    """Messages in an outbox on SQLite."""
    outbox = Outbox(store, source="/shop")
    with sqlite3.connect(store.removeprefix("sqlite:///")) as file:
        outbox.add_many(file, [Message(TOPIC, n, key=str(n % 3)) for n in range(count)])


@pytest.mark.slow
@pytest.mark.parametrize("kind", WITHOUT_SYNC)
def test_a_sync_relay_publishes_to_brokers_whose_publishers_are_async(kind: str, tmp_path: Path) -> None:
    harness, store = HARNESSES[kind], f"sqlite:///{tmp_path / 'shop.db'}"
    require(kind)
    url, name = harness.url(tmp_path), f"sync-{uuid4().hex[:12]}"
    broker = broker_at(url, name=name, partitions=2)
    asyncio.run(broker.declare([TOPIC], [GROUP]))
    publisher = SyncPublisher(broker.publisher)
    relay = Relay(store, publisher)
    write(store, 12)
    assert relay.run_once() == (12, 0, 0)
    write(store, 3)
    assert relay.run_once() == (3, 0, 0), "on the same connection"
    publisher.close()

    async def consumed() -> list[int]:
        consumer = broker.consumer(TOPIC, GROUP)
        found: list[int] = []
        while len(found) < 15:
            some = await consumer.receive(15, 30)
            assert some, found
            await consumer.ack(some)
            found += [int(one.envelope.payload) for one in some]
        await consumer.aclose()
        return found

    found = asyncio.run(consumed())
    assert sorted(found) == sorted([*range(12), *range(3)])
    assert harness.remove is not None
    asyncio.run(harness.remove(Place(url, name, TOPIC, GROUP, 2)))


PROJECT = """
import sys
import django
from django.conf import settings

tables = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.db"}}
settings.configure(DATABASES=tables, INSTALLED_APPS=["retrysafe.django"])
django.setup()

from django.core.management import call_command
from django.db import connection, transaction
from retrysafe.cli import main
from retrysafe.messaging import Outbox

call_command("migrate", verbosity=0)
outbox = Outbox("default", source="/shop")
with transaction.atomic():
    outbox.add(connection, "orders", 1, key="A")
sys.exit(main(["relay", "--store", "default", "--once", *sys.argv[1:]]))
"""


@pytest.mark.slow
def test_the_command_publishes_from_a_store_for_sync_code(tmp_path: Path) -> None:
    """Django's connections are sync, and NATS has no client for sync code."""
    require("nats")
    url, name = os.environ["RETRYSAFE_TEST_NATS"], f"sync-{uuid4().hex[:12]}"
    broker = broker_at(url, name=name, partitions=2)
    asyncio.run(broker.declare([TOPIC], [GROUP]))
    asked = ["--broker", url, "--prefix", f"{name}.", "--partitions", "2"]
    done = subprocess.run(
        [sys.executable, "-c", PROJECT, *asked],
        cwd=tmp_path,
        env=surroundings(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "published 1, delayed 0, dead letters 0\n"), done.stderr
    assert HARNESSES["nats"].remove is not None
    asyncio.run(HARNESSES["nats"].remove(Place(url, name, TOPIC, GROUP, 2)))


@pytest.mark.slow
def test_a_forked_process_has_a_publisher_of_its_own() -> None:
    made: list[AsyncMemoryPublisher] = []

    def make() -> AsyncMemoryPublisher:
        made.append(AsyncMemoryPublisher())
        return made[-1]

    publisher = SyncPublisher(make)
    assert publisher.publish([ENVELOPE]) == [PublishResult(PublishStatus.ACKED)]
    child = os.fork()
    if not child:
        said = publisher.publish([ENVELOPE])
        publisher.close()
        os._exit(int(said[0].status is not PublishStatus.ACKED or len(made) != 2))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert publisher.publish([ENVELOPE]) == [PublishResult(PublishStatus.ACKED)]
    assert len(made) == 1
    publisher.close()


def test_closing_ends_the_thread_and_what_follows_begins_anew() -> None:
    publisher = SyncPublisher(AsyncMemoryPublisher)
    publisher.close()
    for _ in range(2):
        publisher.publish([ENVELOPE])
        assert "retrysafe-publisher" in {thread.name for thread in threading.enumerate()}
        publisher.close()
        publisher.close()
        assert "retrysafe-publisher" not in {thread.name for thread in threading.enumerate()}


def test_destinations_are_those_of_the_publisher() -> None:
    class Routed(AsyncMemoryPublisher):
        by_topic = False

        def destination(self, envelope: Envelope, /) -> str:
            return f"{envelope.topic}/{envelope.key}"

    routed, plain = SyncPublisher(Routed), SyncPublisher(AsyncMemoryPublisher)
    assert (routed.destination(ENVELOPE), routed.by_topic) == ("orders/A", False)
    assert not any(hasattr(plain, name) for name in ("destination", "by_topic", "another"))


def test_an_exception_of_the_publisher_is_raised() -> None:
    class Failing(AsyncMemoryPublisher):
        async def publish(self, envelopes: Sequence[Envelope], /) -> list[PublishResult]:
            raise ConnectionError(f"{len(envelopes)} messages")

    publisher = SyncPublisher(Failing)
    with pytest.raises(ConnectionError, match="1 messages"):
        publisher.publish([ENVELOPE])
    publisher.close()


class Publishing(AsyncMemoryPublisher):
    """Publishes as a test says."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__()
        self.work = work
        self.closed = False

    async def publish(self, envelopes: Sequence[Envelope], /) -> list[PublishResult]:
        found = self.work()
        if asyncio.iscoroutine(found):
            await found
        return [PublishResult(PublishStatus.ACKED)]

    async def aclose(self) -> None:
        self.closed = True


def test_closing_ends_what_another_thread_publishes() -> None:
    """It waited for ever for the result, on a loop that did not run any more."""
    begun = threading.Event()

    async def never() -> None:
        begun.set()
        await asyncio.Event().wait()

    publisher = SyncPublisher(lambda: Publishing(never))
    with ThreadPoolExecutor(1) as other:
        publishing = other.submit(publisher.publish, [ENVELOPE])
        assert begun.wait(30)
        publisher.close()
        with pytest.raises(ConnectionError, match="closed meanwhile"):
            publishing.result(30)


def test_closing_ends_what_does_not_let_itself_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its caller waited for ever: the loop was closed, and its task destroyed."""
    monkeypatch.setattr(sync_publisher, "_PATIENCE", 0.2)
    begun = threading.Event()

    async def never() -> None:
        begun.set()
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    publisher = SyncPublisher(lambda: Publishing(never))
    publishing: Future[object] = Future()

    def publish() -> None:
        try:
            publishing.set_result(publisher.publish([ENVELOPE]))
        except BaseException as error:  # noqa: BLE001 - it is looked at below
            publishing.set_exception(error)

    threading.Thread(target=publish, daemon=True).start()
    assert begun.wait(30)
    publisher.close()
    with pytest.raises(ConnectionError, match="closed meanwhile"):
        publishing.result(10)


def test_closing_leaves_a_broker_that_does_not_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_publisher, "_PATIENCE", 0.2)

    async def at_once() -> None: ...

    class Holding(Publishing):
        async def aclose(self) -> None:
            await asyncio.Event().wait()

    publisher = SyncPublisher(lambda: Holding(at_once))
    before = {*threading.enumerate()}
    publisher.publish([ENVELOPE])
    (thread,) = {*threading.enumerate()} - before
    publisher.close()
    thread.join(30)
    assert not thread.is_alive()


def test_threads_that_begin_together_have_one_publisher() -> None:
    """Each made its own, and the connections of all but one were never closed."""
    together, inside, made = threading.Barrier(4), threading.Barrier(2), list[Publishing]()

    def make() -> Publishing:
        with suppress(threading.BrokenBarrierError):
            inside.wait(0.5)  # for a second thread, which must not come
        made.append(Publishing(lambda: None))
        return made[-1]

    publisher = SyncPublisher(make)

    def publish() -> None:
        together.wait(30)
        publisher.publish([ENVELOPE])

    with ThreadPoolExecutor(4) as threads:
        for one in [threads.submit(publish) for _ in range(4)]:
            one.result(30)
    publisher.close()
    assert [one.closed for one in made] == [True]


def test_a_thread_that_cannot_start_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next message waited for ever for it."""
    publisher = SyncPublisher(AsyncMemoryPublisher)

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        with pytest.raises(RuntimeError, match="can't start"):
            publisher.publish([ENVELOPE])
    assert publisher.publish([ENVELOPE]) == [PublishResult(PublishStatus.ACKED)]
    publisher.close()


def test_it_does_not_wait_for_itself() -> None:
    """Called on its own loop, it would hold the loop that it waits for."""
    publisher = SyncPublisher(lambda: Publishing(lambda: publisher.publish([ENVELOPE])))
    with pytest.raises(ConfigurationError, match="wait for itself"):
        publisher.publish([ENVELOPE])
    publisher.close()
