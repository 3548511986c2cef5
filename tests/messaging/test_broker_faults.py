"""Relays and publishers on brokers that go away, lose connections at every frame, and run out of disk."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from retrysafe.messaging import BrokerUnavailable, Message
from retrysafe.messaging.relay.relay import Relay
from retrysafe.protocol.messages import Envelope, PublishResult, PublishStatus
from tests.conftest import require
from tests.faults.helpers import Told, auntil
from tests.faults.redis_servers import Server
from tests.messaging.harnesses.base import OnARoad
from tests.messaging.harnesses.kafka import kafka
from tests.messaging.harnesses.rabbitmq import Rabbit, RabbitMQServer, rabbitmq
from tests.messaging.harnesses.redis_streams import redis_streams
from tests.messaging.harnesses.webhook import webhook
from tests.messaging.test_operating import Place
from tests.proving.effort import chance_of, effort
from tests.tables import each_row

MOST_FRAMES = 200
# aio-pika closes a connection that is lost in a task which its __del__ makes, as may be too late
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*Connection.close.*:pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def outbox(tmp_path: Path) -> Place:
    return Place("sqlite", f"sqlite:///{tmp_path}/shop.db")


def relay_of(outbox: Place, publisher: Any, **other: Any) -> Relay:
    options: dict[str, Any] = {"backoff_base": "10ms", "backoff_max": "20ms", "max_attempts": 1_000_000, **other}
    return outbox.relay(publisher, **options)


async def relayed(relay: Relay, outbox: Place) -> None:
    """Relay until nothing is left."""
    async with asyncio.timeout(60):
        while outbox.sql("SELECT 1 FROM retrysafe_outbox LIMIT 1"):
            with suppress(BrokerUnavailable):
                await (
                    relay.arun_once()
                    if asyncio.iscoroutinefunction(relay._publisher.publish)
                    else asyncio.to_thread(relay.run_once)
                )


def check(outbox: Place, arrived: Sequence[Envelope], ids: Sequence[str]) -> None:
    """Nothing is lost, and each key is in order, whatever arrived twice."""
    assert {one.id for one in arrived} == set(ids)
    for key in {one.key for one in arrived}:
        firsts = list(dict.fromkeys(one.id for one in arrived if one.key == key))
        assert firsts == [one for one in ids if one in set(firsts)]


@asynccontextmanager
async def road_to(kind: str) -> AsyncIterator[OnARoad]:
    if kind != "webhook":
        require(kind)
    made = {
        "kafka": kafka,
        "rabbitmq": rabbitmq,
        "redis": lambda: redis_streams(sync=False),
        "webhook": lambda: webhook(sync=False),
    }
    async with made[kind]() as publishing:  # type: ignore[operator]
        yield publishing


@pytest.mark.fault(51)
@pytest.mark.parametrize("moment", ["frame lost", "after the frame"])
@pytest.mark.parametrize("kind", ["kafka", "rabbitmq", "redis", "webhook"])
async def test_the_connection_is_cut_at_every_frame(
    kind: str, moment: Any, outbox: Place, request: pytest.FixtureRequest
) -> None:
    """Of both directions: a message is lost on its way, or its confirmation. `make prove` cuts at every one."""
    async with road_to(kind) as publishing:
        ids: list[str] = []
        arrived: list[Envelope] = []
        relay = relay_of(outbox, publishing.publisher)
        road = publishing.road
        step = effort({"kafka": 4, "rabbitmq": 4, "redis": 2}.get(kind, 1), 1)
        for k in range(chance_of(request.node.name).randint(1, step), MOST_FRAMES, step):
            ids += outbox.write(*(Message(publishing.topic, n, key="AB"[n % 2]) for n in range(3)))
            road.moment, road.cut_at, road.seen = moment, k, 0
            await relayed(relay, outbox)
            uncut = road.cut_at is not None
            road.cut_at = None
            if uncut:
                break
            if kind in ("kafka", "rabbitmq"):
                await publishing.publisher.aclose()  # the handshake has frames too
        else:
            pytest.fail("there were more frames than that")
        assert k > (5 if kind in ("kafka", "rabbitmq") else 3)  # the Redis client sends a batch in few pieces
        arrived += await publishing.arrived()
        check(outbox, arrived, ids)


@pytest.mark.fault(51)
async def test_a_confirm_that_is_lost_is_not_believed(outbox: Place) -> None:
    """The broker has the message, and its word is lost: it goes out again, under the same id."""
    require("redis")
    async with redis_streams(sync=False) as publishing:
        await publishing.publish(publishing.envelope(0))
        publishing.road.moment, publishing.road.cut_at, publishing.road.seen = "frame lost", 2, 0
        said = await publishing.publish(publishing.envelope(1))
        assert [one.status for one in said] == [PublishStatus.UNKNOWN]
        assert [one.id for one in await publishing.arrived()] == [publishing.envelope(n).id for n in (0, 1)]
        assert [one.status for one in await publishing.publish(publishing.envelope(1))] == [PublishStatus.DUPLICATE]


async def test_a_slow_subscriber_keeps_only_its_own_messages(outbox: Place) -> None:
    """It takes its time for every answer; the other topics go on, and its message is not sent twice meanwhile."""
    import threading

    import httpx

    from retrysafe.messaging.brokers.webhook import AsyncWebhookPublisher
    from retrysafe.webhooks.delivering import Endpoint as Signing
    from retrysafe.webhooks.sender import AsyncSender
    from tests.messaging.harnesses.webhook import SECRET, Answers, http_endpoint

    slow, quick = Answers(), Answers()
    slow.gate = threading.Event()
    with http_endpoint(slow) as at_slow, http_endpoint(quick) as at_quick:
        async with httpx.AsyncClient() as client:
            endpoints = {
                "slow": Signing(f"http://127.0.0.1:{at_slow}/", SECRET),
                "quick": Signing(f"http://127.0.0.1:{at_quick}/", SECRET),
            }
            sender = AsyncSender(client, max_attempts=1, timeout="30s", observers=())
            publisher = AsyncWebhookPublisher(sender, endpoints, patience="10ms", concurrency=2)
            messages = [Message(topic, n, key=str(n)) for n in range(6) for topic in endpoints]
            outbox.write(*messages)
            relay = outbox.relay(publisher, backoff_base="10ms", backoff_max="20ms", max_attempts=2)
            async with relay:
                await auntil(lambda: len(quick.arrived) == 6)
                await auntil(lambda: slow.waiting == 2)
                assert slow.arrived == []
                await asyncio.to_thread(outbox.write, Message("quick", "more", key="0"))  # the relay needs the loop
                await auntil(lambda: len(quick.arrived) == 7)
                assert slow.waiting == 2, "no more than at_once, and none twice"
                slow.gate.set()
                await auntil(lambda: not outbox.sql("SELECT 1 FROM retrysafe_outbox"))
            await publisher.aclose()
    assert sorted(one.key or "" for one in slow.arrived) == [str(n) for n in range(6)]
    assert slow.waiting == 6
    assert outbox.sql("SELECT count(*) FROM retrysafe_outbox_dead") == [(0,)]


@each_row(
    ("code", "status"),
    [
        *((status, "retryable") for status in (400, 409, 413, 415, 422, 431, 451)),
        *((status, "stalled") for status in (302, 401, 403, 404, 408, 429, 502, 503, 504)),
        *((200, "acked"), (410, "rejected"), (500, "unknown")),
    ],
)
async def test_an_endpoints_answer_is_judged(code: int, status: str) -> None:
    async with webhook(sync=False) as publishing:
        publishing.answers.statuses.append(code)
        publishing.answers.headers = {"Retry-After": "120"} if code == 429 else {}
        (said,) = await publishing.publish(publishing.envelope(1))
        assert said.status == status
        assert (said.pause >= 120) == (code == 429)
        (unknown,) = await publishing.publish(publishing.envelope(2, headers={"not a name": "x"}))
        assert unknown.status is PublishStatus.REJECTED


# ---------------------------------------------------------------- a broker of our own


@pytest.fixture(scope="module")
def broker() -> Iterator[RabbitMQServer]:
    require("rabbitmq")
    server = RabbitMQServer()
    yield server
    server.close()


def control(broker: RabbitMQServer, *words: str) -> None:
    """An operator's command."""
    home = Path(broker._directory.name) / "rabbitmq"
    environment = {
        **os.environ,
        "HOME": str(home),
        "ERL_EPMD_PORT": str(broker.port + 1),
        "RABBITMQ_NODENAME": f"retrysafe{broker.port}@localhost",
    }
    command = ["/usr/lib/rabbitmq/bin/rabbitmqctl", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


class Mortal:
    """A broker of our own that goes away: stopped in order, or killed where it survives that."""

    def __init__(self, kind: str, rabbit: Any) -> None:
        self.kind = kind
        self.server: Any = rabbit if kind == "rabbitmq" else Server("--appendonly", "yes", "--appendfsync", "always")

    def publishing(self) -> Any:
        return rabbitmq(self.server.url) if self.kind == "rabbitmq" else redis_streams(self.server.url, sync=False)

    def end(self) -> None:
        """RabbitMQ 3.10 forgets a quorum queue that was declared minutes before a SIGKILL."""
        (self.server.stop if self.kind == "rabbitmq" else self.server.kill)()

    async def arrived(self, publishing: Any) -> Sequence[Envelope]:
        if self.kind == "rabbitmq":
            return await drained(self.server, publishing)
        return await publishing.arrived()  # type: ignore[no-any-return]

    def close(self) -> None:
        if self.kind == "redis":
            self.server.close()


@pytest.fixture(params=["rabbitmq", "redis"])
def mortal(request: pytest.FixtureRequest) -> Iterator[Mortal]:
    require(request.param)
    made = Mortal(request.param, request.getfixturevalue("broker") if request.param == "rabbitmq" else None)
    yield made
    made.close()


@pytest.mark.fault(51)
async def test_a_broker_goes_away_under_load_and_comes_back(mortal: Mortal, outbox: Place) -> None:
    """Messages are written all the while, and lose no attempt; they leave when it is back, each key in order.

    `make prove`: for a minute.
    """
    ids: list[str] = []
    over = asyncio.Event()

    async def load(topic: str) -> None:
        while not over.is_set():
            messages = [Message(topic, n, key=str(n % 5)) for n in range(5)]
            ids.extend(await asyncio.to_thread(outbox.write, *messages))
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), 0.1)

    async with mortal.publishing() as publishing:
        await publishing.publisher.aclose() if mortal.kind == "rabbitmq" else None
        told = Told()
        async with relay_of(outbox, publishing.publisher, max_attempts=5, observers=[told]):
            loading = asyncio.create_task(load(publishing.topic))
            await auntil(lambda: len(outbox.sql("SELECT 1 FROM retrysafe_outbox")) < len(ids))
            await asyncio.to_thread(mortal.end)
            await auntil(lambda: told.names["relay_failed"] > 6)
            await asyncio.sleep(effort(0, 60))  # its absence is the subject
            await asyncio.to_thread(mortal.server.start)
            written = len(ids)
            await auntil(lambda: len(ids) > written + 20)
            over.set()
            await loading
            await auntil(lambda: not outbox.sql("SELECT 1 FROM retrysafe_outbox"), 300)
        assert outbox.sql("SELECT 1 FROM retrysafe_outbox_dead") == []
        check(outbox, await mortal.arrived(publishing), ids)


async def drained(broker: RabbitMQServer, publishing: Rabbit) -> Sequence[Envelope]:
    """Return the messages that arrived, over a connection that was made after it all."""
    import aio_pika

    async with await aio_pika.connect(broker.url) as connection:
        queue = await (await connection.channel()).get_queue(publishing.topic)

        async def look() -> Any:
            return await queue.get(fail=False, no_ack=True)

        publishing.look = look
        return await publishing.arrived()


@asynccontextmanager
async def queues(broker: RabbitMQServer, *names: str, **arguments: Any) -> AsyncIterator[Any]:
    """Quorum queues of these names, each with these arguments, and a look at what arrives in each."""
    import aio_pika

    async with await aio_pika.connect(broker.url) as connection:
        channel = await connection.channel()
        declared = {
            name: await channel.declare_queue(
                name, durable=True, arguments={"x-queue-type": "quorum", **arguments.get(name, {})}
            )
            for name in names
        }

        async def taken(name: str) -> list[str]:
            found = []
            while (message := await declared[name].get(fail=False, no_ack=True)) is not None:
                found.append(message.message_id or "")
            return found

        yield taken
    async with await aio_pika.connect(broker.url) as connection:
        channel = await connection.channel()
        for name in names:
            await channel.queue_delete(name)


@pytest.mark.one_of("queues that take no more", of=2)
async def test_a_full_queue_gives_nothing_up_and_nothing_overtakes(broker: RabbitMQServer, outbox: Place) -> None:
    """`reject-publish`: whatever did not fit leaves when there is room, and what was written later leaves later."""
    from retrysafe.messaging.brokers.rabbitmq.publisher import RabbitMQPublisher

    bounds = {"full": {"x-max-length": 10, "x-overflow": "reject-publish"}}
    async with queues(broker, "full", "well", **bounds) as taken:
        publisher = RabbitMQPublisher(broker.url)
        relay = relay_of(outbox, publisher, max_attempts=1)
        first = outbox.write(*(Message("full", n, key=str(n)) for n in range(30)))
        others = outbox.write(*(Message("well", n, key=str(n)) for n in range(5)))
        for _ in range(3):
            await relay.arun_once()
        assert sorted(await taken("well")) == sorted(others)
        assert outbox.sql("SELECT count(*) FROM retrysafe_outbox_dead") == [(0,)]
        second = outbox.write(*(Message("full", n, key=str(n)) for n in range(30)))
        arrived: list[str] = []
        async with asyncio.timeout(60):
            while outbox.sql("SELECT 1 FROM retrysafe_outbox"):
                arrived += await taken("full")
                await relay.arun_once()
        arrived += await taken("full")
        assert set(arrived) == {*first, *second}
        assert all(arrived.index(one) < arrived.index(other) for one, other in zip(first, second, strict=True))
        await publisher.aclose()


@pytest.mark.one_of("queues that take no more", of=2)
async def test_refusals_of_a_full_queue_are_the_same_for_every_message(broker: RabbitMQServer) -> None:
    from retrysafe.messaging.brokers.rabbitmq.publisher import RabbitMQPublisher

    bounds = {"full": {"x-max-length": 1, "x-overflow": "reject-publish"}}
    async with queues(broker, "full", **bounds), rabbitmq(broker.url) as publishing:
        publisher = RabbitMQPublisher(broker.url)
        said = [(await publisher.publish([publishing.envelope(n, topic="full")]))[0] for n in range(8)]
        await publisher.aclose()
    refused = [one for one in said if one.status is not PublishStatus.ACKED]
    assert len(refused) >= 5
    assert {one.status for one in refused} == {PublishStatus.STALLED}
    assert len(set(refused)) == 1


@pytest.mark.one_of("queues that take no more", of=2)
async def test_a_message_over_the_brokers_limit_is_refused_alone(broker: RabbitMQServer) -> None:
    """RabbitMQ closes the channel for it, and tells nothing of those that were under way beside it."""
    limit = "application:set_env(rabbit, max_message_size, {})."
    await asyncio.to_thread(control, broker, "eval", limit.format(1000))
    try:
        async with rabbitmq(broker.url) as publishing:
            envelopes = [publishing.envelope(n, payload=b"x" * (5000 if n in (2, 5) else 5)) for n in range(8)]
            said = await publishing.publish(*envelopes)
            assert [n for n, one in enumerate(said) if one.status is PublishStatus.REJECTED] == [2, 5]
            assert {one.status for n, one in enumerate(said) if n not in (2, 5)} == {PublishStatus.ACKED}
            arrived = await publishing.arrived()
            assert {one.id for one in arrived} == {one.id for n, one in enumerate(envelopes) if n not in (2, 5)}
    finally:
        await asyncio.to_thread(control, broker, "eval", limit.format(134217728))


@pytest.mark.one_of("queues that take no more", of=2)
async def test_an_exchange_that_is_removed_stalls_and_blames_no_message(broker: RabbitMQServer) -> None:
    import aio_pika

    from retrysafe.messaging.brokers.rabbitmq.publisher import RabbitMQPublisher

    publisher = RabbitMQPublisher(broker.url, exchange="events")
    async with rabbitmq(broker.url) as publishing, await aio_pika.connect(broker.url) as connection:
        channel = await connection.channel()

        async def declared() -> None:
            exchange = await channel.declare_exchange("events", aio_pika.ExchangeType.TOPIC)
            await (await channel.get_queue(publishing.topic)).bind(exchange, publishing.topic)

        (missing,) = await publisher.publish([publishing.envelope(0)])
        await declared()
        (before,) = await publisher.publish([publishing.envelope(1)])
        await channel.exchange_delete("events")
        removed = await publisher.publish([publishing.envelope(n) for n in (2, 3)])
        (still,) = await publisher.publish([publishing.envelope(4)])
        await declared()
        (after,) = await publisher.publish([publishing.envelope(5)])
    await publisher.aclose()
    assert [one.status for one in (missing, before, still, after)] == ["stalled", "acked", "stalled", "acked"]
    assert {one.status for one in removed} <= {PublishStatus.STALLED, PublishStatus.UNKNOWN}


@pytest.mark.one_of("queues that take no more", of=2)
async def test_a_queue_that_does_not_confirm_keeps_only_its_own_messages(broker: RabbitMQServer, outbox: Place) -> None:
    """A quorum queue that has lost its majority: here its process is suspended."""
    from retrysafe.messaging.brokers.rabbitmq.publisher import RabbitMQPublisher

    async with queues(broker, "suspended", "well") as taken:
        publisher = RabbitMQPublisher(broker.url, timeout="2s")
        relay = relay_of(outbox, publisher, max_attempts=1)
        relay._dispatch._patience = 0.05
        await asyncio.to_thread(control, broker, "eval", "sys:suspend({'%2F_suspended', node()}).")
        try:
            waiting = outbox.write(*(Message("suspended", n, key=str(n % 7)) for n in range(300)))
            async with relay:
                for _ in range(5):
                    others = await asyncio.to_thread(outbox.write, *(Message("well", n, key=str(n)) for n in range(20)))
                    arrived: set[str] = set()
                    async with asyncio.timeout(60):
                        while not arrived >= set(others):
                            arrived |= set(await taken("well"))
                            await asyncio.sleep(0.01)
        finally:
            await asyncio.to_thread(control, broker, "eval", "sys:resume({'%2F_suspended', node()}).")
        assert outbox.sql("SELECT count(*) FROM retrysafe_outbox_dead") == [(0,)]
        await relayed(relay_of(outbox, publisher, max_attempts=1), outbox)
        assert set(await taken("suspended")) == set(waiting)
        await publisher.aclose()


@pytest.mark.one_of("queues that take no more", of=2)
async def test_a_broker_without_disk_takes_nothing_and_nobody_hangs(broker: RabbitMQServer) -> None:
    """It lets publishers wait, without a word: the publisher says after its time that no message is to blame."""
    async with rabbitmq(broker.url) as publishing:
        before = [publishing.envelope(n) for n in range(3)]
        await publishing.publish_until_taken(*before)
        publishing.publisher._session._timeout = 0.5
        await asyncio.to_thread(control, broker, "set_disk_free_limit", str(10**15))
        try:
            waiting = [publishing.envelope(n) for n in range(3, 6)]
            said: list[PublishResult] = []

            async def is_told() -> bool:
                said[:] = await publishing.publish(*waiting)
                return {one.status for one in said} <= {PublishStatus.STALLED, PublishStatus.UNAVAILABLE}

            async with asyncio.timeout(60):
                while not await is_told():  # the alarm comes a moment after the command
                    waiting = [one._replace(id=f"{one.id}'") for one in waiting]
                    before += waiting
        finally:
            await asyncio.to_thread(control, broker, "set_disk_free_limit", "50MB")
        await publishing.publish_until_taken(*waiting)
        assert {one.id for one in waiting} <= {one.id for one in await drained(broker, publishing)}
