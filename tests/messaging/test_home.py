"""Consumers and publishers belong to the process and the event loop that use them, and say so elsewhere."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from retrysafe import Boundary
from retrysafe.backends.registry import connect
from retrysafe.errors import ConfigurationError
from retrysafe.messaging import BrokerUnavailable, Inbox, InboxMessage, Message, Subscription
from retrysafe.messaging.brokers.consumer import BrokerConsumer, ConsumerSession
from retrysafe.messaging.brokers.memory import MemoryBroker
from retrysafe.messaging.brokers.publisher import BrokerPublisher
from retrysafe.messaging.brokers.sqlite import SqliteConsumer, SqlitePublisher, declare
from retrysafe.protocol.messages import Delivery, Envelope, PublishResult, PublishStatus
from tests.conftest import served
from tests.messaging.elsewhere import GROUP, TOPIC, envelope
from tests.messaging.harnesses import HARNESSES
from tests.messaging.harnesses.base import Place as At
from tests.messaging.harnesses.webhook import SECRET
from tests.messaging.test_operating import Place
from tests.processes import ROOT, environment
from tests.tables import each_row

BY_URL = [name for name, harness in HARNESSES.items() if harness.left is not None]
PUBLISH_ANYWHERE = ("sqlite", "kafka")
CRASHES = "pubsub"
"""A child of a process with channels of gRPC may be ended by that library, whatever we do."""


async def steps(kind: str, mode: str, request: pytest.FixtureRequest) -> list[tuple[str, Any]]:
    """Return the report of each step of a mode of `tests.messaging.elsewhere`."""
    harness = HARNESSES[kind]
    served(request, harness.service)
    assert harness.remove is not None
    at = At(harness.url(request.getfixturevalue("tmp_path")), f"tests-{uuid4().hex}", TOPIC, GROUP, 1)
    command = [sys.executable, "-m", "tests.messaging.elsewhere", mode, at.url, at.name]
    try:
        done = await asyncio.to_thread(
            subprocess.run,
            command,
            capture_output=True,
            text=True,
            timeout=120,
            cwd=ROOT,
            env=environment(),
            check=False,
        )
    finally:
        await harness.remove(at)
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("kind", BY_URL)
async def test_loops_after_one_another(kind: str, request: pytest.FixtureRequest) -> None:
    """As a job that calls asyncio.run again and again: clients failed in ways that named no cause, or hung."""
    said = await steps(kind, "loops", request)
    (elsewhere,) = [found for what, found in said if what == "elsewhere"]
    assert said == [
        *([("published", ["acked"])] * 3),
        ("closed", ["m0"]),
        ("left open", ["m1"]),
        ("elsewhere", elsewhere),
        *([("aclose", [])] * 2),
        ("threads", []),
    ]
    assert "another event loop" in elsewhere


@pytest.mark.slow
@pytest.mark.parametrize("kind", BY_URL)
async def test_closed_clients_begin_anew_on_the_same_event_loop_and_on_the_next(
    kind: str, request: pytest.FixtureRequest
) -> None:
    """A supervisor runs a subscription again that has ended by an error: three brokers fell silent, one refused."""
    assert await steps(kind, "again", request) == [
        ("closed before its first use", []),
        ("published", ["acked"]),
        ("received", ["m0"]),
        ("closed while it receives", []),
        ("aclose", []),
        ("published again", ["acked"] * 2),
        ("received again", ["m1"]),
        ("settled when closed", []),
        ("lag when closed", []),
        ("received on the next", ["m2"]),
        ("aclose", []),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kind", BY_URL)
async def test_deliveries_from_before_a_close_settle_no_other_message(
    kind: str, request: pytest.FixtureRequest
) -> None:
    """The first message that its consumer received afterwards had the same tag at RabbitMQ and MQTT, and was lost."""
    assert await steps(kind, "before", request) == [
        ("published", ["acked"] * 2),
        ("received", ["m0"]),
        ("received by another", ["m0"]),
        ("received", ["m1"]),
        ("settled", []),
        ("aclose", []),
        ("received by another", ["m1"]),
        ("aclose", []),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in BY_URL if kind != CRASHES])
async def test_a_child_neither_hands_out_nor_publishes_by_what_its_parent_uses(
    kind: str, request: pytest.FixtureRequest
) -> None:
    """It handed out what its parent had received, and wrote to its parent's sockets."""
    said = await steps(kind, "fork", request)
    in_child = {what: found for what, found in said if what.startswith("child")}
    assert said == [
        ("published", ["acked"] * 2),
        ("received", ["m0"]),
        *in_child.items(),
        *([("aclose", [])] * 2),
        ("acked", []),
        ("received", ["m1"]),
        ("published", ["acked"]),
        *([("aclose", [])] * 2),
    ]
    receives, acks, publishes = in_child.values()
    assert "before a fork" in receives
    assert "before a fork" in acks
    assert publishes == ["acked"] if kind in PUBLISH_ANYWHERE else "before a fork" in publishes


class Received(ConsumerSession):
    """A session with one message, without a broker."""

    def __init__(self, lives: list[str], hung_up: asyncio.Event | None = None) -> None:
        super().__init__(1)
        self.lives, self.hung_up, self.hanging_up = lives, hung_up, asyncio.Event()

    async def open(self) -> None:
        assert not self.hanging_up.is_set()
        self.lives.append("begun")
        self._lanes.put(Delivery(envelope("m"), "tag", TOPIC, False))

    async def settle(self, deliveries: Sequence[Delivery]) -> None:
        """Nothing to tell."""

    async def close(self) -> None:
        self.hanging_up.set()
        if self.hung_up is not None:
            await self.hung_up.wait()
        self.lives.append("closed")


class Published:
    """A session that accepts what it is given, without a broker."""

    def __init__(self, published: list[Envelope]) -> None:
        self.published = published

    async def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
        self.published += envelopes
        return [PublishResult(PublishStatus.ACKED)] * len(envelopes)

    async def close(self) -> None:
        """Nothing to hang up."""


def test_a_subscription_ends_when_its_consumer_belongs_elsewhere(tmp_path: Path) -> None:
    """It would fail again and again."""
    store = f"sqlite:///{tmp_path}/stock.db"
    connect(store).migrate()
    inbox = Inbox(Boundary("stock", store=store, effects="keyed", window="1d", observers=()))

    @inbox.handler("stock")
    async def handle(message: InboxMessage[Any]) -> None:
        raise AssertionError

    consumer = BrokerConsumer(lambda: Received([]))
    with asyncio.Runner() as runner:
        runner.run(consumer.receive(1, 0))

        async def forever() -> None:
            async with asyncio.timeout(30):
                await Subscription(consumer, handle).arun_forever()

        with pytest.raises(ConfigurationError, match="another event loop"), asyncio.Runner() as other:
            other.run(forever())
        runner.run(consumer.receive(1, 0))


def test_a_relay_whose_publisher_belongs_elsewhere_publishes_nothing_and_spends_no_attempt(tmp_path: Path) -> None:
    published: list[Envelope] = []
    place, publisher = Place("sqlite", f"sqlite:///{tmp_path}/shop.db"), BrokerPublisher(lambda: Published(published))
    place.write(Message("orders", 1, key="A"))
    relay = place.relay(publisher)
    with asyncio.Runner() as runner:
        runner.run(publisher.publish([]))
        with pytest.raises(BrokerUnavailable, match="another event loop"), asyncio.Runner() as other:
            other.run(relay.arun_once())
    assert published == []
    for _ in range(2):  # its event loop is closed now
        place.write(Message("orders", 1, key="A"))
        asyncio.run(relay.arun_once())
    assert place.sql("SELECT count(*) FROM retrysafe_outbox") == [(0,)]


def test_a_new_beginning_has_nothing_of_before() -> None:
    """Nor does a client of Redis that was given have connections of before."""
    import redis.asyncio

    from retrysafe.messaging.brokers.redis_streams import AsyncRedisStreamsPublisher, RedisStreamsConsumer

    lives: list[list[Envelope]] = []

    def another() -> Published:
        lives.append([])
        return Published(lives[-1])

    publisher = BrokerPublisher(another)
    for _ in range(2):
        asyncio.run(publisher.publish([envelope("m")]))
    assert lives == [[envelope("m")]] * 2
    client = redis.asyncio.Redis.from_url("redis://localhost:1")
    owners: list[Any] = [AsyncRedisStreamsPublisher(client), RedisStreamsConsumer(client, TOPIC, group=GROUP)]
    for owner in owners:
        given, *others = [owner._new_session()._client for _ in range(3)]
        assert given is client
        assert len({id(one.connection_pool) for one in (given, *others)}) == 3


async def receive(consumer: BrokerConsumer[Any]) -> list[str]:
    return [one.envelope.id for one in await consumer.receive(1, 0)]


async def test_a_receive_during_a_close_waits_for_its_end() -> None:
    lives: list[str] = []
    hung_up = asyncio.Event()
    consumer = BrokerConsumer(lambda: Received(lives, hung_up))
    assert await receive(consumer) == ["m"]
    session = consumer._session
    assert session is not None
    closing = [asyncio.create_task(consumer.aclose()) for _ in range(2)]
    await session.hanging_up.wait()
    receiving = asyncio.create_task(receive(consumer))
    await asyncio.sleep(0)
    hung_up.set()
    await asyncio.gather(*closing)
    assert await receiving == ["m"]
    assert lives == ["begun", "closed", "begun"]


async def test_a_begun_close_ends_although_its_caller_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its connection stayed open, and what the broker handed to that reached nobody."""
    monkeypatch.setattr("retrysafe.cancellation.CLOSING", 0.0)
    lives: list[str] = []
    hung_up = asyncio.Event()
    consumer = BrokerConsumer(lambda: Received(lives, hung_up))
    assert await receive(consumer) == ["m"]
    for _ in range(3):
        closing = asyncio.create_task(consumer.aclose())
        for _ in range(6):
            await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
    receiving = asyncio.create_task(receive(consumer))
    for _ in range(3):
        await asyncio.sleep(0)
    assert lives == ["begun"]
    hung_up.set()
    assert await receiving == ["m"]
    assert lives == ["begun", "closed", "begun"]


async def test_a_session_that_cannot_be_opened_or_has_lost_its_connection_is_closed_and_replaced() -> None:
    lives: list[str] = []

    class Failing(Received):
        is_open = property(lambda self: lives.count("begun") > 1)

        async def open(self) -> None:
            assert not self.hanging_up.is_set()
            if len(lives) < 3:
                lives.append("failed")
                raise OSError("nothing is there")
            await super().open()

    consumer = BrokerConsumer(lambda: Failing(lives))
    for _ in range(2):
        with pytest.raises(OSError, match="nothing is there"):
            await consumer.receive(1, 0)
    assert await receive(consumer) == ["m"]
    assert await receive(consumer) == ["m"]
    assert await receive(consumer) == []
    assert lives == ["failed", "closed"] * 2 + ["begun", "closed", "begun"]


def test_a_closing_that_hangs_is_given_up_when_asyncio_run_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retrysafe.cancellation.CLOSING", 0.01)
    ended: list[str] = []

    class Hanging(Received):
        async def close(self) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ended.append("given up")
                raise

    async def main() -> None:
        consumer = BrokerConsumer(lambda: Hanging([]))
        await consumer.receive(1, 0)
        asyncio.create_task(consumer.aclose())  # noqa: RUF006 - nobody waits for it
        for _ in range(3):
            await asyncio.sleep(0)

    asyncio.run(main())
    assert ended == ["given up"]


def test_a_close_cut_off_by_its_event_loop_begins_anew_on_the_next() -> None:
    class Hanging(Published):
        async def close(self) -> None:
            await asyncio.Event().wait()

    publisher, loop = BrokerPublisher(lambda: Hanging([])), asyncio.new_event_loop()

    async def closing() -> None:
        await publisher.publish([envelope("m")])
        asyncio.create_task(publisher.aclose())  # noqa: RUF006 - nobody waits for it
        for _ in range(3):
            await asyncio.sleep(0)

    loop.run_until_complete(closing())
    left = asyncio.all_tasks(loop)
    loop.close()
    assert asyncio.run(publisher.publish([envelope("m")])) == [PublishResult(PublishStatus.ACKED)]
    for task in left:
        task._log_destroy_pending = False  # type: ignore[attr-defined]


@each_row("ends", [True, False])
async def test_a_publish_that_is_under_way_when_its_publisher_is_closed_has_an_answer(
    ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was connecting left its connection open, or ended by a cancellation of which its caller knew nothing."""
    monkeypatch.setattr("retrysafe.messaging.brokers.publisher.GRACE", 60.0 if ends else 0.0)
    steps: list[str] = []
    asked, answers = asyncio.Event(), asyncio.Event()

    class Connecting:
        async def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
            asked.set()
            try:
                await answers.wait()
            finally:
                steps.append("published" if answers.is_set() else "cut off")
            return [PublishResult(PublishStatus.ACKED)] * len(envelopes)

        async def close(self) -> None:
            steps.append("closed")

    publisher = BrokerPublisher(Connecting)
    publishing = asyncio.create_task(publisher.publish([envelope("m"), envelope("n")]))
    await asked.wait()
    closing = asyncio.create_task(publisher.aclose())
    for _ in range(6):
        await asyncio.sleep(0)
    if ends:
        answers.set()
    await closing
    said = [PublishStatus(one.status) for one in await publishing]
    assert said == [PublishStatus.ACKED if ends else PublishStatus.UNKNOWN] * 2
    assert steps == ["published" if ends else "cut off", "closed"]


@pytest.mark.slow
def test_a_child_that_drops_what_it_inherited_disturbs_its_parent_in_nothing() -> None:
    """Clients of brokers that were collected in a child said goodbye by the socket that their parent used."""

    said: list[str] = []

    class Telling(Published):
        def __del__(self) -> None:
            said.append("goodbye")

    publisher = BrokerPublisher(lambda: Telling([]))
    assert asyncio.run(publisher.publish([])) == []
    if (child := os.fork()) == 0:
        del publisher
        gc.collect()
        os._exit(len(said))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    del publisher
    gc.collect()
    assert said == ["goodbye"]


async def test_a_receive_from_memory_ends_when_its_consumer_is_closed() -> None:
    """It took part again, and what came to it later was nobody else's."""
    broker = MemoryBroker()
    consumer, other = broker.consumer(TOPIC), broker.consumer(TOPIC)
    receiving = asyncio.create_task(consumer.receive(1, 600))
    await asyncio.sleep(0)
    await consumer.aclose()
    broker.put([envelope("m")])
    assert await receiving == []
    (found,) = await other.receive(1, 0)
    assert found.envelope == envelope("m")


def test_a_consumer_of_sqlite_is_refused_on_a_second_event_loop_that_is_open(tmp_path: Path) -> None:
    """It was handed out on both, and each renewed what it held."""
    path = tmp_path / "broker.db"
    declare(path, [(TOPIC, "stock")])
    SqlitePublisher(path).publish([envelope("m")])
    consumer = SqliteConsumer(path, "stock")
    with asyncio.Runner() as first, asyncio.Runner() as second:
        (held,) = first.run(consumer.receive(1, 0))
        for use in (consumer.receive(1, 0), consumer.ack([held]), consumer.give_back(held, 0)):
            with pytest.raises(ConfigurationError, match="another event loop"):
                second.run(use)
        second.run(consumer.aclose())
        first.run(consumer.aclose())
        (again,) = second.run(consumer.receive(1, 0))
        second.run(consumer.ack([again]))
        second.run(consumer.aclose())


WEBHOOKS_AND_A_FORK = f"""
import os, signal, threading
import httpx
from retrysafe.messaging.brokers.webhook import WebhookPublisher
from retrysafe.webhooks.delivering import Endpoint
from retrysafe.webhooks.sender import Sender
from tests.messaging.elsewhere import envelope

parent, forked = os.getpid(), threading.Event()

def endpoint(request):
    if request.headers["webhook-id"] == "slow" and os.getpid() == parent:
        forked.wait(60)
    return httpx.Response(204)

def until_acked(name):
    while publisher.publish([envelope(name)])[0].status != "acked":
        pass

client = httpx.Client(transport=httpx.MockTransport(endpoint))
to = {{{TOPIC!r}: Endpoint("https://endpoint.test/hook", {SECRET!r})}}
publisher = WebhookPublisher(Sender(client, max_attempts=1), to, patience="50ms")
until_acked("before")
assert publisher.publish([envelope("slow")])[0].status != "acked"
if (child := os.fork()) == 0:
    signal.alarm(20)
    until_acked("after")
    until_acked("slow")
    publisher.close()
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
forked.set()
until_acked("slow")
publisher.close()
"""


@pytest.mark.slow
def test_a_publisher_of_webhooks_that_was_used_before_a_fork_publishes_in_the_child() -> None:
    """It waited for its parent's threads for ever, and for what they were sending."""
    done = subprocess.run(
        [sys.executable, "-c", WEBHOOKS_AND_A_FORK],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
        env=environment(),
        check=False,
    )
    assert done.stdout == "0\n", done.stderr


def test_cancellations_of_an_event_loop_do_not_cancel_a_webhook_on_the_next() -> None:
    """A call under way ended with its loop; its result was asked for on the next one, and raised."""
    import httpx

    from retrysafe.messaging.brokers.webhook import AsyncWebhookPublisher
    from retrysafe.webhooks.delivering import Endpoint
    from retrysafe.webhooks.sender import AsyncSender

    asked: list[str] = []

    async def endpoint(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope["path"])
        if len(asked) == 1:
            await asyncio.Event().wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    client = httpx.AsyncClient(transport=httpx.ASGITransport(endpoint))
    to = {TOPIC: Endpoint("https://endpoint.test/hook", SECRET)}
    publisher = AsyncWebhookPublisher(AsyncSender(client, max_attempts=1), to, patience="50ms")
    (left,) = asyncio.run(publisher.publish([envelope("m")]))
    assert left.status in (PublishStatus.POSTPONED, PublishStatus.STALLED)
    (said,) = asyncio.run(publisher.publish([envelope("m")]))
    assert said.status is PublishStatus.ACKED, said
