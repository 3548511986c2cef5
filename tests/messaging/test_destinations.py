"""A destination that takes nothing: its messages wait, spend no attempt and are not overtaken, and no other waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from retrysafe.errors import ConfigurationError
from retrysafe.messaging import BrokerUnavailable, Message
from retrysafe.messaging.brokers.memory.publisher import AsyncMemoryPublisher
from retrysafe.messaging.relay.destination_breaker import LONGEST_PAUSE, Breaker
from retrysafe.messaging.relay.dispatch import Dispatch
from retrysafe.messaging.relay.relay import Relay, Relayed
from retrysafe.protocol.messages import Envelope, PublishResult, PublishStatus, Queued
from retrysafe.protocol.ordering import bucket, lane
from retrysafe.stop_signal import StopSignal
from tests.faults.helpers import Told, auntil
from tests.loops import InterruptedLoop
from tests.messaging.test_operating import Judging, Place
from tests.tables import each_row

ACKED = PublishResult(PublishStatus.ACKED)
FULL = PublishResult(PublishStatus.STALLED, "the queue is full")
LOST = PublishResult(PublishStatus.UNKNOWN, "the connection was lost")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place("sqlite", f"sqlite:///{tmp_path}/shop.db")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def running(place: Place, publisher: Any, **options: Any) -> tuple[Relay, Clock, Callable[[], None]]:
    """A relay that runs, its clock, and one of its rounds: destinations are remembered from one to the next."""
    from retrysafe.messaging.relay.bucket import Totals

    clock = Clock()
    relay = place.relay(publisher, **{"backoff_base": "1ms", "backoff_max": "1ms", **options})
    relay._dispatch._clock = clock
    (setting, client) = (relay._setting, relay._open())

    def round_() -> None:
        relay._round(setting, client, Totals())

    return relay, clock, round_


def in_one_bucket(place: Place) -> None:
    place.sql("UPDATE retrysafe_outbox SET bucket = 0")


# ---------------------------------------------------------------- the breaker


def test_a_breaker_opens_and_lets_one_probe_through_at_a_time() -> None:
    breaker = Breaker()
    assert breaker.admits(0.0)
    assert breaker.admits(0.0)
    assert breaker.note_failure(0.0, 0.0) == 0.25
    assert (breaker.is_shut(0.2), breaker.admits(0.2), breaker.pause(0.2)) == (True, False, pytest.approx(0.05))
    assert not breaker.is_shut(0.3)
    assert breaker.admits(0.3), "the probe"
    assert (breaker.is_shut(0.3), breaker.admits(0.3)) == (True, False)
    breaker.note_nothing()
    assert breaker.admits(0.3), "the one before it has told nothing"
    assert breaker.note_failure(0.3, 0.0) == 0.5
    assert breaker.note_answer()
    assert breaker.admits(0.3)
    assert not breaker.note_answer(), "that is no news"


def test_the_pauses_of_a_breaker_grow_with_jitter_to_a_bound() -> None:
    breaker = Breaker()
    assert [breaker.note_failure(0.0, 0.5) for _ in range(9)][-1] == 22.5
    assert breaker.note_failure(0.0, 0.999) < 30.0
    assert breaker.note_failure(0.0, 0.0, pause=120.0) == 120.0, "the destination asked for it"
    assert breaker.note_failure(0.0, 0.0, pause=1e9) == LONGEST_PAUSE


# ---------------------------------------------------------------- no attempt is spent, nothing overtakes


@pytest.mark.fault(51)
@each_row("said", [FULL, LOST], ids=["stalled", "unknown"])
def test_a_destination_that_takes_nothing_costs_no_attempt_and_keeps_the_order(
    said: PublishResult, place: Place
) -> None:
    """However long it lasts: every message leaves when it is over, each key in order."""
    ids = place.write(*(Message("full", n, key=key) for key in "ABCD" for n in range(3)))
    others = place.write(Message("well", 1, key="A"), Message("well", 2, key="B"))
    told = Told()
    publisher = Judging(lambda one: said if one.topic == "full" else ACKED)
    _, clock, round_ = running(place, publisher, max_attempts=1, max_crashes=1, observers=[told])
    for _ in range(20):
        round_()
        clock.now += 60.0
    assert {one.id for one in publisher.published} == set(others)
    assert place.sql("SELECT count(*) FROM retrysafe_outbox_dead") == [(0,)]
    assert place.sql("SELECT sum(finished), sum(started) FROM retrysafe_outbox_attempts") in ([(None, None)], [(0, 0)])
    stalled = [one for one in told.occurrences if one.name == "destination_stalled"]
    assert {(one.fields["destination"], one.fields["error"]) for one in stalled} == {("full", said.error)}
    publisher.judge = lambda one: ACKED
    for _ in range(100):
        clock.now += 60.0
        round_()
        if not place.sql("SELECT 1 FROM retrysafe_outbox"):
            break
    arrived = [one.id for one in publisher.published if one.topic == "full"]
    assert [arrived.index(one) for one in ids[0:3]] == sorted(arrived.index(one) for one in ids[0:3])
    assert sorted(arrived) == sorted(ids)
    assert told.names["destination_recovered"] == 1


class Refusing(Judging):
    """Raises `ConfigurationError` for whatever it is given together with a message of some topics."""

    def __init__(self, *topics: str) -> None:
        super().__init__(lambda one: ACKED)
        self.topics = topics
        self.calls = 0

    def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
        self.calls += 1
        if any(one.topic in self.topics for one in envelopes):
            raise ConfigurationError("there is no route")
        return super().publish(envelopes)


class AsyncRefusing:
    def __init__(self, *topics: str) -> None:
        self.inner = Refusing(*topics)

    async def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
        return self.inner.publish(envelopes)

    async def aclose(self) -> None:
        """Nothing to hang up."""


class GroupRefusing(AsyncRefusing):
    """Publishes in a task, whose error comes in a group."""

    async def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
        async with asyncio.TaskGroup() as group:
            said = group.create_task(super().publish(envelopes))
        return said.result()


class RoutedRefusing(AsyncRefusing):
    by_topic = True

    def destination(self, envelope: Envelope, /) -> str:
        return envelope.topic


def relayed_once(place: Place, publisher: Any) -> Relayed:
    relay = place.relay(publisher, max_attempts=1)
    return relay.run_once() if isinstance(publisher, Refusing) else asyncio.run(relay.arun_once())


@pytest.mark.fault(51)
@pytest.mark.parametrize("kind", [Refusing, AsyncRefusing, GroupRefusing, RoutedRefusing])
@pytest.mark.parametrize("refused", [1, 90])
def test_a_message_that_a_publisher_refuses_as_wrong_use_holds_up_only_its_lane(
    refused: int, kind: type[Refusing | AsyncRefusing], place: Place
) -> None:
    """Nothing of its bucket left any more: what a publisher raises was said of all that it was given."""
    place.write(*(Message("nowhere", n, key=str(n)) for n in range(refused)), Message("nowhere", 1, key="0"))
    well = place.write(*(Message("well", n, key=str(n)) for n in range(5)))
    in_one_bucket(place)
    publisher = kind("nowhere")
    assert relayed_once(place, publisher).published == len(well)
    inner = publisher if isinstance(publisher, Refusing) else publisher.inner
    assert sorted(one.id for one in inner.published) == sorted(well)
    assert place.sql("SELECT count(*) FROM retrysafe_outbox") == [(refused + 1,)]
    assert place.sql("SELECT coalesce(sum(finished), 0) FROM retrysafe_outbox_attempts") == [(0,)]
    assert place.sql("SELECT count(*) FROM retrysafe_outbox_dead") == [(0,)]


@pytest.mark.fault(51)
@each_row("kind", [Refusing, AsyncRefusing])
def test_a_message_that_is_refused_before_anything_has_left_ends_no_run(
    kind: type[Refusing | AsyncRefusing], place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ended when the bucket of the refused message came first: the broker could not be reached, it said."""
    place.write(Message("nowhere", 1, key="A"))
    place.sql("UPDATE retrysafe_outbox SET bucket = 0")
    place.write(*(Message("well", n, key=str(n)) for n in range(5)))
    place.sql("UPDATE retrysafe_outbox SET bucket = 1 WHERE topic = 'well'")
    monkeypatch.setattr("retrysafe.messaging.relay.relay._shuffle", sorted)
    assert relayed_once(place, kind("nowhere")) == Relayed(5, 1, 0)
    assert place.sql("SELECT count(*) FROM retrysafe_outbox_attempts WHERE error <> ''") == [(1,)]


@each_row("kind", [Refusing, AsyncRefusing, RoutedRefusing])
def test_a_publisher_that_refuses_everything_takes_nothing_from_anybody(
    kind: type[Refusing | AsyncRefusing], place: Place
) -> None:
    """It is said once, of the publisher, and not of each message."""
    place.write(*(Message(topic, n, key=str(n)) for topic in ("nowhere", "neither") for n in range(30)))
    in_one_bucket(place)
    publisher = kind("nowhere", "neither")
    with pytest.raises(BrokerUnavailable, match="there is no route"):
        relayed_once(place, publisher)
    assert place.sql("SELECT count(*) FROM retrysafe_outbox_attempts WHERE error <> ''") == [(0,)]
    assert (publisher if isinstance(publisher, Refusing) else publisher.inner).calls < 60


def test_messages_waiting_for_a_destination_are_due_and_alarm_with_the_reason(place: Place) -> None:
    place.write(*(Message("full", n, key=str(n)) for n in range(3)), Message("well", 1))
    relay = place.relay(Judging(lambda one: FULL if one.topic == "full" else ACKED))
    assert relay.run_once().published == 1
    with place.operator() as operator:
        (standing,) = operator.status().backlog
    assert (standing.topic, standing.due, standing.error) == ("full", 3, FULL.error)


def test_a_destination_that_takes_nothing_is_probed_with_one_message_at_a_time(place: Place) -> None:
    place.write(*(Message("full", n, key=str(n)) for n in range(50)))
    publisher = Judging(lambda one: FULL)
    _, clock, round_ = running(place, publisher)
    round_()
    first = len(publisher.offered)
    round_()
    assert len(publisher.offered) == first, "it is left alone"
    for probes in range(1, 5):
        clock.now += 60.0
        round_()
        assert len(publisher.offered) == first + probes


def test_a_destination_that_asks_for_a_pause_gets_it(place: Place) -> None:
    place.write(Message("full", 1, key="A"))
    publisher = Judging(lambda one: FULL._replace(pause=120.0))
    _, clock, round_ = running(place, publisher)
    for _ in range(2):
        round_()
        clock.now += 110.0
    assert len(publisher.offered) == 1


def test_a_backlog_of_a_destination_that_takes_nothing_fills_no_batch(place: Place) -> None:
    place.write(*(Message("full", n, key=str(n)) for n in range(60)))
    others = place.write(*(Message("well", n, key=str(n)) for n in range(5)))
    in_one_bucket(place)
    publisher = Judging(lambda one: ACKED if one.topic == "well" else FULL)
    _, _, round_ = running(place, publisher, batch=10)
    for _ in range(2):
        round_()
    assert {one.id for one in publisher.published} == set(others)
    assert len(publisher.offered) == 15


class Spread(Judging):
    """All messages go to the partition that their key names."""

    by_topic = False

    def destination(self, envelope: Envelope) -> str:
        return f"{envelope.topic}.{envelope.key}"


def test_one_of_the_partitions_of_a_topic_keeps_the_others_from_nothing(place: Place) -> None:
    of_one_bucket = (
        str(n) for n in range(10_000) if bucket(lane("orders", str(n), "")) == bucket(lane("orders", "0", ""))
    )
    keys = [next(of_one_bucket) for _ in range(4)]
    full = place.write(*(Message("orders", n, key="0") for n in range(30)))
    others = place.write(*(Message("orders", n, key=keys[1 + n % 3]) for n in range(9)))
    publisher = Spread(lambda one: FULL._replace(pause=600.0) if one.key == "0" else ACKED)
    _, clock, round_ = running(place, publisher, batch=10, max_attempts=1)
    for _ in range(5):
        round_()
    assert {one.id for one in publisher.published} == set(others)
    assert place.sql("SELECT sum(finished) FROM retrysafe_outbox_attempts") == [(0,)]
    publisher.judge = lambda one: ACKED
    clock.now += 600.0
    place.sql("UPDATE retrysafe_outbox_attempts SET not_before = 0")  # its pause is over
    for _ in range(5):
        round_()
    assert [one.id for one in publisher.published if one.key == "0"] == full


# ---------------------------------------------------------------- who is to blame


def test_a_message_that_no_outcome_is_known_of_is_blamed_when_others_are_taken(place: Place) -> None:
    """It takes its connection with it, and whatever is under way beside it: only it is given up."""
    ids = place.write(*(Message("orders", n, key=str(n)) for n in range(20)))
    in_one_bucket(place)

    class Fragile(Judging):
        def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
            if any(one.id == ids[7] for one in envelopes):
                return [LOST] * len(envelopes)
            return super().publish(envelopes)

    publisher = Fragile(lambda one: ACKED)
    _, clock, round_ = running(place, publisher, max_attempts=3)
    for _ in range(60):
        clock.now += 60.0
        place.sql("UPDATE retrysafe_outbox_attempts SET not_before = 0")
        place.write(Message("orders", "more", key="more"))  # that its destination takes
        round_()
        if place.sql("SELECT 1 FROM retrysafe_outbox_dead"):
            break
    dead = place.sql("SELECT message_id, finished FROM retrysafe_outbox_dead")
    assert dead == [(ids[7], 3)]
    assert {one.id for one in publisher.published} >= set(ids) - {ids[7]}


def test_a_publisher_that_raises_in_an_outage_gives_nothing_up(place: Place) -> None:
    place.write(*(Message("orders", n, key=str(n)) for n in range(20)))

    def judge(envelope: Envelope) -> PublishResult:
        raise OSError("connection reset")

    _, clock, round_ = running(place, Judging(judge), max_attempts=1)
    for _ in range(30):
        clock.now += 60.0
        place.sql("UPDATE retrysafe_outbox_attempts SET not_before = 0")
        round_()
    assert place.sql("SELECT count(*) FROM retrysafe_outbox_dead") == [(0,)]
    assert len(place.sql("SELECT id FROM retrysafe_outbox")) == 20


# ---------------------------------------------------------------- one that does not answer


class Hanging(AsyncMemoryPublisher):
    """Answers for one destination when it is told to."""

    by_topic = True

    def __init__(self) -> None:
        super().__init__()
        self.answers = asyncio.Event()
        self.offered: list[str] = []

    def destination(self, envelope: Envelope) -> str:
        return envelope.topic

    async def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
        self.offered += [one.id for one in envelopes]
        if envelopes[0].topic == "hanging":
            await self.answers.wait()
        return await super().publish(envelopes)


async def test_a_destination_that_does_not_answer_keeps_only_its_own_messages(place: Place) -> None:
    ids = place.write(*(Message("hanging", n, key=str(n % 3)) for n in range(9)))
    others = place.write(*(Message(f"well {n % 4}", n, key=str(n)) for n in range(40)))
    publisher = Hanging()
    relay = place.relay(publisher, max_attempts=1)
    relay._dispatch._patience = 0.01
    async with relay:
        await auntil(lambda: {one.id for one in publisher.published} == set(others))
        more = await asyncio.to_thread(place.write, Message("well 1", "more", key="0"))
        await auntil(lambda: publisher.published[-1].id == more[0])
        publisher.answers.set()
        await auntil(lambda: not place.sql("SELECT 1 FROM retrysafe_outbox"))
    assert sorted(publisher.offered) == sorted(ids + others + more), "nothing is published twice"
    for key in range(3):
        assert [one.id for one in publisher.published if one.id in ids[key::3]] == ids[key::3]
    assert place.sql("SELECT count(*) FROM retrysafe_outbox_dead") == [(0,)]


async def test_a_run_waits_for_what_it_has_left_under_way(place: Place) -> None:
    place.write(*(Message("hanging", n, key="A") for n in range(2)))
    publisher = Hanging()
    relay = place.relay(publisher)
    relay._dispatch._patience = 0.0
    run = asyncio.create_task(relay.arun_once())
    await auntil(lambda: len(publisher.offered) == 1)
    publisher.answers.set()
    assert (await run).published == 2
    assert len(publisher.offered) == 2


async def test_messages_under_way_when_a_relay_ends_leave_again(place: Place) -> None:
    (one,) = place.write(Message("hanging", 1, key="A"))
    publisher = Hanging()
    relay = place.relay(publisher, max_attempts=1)
    relay._dispatch._patience = 0.0
    async with relay:
        await auntil(lambda: publisher.offered)
    publisher.answers.set()
    assert await place.relay(publisher).arun_once() == Relayed(1, 0, 0)
    assert [each.id for each in publisher.published] == [one]


def test_calls_of_a_closed_event_loop_are_under_way_no_more() -> None:
    """As by a KeyboardInterrupt out of `run_until_complete`: no later run would have published these messages."""

    class Slow(AsyncMemoryPublisher):
        answers = False

        def destination(self, envelope: Envelope, /) -> str:
            return envelope.topic

        async def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
            if not self.answers:
                await asyncio.Event().wait()
            return await super().publish(envelopes)

    publisher = Slow()
    dispatch = Dispatch(publisher, lambda name, **fields: None, patience=0.01)
    of = Envelope("m1", "orders", "a", "orders.v1", "/shop", 1, {}, b"{}", "application/json")
    wave = [Queued(1, 1, 0, 0, 0, of)]

    async def again() -> PublishResult:
        assert not await asyncio.wait_for(dispatch.settle(StopSignal()), 30)
        assert dispatch.take_ended() == []
        (said,) = await dispatch.apublish(wave)
        await dispatch.aclose()
        return said

    with InterruptedLoop() as loop:
        (left,) = loop.run(dispatch.apublish(wave))
        assert left.status is PublishStatus.POSTPONED
        loop.close()
        dispatch.reset()
        publisher.answers = True
        assert asyncio.run(again()).status is PublishStatus.ACKED
