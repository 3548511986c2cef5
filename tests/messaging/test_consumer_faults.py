"""Consumers when connections are cut, brokers die, consumers die, and messages come many times."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import closing, suppress
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest

from retrysafe.messaging import QueueMissing
from retrysafe.messaging.brokers.base import Consumer
from retrysafe.messaging.subscription.subscription import Subscription
from retrysafe.protocol.events import Event
from retrysafe.protocol.messages import Envelope
from retrysafe.protocol.ordering import partition, partitions_of
from retrysafe.testing.consumers import Trial, numbers
from tests.conftest import require
from tests.faults.helpers import DEADLINE, ROOT
from tests.faults.proxies.framing_amqp import method_of
from tests.faults.proxies.proxy import Fault, Kind
from tests.faults.redis_servers import Server
from tests.messaging.applying import applying
from tests.messaging.harnesses import bench
from tests.messaging.harnesses.base import PARTITIONS
from tests.messaging.harnesses.kafka import KafkaBench
from tests.messaging.harnesses.nats import NatsBench, NatsServer
from tests.messaging.harnesses.pubsub import PubSubBench
from tests.messaging.harnesses.rabbitmq import RabbitMQBench, RabbitMQServer
from tests.messaging.harnesses.redis_streams import RedisBench
from tests.messaging.harnesses.servicebus import ServiceBusBench
from tests.messaging.harnesses.sqs import SqsBench
from tests.proving.effort import chance_of, effort

pytestmark = pytest.mark.slow

AnyBench = KafkaBench | NatsBench | PubSubBench | RabbitMQBench | RedisBench | ServiceBusBench | SqsBench
KINDS: tuple[Kind, ...] = ("before", "after", "mid-message")
REMOTE = ("kafka", "nats", "rabbitmq", "redis", *effort((), ("pubsub", "servicebus", "sqs")))


@pytest.fixture(params=REMOTE)
async def broker(request: pytest.FixtureRequest) -> AsyncIterator[AnyBench]:
    require(request.param)
    async with bench(request.param) as made:
        yield made


WITH_LONG_LEASES = (PubSubBench, ServiceBusBench, SqsBench)
"""The benches in which a message whose ack was lost comes again long after its connection was."""
QUIET = 3.0
"""Seconds without another message after which there are no more: the lease of a lost connection has lapsed by then."""


async def consumed(
    consumer: Consumer, count: int, before: Sequence[int] = (), of: Sequence[Envelope] | None = None
) -> list[int]:
    """Settle messages until so many different ones have come and no more do, whatever is lost on the way.

    of: those that count; what comes beside them was settled before, and its ack was lost.
    """
    ours = None if of is None else {one.id for one in of}
    seen = list(before)
    async with asyncio.timeout(DEADLINE):
        while True:
            with suppress(Exception):
                found = await consumer.receive(5, QUIET if len(set(seen)) == count else 2.0)
                if not found and len(set(seen)) == count:
                    return seen
                seen += numbers([one for one in found if ours is None or one.envelope.id in ours])
                await consumer.ack(found)


def awaits(task: asyncio.Task[Any], function: str) -> bool:
    """Tell whether a task waits in a coroutine function of that name."""
    awaited: Any = task.get_coro()
    while awaited is not None:
        if getattr(awaited, "__name__", "") == function:
            return True
        awaited = getattr(awaited, "cr_await", None)
    return False


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not condition():  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.005)


def in_order(seen: Sequence[int]) -> bool:
    """Tell whether every message first came after those before it."""
    first = [number for at, number in enumerate(seen) if number not in seen[:at]]
    return first == sorted(first)


@pytest.mark.fault(50)
async def test_nothing_is_lost_wherever_the_connection_is_cut(broker: AnyBench, request: Any) -> None:
    trial = Trial(broker)
    consumer = await broker.consumer()
    proxy = broker.proxies[consumer]
    proxy.arm(greetings=True)
    seen = await consumed(consumer, 12, of=await trial.publish(*"A" * 12))
    assert in_order(seen)
    points = proxy.count
    await consumer.aclose()

    chance = chance_of(request.node.name)
    chosen = effort(sorted(chance.sample(range(1, points + 1), 5)), list(range(1, points + 1)))
    for at in chosen:
        trial = Trial(broker)
        consumer = await broker.consumer()
        fault = Fault(at, chance.choice(KINDS))
        broker.proxies[consumer].arm(fault, greetings=True)
        seen = await consumed(consumer, 12, of=await trial.publish(*"A" * 12))
        assert in_order(seen), f"{fault}: {seen}"
        await consumer.aclose()
        if not isinstance(broker, WITH_LONG_LEASES):
            async with trial.consumer() as later:
                await trial.nothing(later)


@pytest.mark.one_of("slow tests")
@pytest.mark.fault(50)
async def test_a_question_about_topics_that_is_lost_is_asked_again_soon() -> None:
    """Kafka's client asked again after five minutes, where it has asked a second time before it joins its group."""
    require("kafka")

    def is_about_ours(request: bytes) -> bool:
        return request[4:6] == b"\0\3" and made.topic.encode() in request

    async with bench("kafka") as made:
        for _ in range(effort(2, 10)):  # it happens in every third case
            trial, consumer = Trial(made), await made.consumer()
            made.proxies[consumer].arm_on("before", ">", is_about_ours)
            await trial.publish(*"A" * 12)
            assert in_order(await consumed(consumer, 12))
            assert made.proxies[consumer].hits
            await consumer.aclose()


@pytest.mark.fault(50)
async def test_an_ack_that_cannot_be_told_raises_nothing(broker: AnyBench) -> None:
    trial = Trial(broker)
    await trial.publish("A")
    async with trial.consumer() as consumer:
        (found,) = await trial.take(consumer, 1)
        broker.proxies[consumer].drop()
        await consumer.ack([found])
        await consumer.give_back(found, 0.0)
        assert set(await consumed(consumer, 1, [0])) == {0}
    async with trial.consumer() as later:
        await trial.nothing(later)


# ---------------------------------------------------------------- brokers that die


@pytest.fixture(params=["nats", "rabbitmq", "redis"])  # Kafka is killed in the pipeline
async def mortal(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Any, AnyBench]]:
    """A broker of the test's own."""
    require(request.param)
    settings = ("--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction")
    own: dict[str, Callable[[], Any]] = {
        "nats": NatsServer,
        "rabbitmq": RabbitMQServer,
        "redis": lambda: Server(*settings),
    }
    server = own[request.param]()
    try:
        async with bench(request.param, server.url) as made:
            yield server, made
    finally:
        server.close()


@pytest.mark.fault(50)
async def test_a_broker_that_ends_under_load_hands_out_what_is_left(mortal: tuple[Any, AnyBench]) -> None:
    server, broker = mortal
    trial = Trial(broker)
    await trial.publish(*"AAB" * 30)
    async with trial.consumer() as consumer:
        settled = await trial.take(consumer, 20)
        await consumer.ack(settled)
        held = await trial.take(consumer, 20)
        consuming = asyncio.create_task(consumed(consumer, 90, numbers([*settled, *held])))
        await asyncio.to_thread(getattr(server, "stop", server.kill))
        await asyncio.to_thread(server.start)
        await consumer.ack(held)  # too late for RabbitMQ, to which it means nothing; in time for Redis
        seen = await consuming
    for key in ("A", "B"):
        assert in_order([number for number in seen if ("B" if number % 3 == 2 else "A") == key])


# ---------------------------------------------------------------- with the inbox behind


@pytest.fixture
def store(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/inventory.db"
    with closing(sqlite3.connect(tmp_path / "inventory.db")) as made:
        made.execute("CREATE TABLE applied (place INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT, number INTEGER)")
    applying(url)  # makes the tables
    return url


def applied(store: str) -> list[tuple[str, int]]:
    with closing(sqlite3.connect(store.removeprefix("sqlite:///"))) as looking:
        return looking.execute("SELECT name, number FROM applied ORDER BY place").fetchall()


def check(store: str, count: int) -> None:
    """Every message was applied once, and those of a key in their order."""
    rows = applied(store)
    assert sorted(number for _, number in rows) == list(range(count))
    for key in {name for name, _ in rows}:
        of_key = [number for name, number in rows if name == key]
        assert of_key == sorted(of_key), key


async def until_applied(store: str, count: int, patience: float = DEADLINE) -> None:
    async with asyncio.timeout(patience):
        while len(await asyncio.to_thread(applied, store)) < count:  # noqa: ASYNC110 - other processes apply them
            await asyncio.sleep(0.05)


@pytest.mark.fault(50, 54)
async def test_a_storm_of_duplicates_is_applied_once(broker: AnyBench, store: str) -> None:
    trial = Trial(broker)
    envelopes = trial.envelopes(*"ABC" * 20)
    for round_ in range(4):
        some = [envelope._replace(headers={"round": str(round_)}) for envelope in envelopes[: 15 * (round_ + 1)]]
        await broker.publish(some)
    async with Subscription(await broker.consumer(), applying(store), lanes=4):
        await until_applied(store, 60)
    check(store, 60)


@pytest.mark.fault(50, 52)
async def test_consumers_that_are_killed_apply_everything_once(
    broker: AnyBench, store: str, request: pytest.FixtureRequest
) -> None:
    chance, kills, count = chance_of(request.node.name), effort(4, 30), effort(120, 1000)
    trial = Trial(broker)
    name = type(broker).__name__.removesuffix("Bench").lower()
    command = [sys.executable, "-m", "tests.messaging.applying", name, broker.url, broker.topic, store]

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, cwd=ROOT, env={**os.environ})

    workers = [start() for _ in range(2)]
    try:
        for kill in range(kills):
            await trial.publish(*[chance.choice("ABCDEF") for _ in range(count // kills)])
            await until_applied(store, count // kills * kill + chance.randrange(1, count // kills), 60)
            victim = chance.randrange(2)
            workers[victim].send_signal(signal.SIGKILL)
            workers[victim].wait(DEADLINE)
            workers[victim] = start()
        await until_applied(store, count // kills * kills, 60)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait(DEADLINE)
    check(store, count // kills * kills)


# ---------------------------------------------------------------- what is special to a broker


@pytest.mark.fault(54)
@pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)
async def test_nothing_is_ever_sent_back_to_a_queue(broker: AnyBench) -> None:
    trial = Trial(broker)
    await trial.publish("A")
    async with trial.consumer() as consumer:
        for _ in range(30):  # more often than RabbitMQ 4 hands out a message by default
            (found,) = await trial.take(consumer, 1)
            await consumer.give_back(found, 0.0)
        methods = {method_of(message) for direction, message in broker.proxies[consumer].passed if direction == ">"}
    assert not methods & {(60, 90), (60, 110), (60, 120)}, "reject, recover, nack"


@pytest.mark.fault(54)
@pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)
async def test_connections_that_end_at_once_are_made_ever_more_slowly(
    broker: AnyBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the client library cannot decode the first message of a queue, and hangs up."""
    rests: list[int] = []

    class Noting:
        def delay(self, attempt: int, chance: float) -> float:
            rests.append(attempt)
            return 0.0

    monkeypatch.setattr("retrysafe.messaging.brokers.consumer._AGAIN", Noting())
    trial = Trial(broker)
    async with trial.consumer() as consumer:
        for _ in range(5):
            await trial.nothing(consumer)
            await consumer._session._connection.close()  # type: ignore[attr-defined]
    assert rests == [0, 1, 2]


@pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)
async def test_a_queue_that_does_not_answer_keeps_no_other_one_waiting(broker: AnyBench) -> None:
    """As one whose nodes are away: what is in it comes when it answers, without a new connection."""
    trial = Trial(broker)
    broker.options["timeout"] = "3s"  # for which the silent queue is waited for, and no other answer of a busy machine
    queues = partitions_of(broker.topic, PARTITIONS)
    for queue in queues:  # which one a key belongs to depends on the topic
        of_queue = (key for key in map(str, count()) if partition(broker.topic, key, "", PARTITIONS) == queue)
        await trial.publish(*islice(of_queue, 5))
    async with trial.consumer() as consumer:
        proxy = broker.proxies[consumer]
        proxy.arm_on("set aside", ">", lambda frame: method_of(frame) == (60, 20))
        first = await trial.take(consumer, 10)
        await consumer.ack(first)
        silent = {*queues}
        async with asyncio.timeout(DEADLINE):
            silent -= {found.partition for found in first}
            while (found := await consumer.receive(20, 0.3)) or len(silent) > 1:
                await consumer.ack(found)
                silent -= {one.partition for one in found}
                first += found
        assert len(silent) == 1
        connections = proxy.connections
        proxy.go()
        rest = await trial.take(consumer, 20 - len(first))
        assert {one.partition for one in rest} == silent
        await consumer.ack(rest)
        assert proxy.connections == connections
    async with trial.consumer() as later:
        await trial.nothing(later)


@pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)
async def test_an_ack_that_fails_late_ends_no_later_connection(
    broker: AnyBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would end what is being subscribed then, and with it, by its cancellation, whoever receives."""
    from aiormq import Channel
    from aiormq.exceptions import ChannelInvalidStateError

    fails = asyncio.Event()

    async def fail(channel: Channel, number: int, **options: Any) -> None:
        await fails.wait()
        raise ChannelInvalidStateError("closed")

    trial = Trial(broker)
    await trial.publish("A")
    async with trial.consumer() as consumer:
        first = await trial.take(consumer, 1)
        with monkeypatch.context() as patch:
            patch.setattr(Channel, "basic_ack", fail)
            acking = asyncio.create_task(consumer.ack(first))
            await asyncio.sleep(0)
            await consumer._session._connection.close()  # type: ignore[attr-defined]
            again = await trial.take(consumer, 1)
            connections = broker.proxies[consumer].connections
            fails.set()
            await acking
        await consumer.ack(again)
        await trial.nothing(consumer)
        assert broker.proxies[consumer].connections == connections
    async with trial.consumer() as later:
        await trial.nothing(later)


@pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)
async def test_queues_of_which_none_answers_are_an_error(broker: AnyBench) -> None:
    trial = Trial(broker)
    broker.options |= {"timeout": "2s", "only_partitions": [1]}
    await trial.publish("A")
    async with trial.consumer() as consumer:
        broker.proxies[consumer].arm_on("set aside", ">", lambda frame: method_of(frame) == (60, 20))
        with pytest.raises(TimeoutError, match="none of 1 queues"):
            await consumer.receive(1, 30.0)
        await consumer.receive(1, 0.0)


@pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)
async def test_a_queue_that_is_deleted_and_made_again_is_consumed_again(broker: AnyBench) -> None:
    import aio_pika

    from retrysafe.messaging.brokers.rabbitmq.topology import declare

    trial = Trial(broker)
    async with trial.consumer() as consumer:
        await trial.nothing(consumer)
        await broker.clean()
        with pytest.raises(QueueMissing):
            for _ in range(100):
                await consumer.receive(1, 0.1)
        async with await aio_pika.connect(broker.url) as connection:
            await connection.channel()
        await declare(broker.url, broker.topic, partitions=4)
        await trial.publish("A")
        assert numbers(await trial.take(consumer, 1)) == [0]


@pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)
async def test_a_message_of_somebody_elses_has_what_it_has(broker: AnyBench) -> None:
    import aio_pika

    async with await aio_pika.connect(broker.url) as connection:
        channel = await connection.channel()
        message = aio_pika.Message(b"{}", message_id="7", content_type="application/json", app_id="/crm")
        await channel.default_exchange.publish(message, f"{broker.topic}.0")
        bare = aio_pika.Message(b"", headers={"cloudEvents_id": 8, "cloudEvents:sequence": "many"})
        await channel.default_exchange.publish(bare, f"{broker.topic}.0")
    trial = Trial(broker)
    async with trial.consumer() as consumer:
        one, other = (found.envelope for found in await trial.take(consumer, 2))
    assert (one.id, one.source, one.type, one.topic) == ("7", "/crm", "", f"{broker.topic}.0")
    assert (one.media_type, one.payload) == ("application/json", b"{}")
    assert (other.id, other.source, other.sequence, other.key) == ("8", "", None, None)


@pytest.mark.fault(52)
@pytest.mark.parametrize("broker", ["redis"], indirect=True)
async def test_a_consumer_that_has_lost_a_stream_takes_nothing_from_it(broker: AnyBench) -> None:
    assert isinstance(broker, RedisBench)
    trial = Trial(broker)
    await trial.publish("A")
    async with trial.consumer() as consumer, broker.client() as client:
        (found,) = await trial.take(consumer, 1)
        await client.set(f"{found.partition}:owner:inventory", 9_000_000_000_000_000)  # the lease of a later owner
        await trial.publish("A")
        await trial.nothing(consumer)
        (group,) = await client.xinfo_groups(found.partition)
        assert (group["pending"], group["lag"]) == (1, 1), "the second message is its successor's"


@pytest.mark.fault(50)
@pytest.mark.parametrize("broker", ["redis"], indirect=True)
async def test_entries_whose_answer_was_lost_are_handed_out(broker: AnyBench) -> None:
    """A second request, be it the client library's, finds nothing new: the entries are its own by then."""
    trial = Trial(broker)
    async with trial.consumer() as consumer:
        await trial.nothing(consumer)
        proxy = broker.proxies[consumer]
        await trial.publish("A", "A")
        proxy.arm_on("before", "<", lambda message: b"placed.v1" in message and message.startswith(b"*2\r\n$3\r\nnew"))
        await trial.publish("A")
        assert await consumed(consumer, 3) == [0, 1, 2]
        assert proxy.hits


@pytest.mark.parametrize("keys", [("A", "A"), tuple(range(40))])
@pytest.mark.parametrize("broker", ["redis"], indirect=True)
async def test_an_ack_makes_room_at_once(broker: AnyBench, keys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One full stream or all of them: no wait for new entries goes on for its whole time."""
    monkeypatch.setattr("retrysafe.messaging.brokers.redis_streams.consumer._LOOK", 3600.0)
    broker.options["prefetch"] = 1
    trial = Trial(broker)
    await trial.publish(*map(str, keys))
    async with trial.consumer() as consumer:
        first = await trial.take(consumer, 1 if len(set(keys)) == 1 else PARTITIONS)
        more = asyncio.create_task(consumer.receive(1, 3600.0))
        await until(lambda: awaits(more, "wait"))
        await consumer.ack(first[:1])
        async with asyncio.timeout(DEADLINE):
            (next_one,) = await more
    assert next_one.partition == first[0].partition


@pytest.mark.fault(57)
@pytest.mark.parametrize("broker", ["redis"], indirect=True)
async def test_a_message_is_not_handed_out_again_while_it_is_handled_for_longer_than_a_lease(broker: AnyBench) -> None:
    broker.options["lease"] = "5s"
    trial = Trial(broker)
    await trial.publish("A")
    async with trial.consumer() as consumer, trial.consumer() as other:
        (found,) = await trial.take(consumer, 1)
        assert not await other.receive(1, 6.0)
        await consumer.ack([found])


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
async def test_a_stream_that_is_gone_is_consumed_again(broker: AnyBench) -> None:
    assert isinstance(broker, RedisBench)
    trial = Trial(broker)
    await trial.publish("A")
    async with trial.consumer() as consumer, broker.client() as client:
        (found,) = await trial.take(consumer, 1)
        await consumer.ack([found])
        await client.delete(found.partition)
        await trial.publish("A")
        assert numbers(await trial.take(consumer, 1)) == [1]


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
async def test_trimming_what_was_not_settled_is_told(broker: AnyBench) -> None:
    assert isinstance(broker, RedisBench)
    told: list[Event] = []
    trial = Trial(broker)
    await trial.publish("A", "A")
    async with trial.consumer() as consumer, broker.client() as client:
        found = await trial.take(consumer, 2)
        await client.xtrim(found[0].partition, maxlen=1, approximate=False)
    broker.options["observers"] = (told.append,)
    async with trial.consumer() as later:
        assert numbers(await trial.take(later, 1)) == [1]
    assert [(one.name, one.fields["messages"]) for one in told] == [("messages_trimmed", 1)]


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
async def test_streams_are_shared_evenly_as_consumers_come_and_go(broker: AnyBench) -> None:
    trial = Trial(broker)
    held: dict[str, set[str]] = {}
    await trial.publish(*"ABCDEFGHIJKLMNOPQRSTUVWXYZ")

    async def settle(name: str, consumer: Consumer, done: Callable[[], bool]) -> None:
        while not done():
            await consumer.ack(await consumer.receive(50, 0.1))
            held[name] = set(consumer._session._leases.tokens())  # type: ignore[attr-defined]

    async with asyncio.timeout(DEADLINE), trial.consumer() as one:
        await settle("one", one, lambda: len(held.get("one", ())) == 4)
        async with trial.consumer() as two:

            def even() -> bool:
                return {len(streams) for streams in held.values()} == {2} and len(held) == 2

            await asyncio.gather(settle("one", one, even), settle("two", two, even))
            assert not held["one"] & held["two"]
        del held["two"]
        await settle("one", one, lambda: len(held["one"]) == 4)


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
async def test_settled_entries_are_removed_where_that_is_wanted(broker: AnyBench) -> None:
    assert isinstance(broker, RedisBench)
    broker.options["delete"] = True
    trial = Trial(broker)
    await trial.publish("A", "A")
    async with trial.consumer() as consumer, broker.client() as client:
        found = await trial.take(consumer, 2)
        await consumer.ack(found[:1])
        assert await client.xlen(found[0].partition) == 1
