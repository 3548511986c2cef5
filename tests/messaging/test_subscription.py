"""Subscriptions: lanes in order, acks after commits, failures that hold their own lane only. On the memory broker."""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from retrysafe import Boundary, ConfigurationError, SchemaOutdated
from retrysafe.backends.registry import connect
from retrysafe.messaging import Inbox, InboxMessage, InboxOperator, MessageOutcome, Subscription
from retrysafe.messaging.brokers.memory.broker import MemoryBroker, MemoryConsumer
from retrysafe.messaging.brokers.sqlite import AsyncSqlitePublisher, SqliteConsumer, declare
from retrysafe.messaging.errors import BrokerUnavailable
from retrysafe.messaging.subscription import working
from retrysafe.messaging.subscription.watchdog import RECONNECTS, STALLED, Watchdog
from retrysafe.protocol.messages import DeadLetterFilter, Delivery
from tests.conftest import require
from tests.faults.helpers import own_database
from tests.messaging.inboxes import World, envelope
from tests.tables import each_row

ONE = pytest.mark.parametrize("world", ["sqlite"], indirect=True)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - it may come true in another process or thread
            await asyncio.sleep(0.005)


class Recording(MemoryConsumer):
    """Notes what it is told, and fails when it is told to."""

    def __init__(self, broker: MemoryBroker, *topics: str) -> None:
        super().__init__(broker, topics or ("orders",), None)
        self.acked: list[str] = []
        self.fail_receive = self.fail_ack = 0
        self.closed = self.receiving = False

    async def receive(self, most: int, wait: float, /) -> Sequence[Delivery]:
        if self.fail_receive:
            self.fail_receive -= 1
            raise ConnectionError("the broker is away")
        self.receiving = True
        try:
            return await super().receive(most, wait)
        finally:
            self.receiving = False

    async def ack(self, deliveries: Sequence[Delivery], /) -> None:
        if self.fail_ack:
            self.fail_ack -= 1
            raise ConnectionError("the ack was lost")
        await super().ack(deliveries)
        self.acked += [one.envelope.id for one in deliveries]

    async def aclose(self) -> None:
        self.closed = True
        await super().aclose()


def order_of(applied: list[tuple[str, int]]) -> dict[str, list[int]]:
    by_key: dict[str, list[int]] = defaultdict(list)
    for key, n in applied:
        by_key[key].append(n)
    return by_key


@pytest.mark.slow
@ONE
@pytest.mark.parametrize("make", ["handler", "batch_handler", "set_handler"])
@pytest.mark.parametrize("coroutine", [True, False])
@pytest.mark.fault(50)
@pytest.mark.fault(55)
async def test_a_storm_of_duplicates_is_applied_once_and_in_order(coroutine: bool, make: str, world: World) -> None:
    random = Random(f"storm {make} {coroutine}")
    applied: list[tuple[str, int]] = []
    fail = {n for n in range(300) if random.random() < 0.05}

    def apply(messages: Any) -> None:
        for one in messages if isinstance(messages, list) else [messages]:
            n = int(one.envelope.id)
            if n in fail:
                fail.discard(n)
                raise ValueError("once")
            world.apply(one.tx, n)

    async def aapply(messages: Any) -> None:
        await asyncio.sleep(0)
        apply(messages)

    handler = getattr(world.inbox(), make)("stock", backoff_base="10ms")(aapply if coroutine else apply)
    broker = MemoryBroker(partitions=4)
    sent = []
    for n in range(300):
        sent.append(envelope(n, n % 13))
        if random.random() < 0.5:  # once more what was sent before
            sent.append(random.choice(sent[-20:]))
    broker.put(sent)
    async with Subscription(Recording(broker), handler):
        await until(lambda: not broker.depth())
    with world.connected() as look:
        applied = [
            (str(int(row[0]) % 13), int(row[0])) for row in look(f"SELECT value FROM {world.table} ORDER BY rowid")
        ]
    assert sorted(n for _, n in applied) == list(range(300))
    assert all(found == sorted(found) for found in order_of(applied).values())
    await world.boundaries[-1].aclose()


@pytest.mark.slow
@ONE
async def test_a_batch_is_bounded_in_bytes(world: World) -> None:
    sizes: list[int] = []

    def handle(messages: list[Any]) -> None:
        sizes.append(len(messages))

    handler = world.inbox().set_handler("stock", batch_bytes=2500)(handle)
    broker = MemoryBroker()
    broker.put([envelope(n, n)._replace(payload=b'"%b"' % (b"." * 998)) for n in range(9)])
    async with Subscription(Recording(broker), handler, lanes=1):
        await until(lambda: not broker.depth())
    assert sum(sizes) == 9
    assert max(sizes) <= 3
    await world.boundaries[-1].aclose()


@pytest.mark.slow
@ONE
async def test_a_message_that_is_handled_after_a_failure_leaves_no_note(world: World) -> None:
    inbox, failed = world.inbox(), set[str]()
    with world.connected() as look:
        before = int(look("SELECT count(*) FROM retrysafe_inbox_attempts")[0][0])

    def handle(one: Any) -> None:
        if one.envelope.id not in failed:
            failed.add(one.envelope.id)
            raise ValueError("once")
        world.apply(one.tx, one.envelope.id)

    broker = MemoryBroker()
    broker.put([envelope(n, n) for n in range(5)])
    async with Subscription(Recording(broker), inbox.handler("stock", backoff_base="1ms")(handle)):
        await until(lambda: not broker.depth())
    assert world.applied() == ["0", "1", "2", "3", "4"]
    with world.connected() as look:
        assert int(look("SELECT count(*) FROM retrysafe_inbox_attempts")[0][0]) == before
    await world.boundaries[-1].aclose()


@pytest.mark.slow
@ONE
async def test_a_consumer_that_is_cancelled_within_is_asked_again(world: World) -> None:
    handler = world.inbox().handler("stock")(lambda one: world.apply(one.tx, one.envelope.id))
    broker = MemoryBroker()
    consumer: Any = Recording(broker)
    receive, torn = consumer.receive, [True]

    async def receiving(limit: int, wait: float, /) -> Any:
        if torn.pop() if torn else False:
            raise asyncio.CancelledError
        return await receive(limit, wait)

    consumer.receive = receiving
    broker.put([envelope(1)])
    async with Subscription(consumer, handler):
        await until(lambda: not broker.depth())
    assert world.applied() == ["1"]
    await world.boundaries[-1].aclose()


@pytest.mark.slow
@ONE
@pytest.mark.fault(53)
async def test_a_failing_message_holds_its_own_lane_and_no_other(world: World) -> None:
    applied: list[tuple[str, int]] = []
    bad = [True]

    @world.inbox().handler("stock", max_attempts=1000, backoff_base="1ms", backoff_max="2ms")
    async def handle(message: InboxMessage[Any]) -> None:
        if bad and message.envelope.id == "0":
            raise ValueError("not yet")
        applied.append((message.envelope.key or "", int(message.envelope.id)))

    broker = MemoryBroker()
    broker.put([envelope(n, n % 3) for n in range(60)])
    async with Subscription(Recording(broker), handle, lanes=2):
        await until(lambda: len(applied) == 40)
        assert "0" not in order_of(applied)
        bad.clear()
        await until(lambda: not broker.depth())
    assert order_of(applied)["0"] == list(range(0, 60, 3))
    await world.boundaries[-1].aclose()


@pytest.mark.slow
@ONE
@each_row(
    ("error", "bad", "calls", "told"),
    [
        (ValueError("no account"), 90, 3 + 3 + 88, ["lane_failing"]),
        (ConnectionError("away"), 30, None, []),
        (ConnectionError("away"), 110, None, ["consumer_full"]),
    ],
    ids=["a key that fails", "a key that is stalled", "more than may wait"],
)
async def test_a_key_that_fails_leaves_room_for_others(
    world: World, error: Exception, bad: int, calls: int | None, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(working, "FULL_AFTER", 0.0)
    failed, applied = 0, 0

    @world.inbox().handler(f"stock-{bad}", max_attempts=3, backoff_base="1ms")
    async def handle(message: InboxMessage[Any]) -> None:
        nonlocal failed, applied
        if message.envelope.key == "0":
            failed += 1
            raise error
        applied += 1

    broker = MemoryBroker()
    others = [envelope(n, 1 + n % 5) for n in range(bad, bad + 20)]
    broker.put([*(envelope(n, 0) for n in range(bad)), *others])
    before = len(world.told)
    async with Subscription(Recording(broker), handle, in_flight=10):
        await until(lambda: applied == 20 or "consumer_full" in world.names()[before:])
        await until(lambda: calls is None or failed >= calls)
    assert ("consumer_full" in told) or applied == 20
    assert calls in (None, failed)
    assert [name for name in world.names()[before:] if name in ("lane_failing", "consumer_full")] == told
    if calls is not None:
        assert not broker.depth()
        with world.connected() as look:
            assert look("SELECT count(*) FROM retrysafe_inbox_dead")[0][0] == bad


@pytest.mark.slow
@ONE
@pytest.mark.fault(9)
@pytest.mark.fault(50)
@pytest.mark.fault(54)
async def test_lost_acks_and_a_broker_that_goes_away_cost_no_message_and_repeat_none(world: World) -> None:
    handle = world.inbox().handler("stock")(lambda message: world.apply(message.tx, message.envelope.id))
    broker = MemoryBroker()
    broker.put([envelope(n, n) for n in range(20)])
    first = Recording(broker)
    first.fail_receive, first.fail_ack = 1, 1000
    async with Subscription(first, handle):
        await until(lambda: len(world.applied()) == 20)
    assert (broker.depth(), first.acked, first.closed) == (20, [], True)
    second = Recording(broker)
    tally = await Subscription(second, handle).arun_once()
    assert (tally, broker.depth()) == ({MessageOutcome.DUPLICATE: 20}, 0)
    assert world.applied() == sorted(str(n) for n in range(20))
    assert "consumer_failed" in world.names()
    await world.boundaries[-1].aclose()


@ONE
@pytest.mark.fault(86)
async def test_stop_lets_what_is_being_handled_end_and_gives_the_rest_back(world: World) -> None:
    inside, go = asyncio.Event(), asyncio.Event()
    handled: list[str] = []

    @world.inbox().handler("stock")
    async def handle(message: InboxMessage[Any]) -> None:
        inside.set()
        await go.wait()
        handled.append(message.envelope.id)

    broker = MemoryBroker()
    broker.put([envelope(n, n) for n in range(10)])
    consumer = Recording(broker)
    subscription = Subscription(consumer, handle, lanes=2)
    running = asyncio.create_task(subscription.arun_forever())
    await inside.wait()
    subscription.stop()
    await until(lambda: not consumer.receiving)
    for _ in range(10):  # the consequences of the stop
        await asyncio.sleep(0)
    go.set()
    await running
    assert sorted(consumer.acked) == sorted(handled)
    assert (broker.depth(), consumer.closed) == (10 - len(handled), True)
    assert 1 <= len(handled) < 10
    other = Recording(broker)
    await Subscription(other, handle).arun_once()
    assert sorted(handled, key=int) == [str(n) for n in range(10)]
    await world.boundaries[-1].aclose()


@pytest.mark.slow
@ONE
async def test_stop_ends_a_single_run_with_the_message_in_progress(world: World) -> None:
    """Messages in memory, or still to come, are left to the next run; so is a wait for an hour that has just begun."""
    broker, applied = MemoryBroker(), list[int]()

    async def apply(message: InboxMessage) -> None:
        applied.append(int(message.envelope.id))
        if len(applied) == 1:
            subscription.stop()

    handler = world.inbox().handler("stock")(apply)
    broker.put([envelope(n, key="A") for n in range(3)])
    consumer = Recording(broker)
    subscription = Subscription(consumer, handler)
    assert await subscription.arun_once(3600) == {MessageOutcome.HANDLED: 1}
    assert (applied, consumer.acked) == ([0], ["0"])
    await consumer.aclose()
    assert await Subscription(Recording(broker), handler).arun_once() == {MessageOutcome.HANDLED: 2}
    assert applied == [0, 1, 2]


@pytest.mark.slow
@ONE
async def test_a_message_without_a_key_is_given_back_and_holds_nothing(world: World) -> None:
    seen: list[str] = []

    @world.inbox().handler("mail", max_attempts=3, backoff_base="1ms")
    async def handle(message: InboxMessage[Any]) -> None:
        seen.append(message.envelope.id)
        if seen.count("0") < 3 and message.envelope.id == "0":
            raise ValueError("not yet")

    broker = MemoryBroker()
    broker.put([envelope(n, None) for n in range(5)])
    async with Subscription(Recording(broker), handle):
        await until(lambda: not broker.depth())
    assert (seen.count("0"), len(seen)) == (3, 7)
    await world.boundaries[-1].aclose()


@ONE
@pytest.mark.fault(56)
@pytest.mark.fault(57)
async def test_a_window_shorter_than_the_broker_redelivers_is_refused(world: World) -> None:
    handle = world.inbox(window="24h").handler("stock")(lambda message: None)
    broker = MemoryBroker()
    with pytest.raises(ConfigurationError, match=r"window= .* is 24 h, and the broker may .* for 168 h"):
        Subscription(broker.consumer("orders", redelivery_window=7 * 86400), handle)
    Subscription(broker.consumer("orders", redelivery_window=3600), handle)
    assert world.names() == []
    unknown = Subscription(broker.consumer("orders"), handle)
    for _ in range(2):
        await unknown.arun_once()
    assert world.names() == ["retention_unknown"]


@ONE
@pytest.mark.fault(57)
@each_row("forever", [True, False])
async def test_a_window_that_is_read_from_the_broker_is_checked_before_anything_is_handled(
    world: World, forever: bool
) -> None:
    handled: list[InboxMessage] = []
    handle = world.inbox(window="24h").handler("stock")(handled.append)
    broker = MemoryBroker()

    class Reads(Recording):
        read: float | None = None

        @property
        def redelivery_window(self) -> float | None:
            return self.read

        async def receive(self, most: int, wait: float, /) -> Sequence[Delivery]:
            self.read = 7 * 86400.0
            return await super().receive(most, wait)

    await broker.apublisher().publish([envelope("0")])
    subscription = Subscription(Reads(broker), handle)
    with pytest.raises(ConfigurationError, match="for 168 h"):
        async with asyncio.timeout(20):
            await (subscription.arun_forever() if forever else subscription.arun_once())
    assert (handled, {*world.names()} - {"consumer_lag", "consumer_seen"}) == ([], set())


@each_row(
    ("lag", "received", "held", "stalls"),
    [
        ((9, 9), (0, 0), (), True),
        ((9, 12), (4, 4), (), True),
        ((9, 8), (0, 0), (), False),
        ((9, 9), (0, 1), (), False),
        ((9, 9), (0, 0), ("p",), False),
        ((0, 0), (0, 0), (), False),
    ],
)
def test_a_partition_with_messages_of_which_none_arrives_is_stalled(
    lag: tuple[int, int], received: tuple[int, int], held: tuple[str, ...], stalls: bool
) -> None:
    watchdog = Watchdog()
    assert watchdog.look({"p": lag[0]}, {"p": received[0]}, held, 0.0) == {}
    assert watchdog.look({"p": lag[0]}, {"p": received[0]}, held, STALLED - 1) == {}
    later = [watchdog.look({"p": lag[1]}, {"p": received[1]}, held, STALLED + n) for n in range(3)]
    assert later == ([{"p": 0} if stalls else {}, {}, {}])


@ONE
async def test_a_consumer_that_gives_nothing_is_connected_anew_and_then_left(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retrysafe.messaging.subscription.watchdog.STALLED", 0.0)
    monkeypatch.setattr("retrysafe.messaging.subscription.subscription.LAG_EVERY", 0.0)

    class Dead(Recording):
        assigned = ("orders",)
        closings = 0

        async def lag(self) -> dict[str, int]:
            return {"orders": 3}

        async def aclose(self) -> None:
            self.closings += 1
            await super().aclose()

    dead = Dead(MemoryBroker())
    handle = world.inbox().handler("stock")(lambda message: None)
    with pytest.raises(BrokerUnavailable, match="3 messages wait in orders"):
        async with asyncio.timeout(20):
            await Subscription(dead, handle).arun_forever()
    assert dead.closings == RECONNECTS + 1
    assert world.names().count("consumer_stalled") == RECONNECTS + 1


@ONE
@each_row(
    ("lagging", "failing"),
    [(False, "receive"), (True, "receive"), (False, "is_failing"), (True, "is_failing"), (True, "store")],
)
async def test_no_sign_of_life_while_the_broker_or_the_store_is_away(
    lagging: bool, failing: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retrysafe.messaging.subscription.subscription.LAG_EVERY", 0.0)
    consumer = Recording(MemoryBroker())
    world.told.clear()
    looks: list[str] = []

    def look(self: Recording) -> tuple[str, ...]:
        looks.append("")
        return ()

    monkeypatch.setattr(Recording, "assigned", property(look), raising=False)
    if not lagging:
        monkeypatch.setattr(MemoryConsumer, "lag", None)
    handle = world.inbox().handler("stock")(lambda message: None)

    async def away(**_: object) -> list[Any]:
        raise OSError("away")

    async with Subscription(consumer, handle, redrive="1ms"):
        await until(lambda: "consumer_seen" in world.names())
        if failing == "receive":
            consumer.fail_receive = 10**9
        elif failing == "store":
            monkeypatch.setattr(handle, "ahandle_marked", away)
        else:
            consumer.is_failing = True  # type: ignore[attr-defined]
        await until(lambda: failing == "is_failing" or "consumer_failed" in world.names())
        seen, looked = world.names().count("consumer_seen"), len(looks)
        await until(lambda: len(looks) > looked + 5)
        assert world.names().count("consumer_seen") == seen
        monkeypatch.undo()


@pytest.mark.slow
@ONE
async def test_a_subscription_handles_marked_dead_letters_again(world: World) -> None:
    inbox = world.inbox()
    fail = [True]

    @inbox.handler("stock", max_attempts=1)
    async def handle(message: InboxMessage[Any]) -> None:
        if fail:
            raise ValueError(fail.pop())
        world.apply(message.tx, message.envelope.id)

    broker = MemoryBroker()
    broker.put([envelope(1)])
    async with Subscription(Recording(broker), handle, redrive="10ms"):
        await until(lambda: len(world.letters(inbox)) == 1 and not broker.depth())
        world.mark(inbox)
        await until(lambda: not world.letters(inbox))
    assert world.applied() == ["1"]
    fail += [True] * 110
    broker.put([envelope(f"again-{number}", number) for number in range(110)])
    await Subscription(Recording(broker), handle).arun_once()
    with InboxOperator(world.url, observers=()) as operator:
        assert operator.redrive(DeadLetterFilter(consumer="stock")) == 110
    async with Subscription(Recording(broker), handle, redrive="1h"):
        await until(lambda: not world.letters(inbox))
    assert len(world.applied()) == 111
    await world.boundaries[-1].aclose()


@ONE
async def test_a_consumer_on_a_store_without_tables_does_not_start(world: World) -> None:
    """In a task it ended without a word, while messages piled up until somebody left the block."""
    inbox = world.inbox()
    handle = inbox.handler("stock")(lambda message: None)
    with world.connected() as look:
        look("DROP TABLE retrysafe_schema")
    consumer = Recording(MemoryBroker())
    with pytest.raises(SchemaOutdated, match="retrysafe migrate"):
        async with Subscription(consumer, handle):
            pytest.fail("it has begun")
    assert consumer.closed
    with pytest.raises(SchemaOutdated):
        await Subscription(Recording(MemoryBroker()), handle).arun_forever()
    assert "consumer_failed" in world.names()
    await world.boundaries[-1].aclose()


async def test_a_consumer_whose_dead_letters_have_no_tables_does_not_start(tmp_path: Path) -> None:
    require("postgresql")
    connect(f"sqlite:///{tmp_path}/shop.db").migrate()
    boundary = Boundary("letters", store=f"sqlite:///{tmp_path}/shop.db", window="7d", observers=())
    with own_database(os.environ["RETRYSAFE_TEST_POSTGRESQL"], migrated=False) as letters:
        handle = Inbox(boundary, dead_letter_store=letters).handler("stock")(lambda message: None)
        with pytest.raises(SchemaOutdated, match="retrysafe migrate"):
            async with Subscription(Recording(MemoryBroker()), handle):
                pytest.fail("it has no place for dead letters")
        await boundary.aclose()
        await handle.letters.backend.aclose()


@ONE
async def test_a_stop_before_a_run_ends_it_and_not_the_next(world: World) -> None:
    handle = world.inbox().handler("stock")(lambda message: world.apply(message.tx, message.envelope.id))
    broker = MemoryBroker()
    subscription = Subscription(Recording(broker), handle)
    subscription.stop()
    broker.put([envelope(1)])
    assert await subscription.arun_once(3600) == {}
    assert await subscription.arun_once() == {"handled": 1}
    await world.boundaries[-1].aclose()


@pytest.mark.slow
@ONE
@pytest.mark.parametrize("by", ["stop", "cancel"])
async def test_a_run_that_ends_early_gives_back_what_it_has_not_handled(world: World, by: str) -> None:
    """Its consumer lives on, and kept them from everybody."""
    ends: list[Callable[[], object]] = []

    @world.inbox().handler("stock")
    async def handle(message: InboxMessage[Any]) -> None:
        if ends:
            ends.pop()()
            await asyncio.sleep(0)
        world.apply(message.tx, message.envelope.id)

    broker = MemoryBroker()
    broker.put([envelope(number, key=str(number)) for number in range(5)])
    subscription = Subscription(Recording(broker), handle, lanes=1)
    running = asyncio.create_task(subscription.arun_once(3600))
    ends.append(subscription.stop if by == "stop" else running.cancel)
    await asyncio.wait([running])
    handled = 1 if by == "stop" else 0
    assert running.cancelled() == (by == "cancel")
    assert subscription.unhandled == 5 - handled
    assert await subscription.arun_once() == {"handled": 5 - handled}
    assert (sorted(world.applied()), subscription.unhandled) == (["0", "1", "2", "3", "4"], 0)
    await world.boundaries[-1].aclose()


@ONE
async def test_a_stop_between_two_runs_is_for_neither(world: World) -> None:
    handle = world.inbox().handler("stock")(lambda message: world.apply(message.tx, message.envelope.id))
    broker = MemoryBroker()
    subscription = Subscription(Recording(broker), handle)
    async with subscription:
        subscription.stop()
    subscription.stop()
    broker.put([envelope(1)])
    assert await subscription.arun_once() == {"handled": 1}
    async with subscription:
        with pytest.raises(ConfigurationError, match="This Subscription is running already"):
            await subscription.arun_once()
    await world.boundaries[-1].aclose()


@ONE
async def test_a_lane_that_is_given_back_is_whole_although_its_run_is_cancelled(world: World, tmp_path: Path) -> None:
    """Messages behind its first one stayed with the consumer, and were handled after later ones."""
    applied: list[str] = []
    broken = {"1"}

    @world.inbox().handler("stock")
    async def handle(message: InboxMessage[Any]) -> None:
        if message.envelope.id in broken:
            raise ValueError("not yet")
        applied.append(message.envelope.id)

    class Slow(SqliteConsumer):
        async def give_back(self, delivery: Delivery, delay: float, /) -> None:
            if not running.cancelling():
                running.cancel()
                await asyncio.sleep(0)
            await super().give_back(delivery, 0.0)

    declare(path := tmp_path / "broker.db", [("orders", "stock")])
    publisher = AsyncSqlitePublisher(path)
    await publisher.publish([envelope(number, "k") for number in range(1, 6)])
    subscription = Subscription(consumer := Slow(path, "stock"), handle, lanes=1)
    running = asyncio.create_task(subscription.arun_once(3600))
    await asyncio.wait([running])
    assert (running.cancelled(), subscription.unhandled) == (True, 5)
    broken.clear()
    await publisher.publish([envelope(6, "k")])
    world.age_attempts()
    assert await subscription.arun_once() == {"handled": 6}
    assert applied == ["1", "2", "3", "4", "5", "6"]
    await consumer.aclose()
    await publisher.aclose()
    await world.boundaries[-1].aclose()


class Leaving(Recording):
    """A consumer that fails when something is given back, as it is told."""

    how = ""

    async def give_back(self, delivery: Delivery, delay: float, /) -> None:
        if self.how == "silent":
            await asyncio.Event().wait()
        if self.how == "cancels itself":
            raise asyncio.CancelledError  # of a future of the client's own
        if self.how == "fails" and delivery.envelope.id == "1":
            raise ConnectionError("the broker is away for a moment")
        await super().give_back(delivery, delay)


@pytest.mark.slow
@ONE
@each_row(("how", "left"), [("fails", 1), ("silent", 4), ("cancels itself", 4)])
async def test_a_run_ends_whatever_the_broker_does_not_take_back(
    how: str, left: int, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(working, "LEAVING", 0.2 if how == "silent" else 60.0)

    @world.inbox().handler("stock")
    async def handle(message: InboxMessage[Any]) -> None:
        subscription.stop()

    broker = MemoryBroker()
    broker.put([envelope(number, key=str(number)) for number in range(5)])
    consumer = Leaving(broker)
    subscription = Subscription(consumer, handle, lanes=1)
    consumer.how = how
    async with asyncio.timeout(20):
        assert await subscription.arun_once(3600) == {"handled": 1}
    assert "consumer_failed" in world.names()
    assert subscription.unhandled == 4
    assert len(await consumer.receive(10, 0)) == 4 - left
    await world.boundaries[-1].aclose()


@pytest.mark.slow
@ONE
async def test_a_silent_ack_keeps_nothing_that_is_given_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(working, "LEAVING", 0.2)
    handle = world.inbox().handler("stock")(lambda message: subscription.stop())
    broker = MemoryBroker()
    broker.put([envelope(number, key=str(number)) for number in range(5)])
    silent = True

    class Mute(Recording):
        async def ack(self, deliveries: Sequence[Delivery], /) -> None:
            if silent:
                raise_in_receive.set()
                await asyncio.Event().wait()
            await super().ack(deliveries)

        async def receive(self, most: int, wait: float, /) -> Sequence[Delivery]:
            if silent and self.received:
                await raise_in_receive.wait()
                raise ConnectionError("the broker is away")
            self.received = True
            return await super().receive(most, wait)

        received = False

    raise_in_receive = asyncio.Event()
    subscription = Subscription(Mute(broker), handle, lanes=1)
    with pytest.raises(ConnectionError):
        await subscription.arun_once(3600)
    silent = False
    assert subscription.unhandled == 4
    assert sum((await subscription.arun_once()).values()) >= 1
    await world.boundaries[-1].aclose()


@pytest.mark.slow
@ONE
@each_row("call", ["ack", "give_back"])
async def test_a_client_that_cancels_its_own_call_ends_no_consumer(world: World, call: str) -> None:
    """As libraries do when they hang up. Nobody has cancelled the consumer."""
    broken = {"1"}

    @world.inbox().handler("stock", backoff_base="10ms")
    async def handle(message: InboxMessage[Any]) -> None:
        if call == "give_back" and message.envelope.id in broken:
            broken.clear()
            raise ValueError("not yet")
        world.apply(message.tx, message.envelope.id)

    class Cancelling(Recording):
        async def ack(self, deliveries: Sequence[Delivery], /) -> None:
            await self.once("ack")
            await super().ack(deliveries)

        async def give_back(self, delivery: Delivery, delay: float, /) -> None:
            await self.once("give_back")
            await super().give_back(delivery, 0.0)

        async def once(self, name: str) -> None:
            if name == call and not self.cancelled:
                self.cancelled = True
                raise asyncio.CancelledError

        cancelled = False

    broker = MemoryBroker()
    consumer = Cancelling(broker)
    broker.put([envelope(1)._replace(key=None)])  # a message without a key does not keep its lane, and is given back
    async with Subscription(consumer, handle, lanes=1):
        await until(lambda: consumer.cancelled and "consumer_failed" in world.names())
        broker.put([envelope(3)])
        await until(lambda: "3" in world.applied())
    await world.boundaries[-1].aclose()


@ONE
async def test_a_run_begins_as_soon_as_the_one_before_has_ended(world: World) -> None:
    handle = world.inbox().handler("stock")(lambda message: None)
    closed = asyncio.Event()

    class Telling(Recording):
        async def aclose(self) -> None:
            await super().aclose()
            closed.set()

    subscription = Subscription(Telling(MemoryBroker()), handle)
    async with subscription:
        subscription.stop()
        await closed.wait()
    async with subscription:
        pass
    await world.boundaries[-1].aclose()


@ONE
async def test_a_run_leaves_when_its_receive_has_ended(world: World) -> None:
    """A receive that goes on after its cancellation brings messages that nobody would ever settle."""
    handle = world.inbox().handler("stock")(lambda message: world.apply(message.tx, message.envelope.id))
    broker = MemoryBroker()
    begun, goes_on = asyncio.Event(), asyncio.Event()

    class Stubborn(Recording):
        async def receive(self, most: int, wait: float, /) -> Sequence[Delivery]:
            if begun.is_set():
                return await super().receive(most, wait)
            begun.set()
            with suppress(asyncio.CancelledError):
                await goes_on.wait()
            await asyncio.shield(asyncio.ensure_future(goes_on.wait()))
            return await super().receive(most, 0)

    subscription = Subscription(Stubborn(broker), handle)
    running = asyncio.create_task(subscription.arun_once(3600))
    await begun.wait()
    running.cancel()
    await asyncio.sleep(0)
    broker.put([envelope(1)])
    goes_on.set()
    await asyncio.wait([running])
    assert (running.cancelled(), subscription.unhandled) == (True, 1)
    assert await subscription.arun_once() == {"handled": 1}
    await world.boundaries[-1].aclose()


@ONE
async def test_messages_without_ids_are_counted_apart(world: World) -> None:
    """A handled message with the same payload made a dead letter count as handled."""

    @world.inbox(on_missing="pass").handler("stock", max_attempts=1)
    async def handle(message: InboxMessage[Any]) -> None:
        if message.envelope.key == "a":
            raise ValueError("bug")

    broker = MemoryBroker()
    broker.put([envelope(1, key=key)._replace(id="") for key in ("a", "b")])
    subscription = Subscription(Recording(broker), handle, lanes=1)
    assert await subscription.arun_once() == {"dead": 1, "passed": 1}
    assert subscription.unhandled == 1
    await world.boundaries[-1].aclose()


@ONE
async def test_a_dead_letter_that_is_handled_at_the_second_look_is_not_left(world: World) -> None:
    inbox, broken = world.inbox(), {"1", "2"}

    @inbox.handler("stock", max_attempts=1, unavailable=(ConnectionError,))
    async def handle(message: InboxMessage[Any]) -> None:
        if len(broken) == 2:
            raise ValueError("bug")
        if message.envelope.id in broken:
            broken.clear()
            raise ConnectionError("away for a moment")

    broker = MemoryBroker()
    broker.put([envelope(1), envelope(2)])
    subscription = Subscription(Recording(broker), handle)
    assert await subscription.arun_once() == {"dead": 2}
    broken.discard("1")
    world.mark(inbox)
    assert (await subscription.arun_once())["handled"] == 2
    assert (subscription.unhandled, world.letters(inbox)) == (0, [])
    await world.boundaries[-1].aclose()


@pytest.mark.slow
@ONE
async def test_a_message_that_failed_and_was_handled_then_is_not_left(world: World) -> None:
    fail = {"1", "2"}

    def handle(message: InboxMessage[Any]) -> None:
        if message.envelope.id in fail:
            fail.discard(message.envelope.id)
            raise ValueError("once")
        world.apply(message.tx, message.envelope.id)

    broker = MemoryBroker()
    broker.put([envelope(1), envelope(2), envelope(3)])
    subscription = Subscription(Recording(broker), world.inbox().handler("stock", backoff_base="1ms")(handle))
    assert (await subscription.arun_once(1.0))["handled"] == 3
    assert subscription.unhandled == 0
    handle_again = world.inbox().handler("other", max_attempts=1)(handle)
    fail.add("4")
    broker.put([envelope(4)])
    left = Subscription(subscription._consumer, handle_again)
    assert (await left.arun_once(), left.unhandled) == ({"dead": 1}, 1)
    await world.boundaries[-1].aclose()


@ONE
async def test_one_run_handles_marked_dead_letters_too_and_each_once(world: World) -> None:
    """It said "no message", and left them."""
    inbox, broken = world.inbox(), [True]

    @inbox.handler("stock", max_attempts=1)
    async def handle(message: InboxMessage[Any]) -> None:
        if broken or message.envelope.id == "1":
            raise ValueError("no")
        world.apply(message.tx, message.envelope.id)

    broker = MemoryBroker()
    broker.put([envelope(1), envelope(2)])
    subscription = Subscription(Recording(broker), handle)
    assert await subscription.arun_once() == {"dead": 2}
    broken.clear()
    world.mark(inbox)
    broker.put([envelope(3)])
    assert await subscription.arun_once() == {"handled": 2, "dead": 1}
    assert sorted(world.applied()) == ["2", "3"]
    assert [one.marked for one in world.letters(inbox)] == [False]
    await world.boundaries[-1].aclose()


@ONE
async def test_a_handler_that_raises_leaves_its_traceback_in_the_log(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    inbox = world.inbox()

    @inbox.handler("stock", max_attempts=1)
    async def handle(message: InboxMessage[Any]) -> None:
        raise ValueError("\x1b[31m\ud800")

    broker = MemoryBroker()
    broker.put([envelope(1)])
    await Subscription(Recording(broker), handle).arun_once()
    (traced,) = [one.getMessage() for one in caplog.records if "has raised" in one.getMessage()]
    assert f'File "{__file__}"' in traced
    assert "ValueError: \\x1b[31m\\ud800" in traced
    await world.boundaries[-1].aclose()


@pytest.mark.slow
@ONE
async def test_a_redrive_that_is_cut_short_stays_marked(world: World) -> None:
    inbox = world.inbox()
    begun = asyncio.Event()
    failing = [True]

    @inbox.handler("stock", max_attempts=1)
    async def handle(message: InboxMessage[Any]) -> None:
        world.apply(message.tx, message.envelope.id)
        if failing:
            raise ValueError("no")
        if not begun.is_set():
            begun.set()
            await asyncio.sleep(60)

    await handle.ahandle(envelope(1))
    failing.clear()
    world.mark(inbox)
    running = asyncio.create_task(Subscription(Recording(MemoryBroker()), handle, redrive="10ms").arun_forever())
    await begun.wait()
    running.cancel()
    await asyncio.wait([running])
    assert ([one.marked for one in world.letters(inbox)], world.applied()) == ([True], [])
    assert [one.became for one in await handle.ahandle_marked()] == [MessageOutcome.HANDLED]
    assert (world.letters(inbox), world.applied()) == ([], ["1"])
    await world.boundaries[-1].aclose()


@ONE
@each_row("colour", ["async", "sync"])
@each_row("once", [True, False], ids=["once", "forever"])
async def test_a_stop_waits_for_a_dead_letter_that_is_handled_again_and_begins_no_other(
    world: World, once: bool, colour: str
) -> None:
    """It cut a handler off in the middle: an effect outside the database was unknown from then on."""
    inbox, loop = world.inbox(effects="external", permanent=ValueError), asyncio.get_running_loop()
    begun, go_on = asyncio.Event(), asyncio.Event()
    failing, handled = [True], list[str]()

    async def work(message: InboxMessage[Any]) -> None:
        if failing:
            raise ValueError("no")
        begun.set()
        await go_on.wait()
        handled.append(message.envelope.id)

    if colour == "async":
        handle = inbox.handler("stock", max_attempts=1)(work)
    else:

        @inbox.handler("stock", max_attempts=1)
        def handle(message: InboxMessage[Any]) -> None:
            if failing:
                raise ValueError("no")
            asyncio.run_coroutine_threadsafe(work(message), loop).result(60)

    for number in (1, 2):
        await handle.ahandle(envelope(number))
    failing.clear()
    world.mark(inbox)
    subscription = Subscription(Recording(MemoryBroker()), handle, redrive="10ms")
    running = asyncio.create_task(subscription.arun_once() if once else subscription.arun_forever())
    await asyncio.wait_for(begun.wait(), 30)
    assert subscription.in_progress == 1
    subscription.stop()
    for _ in range(50):
        await asyncio.sleep(0.01)
        assert not running.done()
    go_on.set()
    await asyncio.wait_for(running, 30)
    assert handled == ["1"]
    assert [(one.arrival.envelope.id, one.marked) for one in world.letters(inbox)] == [("2", True)]
    assert [one.became for one in await handle.ahandle_marked()] == [MessageOutcome.HANDLED]
    await world.boundaries[-1].aclose()


@ONE
async def test_a_handler_that_can_never_run_ends_its_subscription(world: World) -> None:
    """Instead of a backlog that grows while everything seems to be alive."""
    inbox = world.inbox(store="postgresql+asyncpg://nobody@localhost/none", dead_letter_store=world.url)
    handle = inbox.handler("stock")(lambda message: None)
    broker = MemoryBroker()
    broker.put([envelope(1)])
    with pytest.raises(ConfigurationError, match="async code only"):
        async with asyncio.timeout(60):
            await Subscription(Recording(broker), handle).arun_forever()
    assert (broker.depth(), "consumer_failed" in world.names()) == (1, True)
    await world.boundaries[-1].aclose()


@pytest.mark.slow
@ONE
async def test_a_store_that_cannot_be_checked_at_the_start_ends_no_subscription(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception of a user's pool is no error of ours: a token that is not given out, for a moment."""
    handle = world.inbox().handler("stock")(lambda message: world.apply(message.tx, message.envelope.id))

    async def away() -> None:
        raise RuntimeError("the service that gives out passwords is away")

    monkeypatch.setattr(handle.setting.entry.backend, "check_in_loop", away)
    broker = MemoryBroker()
    broker.put([envelope(1)])
    async with Subscription(Recording(broker), handle):
        await until(lambda: not broker.depth())
    assert world.applied() == ["1"]


@pytest.mark.slow
@ONE
@each_row("call", ["lag", "ack", "receive"])
async def test_a_client_that_loses_a_cancellation_keeps_no_subscription_alive(call: str, world: World) -> None:
    """redis-py and others do under Python 3.11: the task that was cancelled went on, and its subscription never ended.

    It left a task that received on, with the streams that it held, where the application went on.
    """
    asked = asyncio.Event()

    class Losing(Recording):
        async def _maybe(self, name: str) -> None:
            if name == call and not asked.is_set():
                asked.set()
                with suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()

        async def receive(self, most: int, wait: float, /) -> Sequence[Delivery]:
            await self._maybe("receive")
            return await super().receive(most, wait)

        async def ack(self, deliveries: Sequence[Delivery], /) -> None:
            await self._maybe("ack")
            await super().ack(deliveries)

        async def lag(self) -> dict[str, int]:
            await self._maybe("lag")
            return {}

    @world.inbox().handler("stock")
    async def handle(message: InboxMessage) -> None:
        world.apply(message.tx, int(message.envelope.id))

    broker = MemoryBroker()
    broker.put([envelope(1)])
    before = asyncio.all_tasks()
    running = asyncio.create_task(Subscription(Losing(broker), handle).arun_forever())
    async with asyncio.timeout(30):
        await asked.wait()
    running.cancel()
    done, _ = await asyncio.wait([running], timeout=5)
    await asyncio.sleep(0.1)
    left = asyncio.all_tasks() - before
    assert done
    assert not left


@pytest.mark.slow
@ONE
async def test_a_subscription_outlives_a_look_for_dead_letters_that_fails(world: World) -> None:
    inbox = world.inbox()
    handle = inbox.handler("stock")(lambda message: world.apply(message.tx, message.envelope.id))
    broker = MemoryBroker()
    handle.handle(envelope(2, payload=b"{"))
    world.mark(inbox)
    with world.connected() as perform:
        perform("UPDATE retrysafe_inbox_dead SET headers = 'no JSON'")
    async with Subscription(Recording(broker), handle, redrive="10ms"):
        await until(lambda: "consumer_failed" in world.names())
        broker.put([envelope(1)])
        await until(lambda: not broker.depth())
    assert world.applied() == ["1"]
    await world.boundaries[-1].aclose()


@pytest.mark.slow
@ONE
async def test_an_error_of_no_message_is_raised_by_one_run_and_survived_by_a_long_one(world: World) -> None:
    inbox = world.inbox()
    handle = inbox.handler("stock", max_attempts=1)(lambda message: world.apply(message.tx, message.envelope.id))
    with world.connected() as perform:
        perform("ALTER TABLE retrysafe_records RENAME TO hidden")
    broker = MemoryBroker()
    broker.put([envelope(1)])
    consumer = Recording(broker)
    with pytest.raises(Exception, match="retrysafe_records"):
        await Subscription(consumer, handle).arun_once()
    await consumer.aclose()
    async with Subscription(Recording(broker), handle):
        await until(lambda: "consumer_failed" in world.names())
        with world.connected() as perform:
            perform("ALTER TABLE hidden RENAME TO retrysafe_records")
        await until(lambda: not broker.depth())
    assert (world.applied(), world.letters(inbox)) == (["1"], [])
    await world.boundaries[-1].aclose()


@ONE
def test_a_plain_program_runs_it_in_its_own_thread(world: World) -> None:
    handle = world.inbox().handler("stock")(lambda message: world.apply(message.tx, message.envelope.id))
    broker = MemoryBroker(partitions=3)
    broker.put([envelope(n, n % 5) for n in range(25)])
    assert Subscription(broker.consumer("orders"), handle).run_once() == {MessageOutcome.HANDLED: 25}
    assert (len(world.applied()), broker.depth()) == (25, 0)


async def test_a_partition_has_one_consumer_and_another_one_when_it_leaves() -> None:
    broker = MemoryBroker(partitions=4)
    broker.put([envelope(n, n % 8) for n in range(40)])
    one, other = broker.consumer("orders"), broker.consumer("orders")
    await other.receive(0, 0)
    mine = await one.receive(100, 0)
    theirs = await other.receive(100, 0)
    assert {d.partition for d in mine}.isdisjoint({d.partition for d in theirs})
    assert len(mine) + len(theirs) == 40
    await one.aclose()
    again = await other.receive(100, 0)
    assert [d.envelope.id for d in again] == [d.envelope.id for d in mine]
    assert all(d.redelivered for d in again)
