"""The conformance suite of publishers: what a relay relies on, as cases over a publisher and a look at what arrived.

Subclass `PublisherSuite` and give it a fixture ``publishing``. What a publisher and its broker cannot do is declared
in its `PublisherFeatures`, and the cases that need it are skipped by that name.
"""

from __future__ import annotations

import asyncio
import inspect
import secrets
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import pytest

from retrysafe.protocol.messages import Envelope, PublishResult, PublishStatus

__all__ = ["CASES", "PublisherFeatures", "PublisherSuite", "Publishing", "test_publisher"]

TAKEN = (PublishStatus.ACKED, PublishStatus.DUPLICATE)
BLAMELESS = {PublishStatus.STALLED, PublishStatus.UNAVAILABLE, PublishStatus.POSTPONED}
"""The statuses that spend no attempt."""
PATIENCE = 60.0
"""Seconds within which a call has to end, whatever the broker does."""


class PublisherFeatures(NamedTuple):
    """The features of a publisher and its broker."""

    ordered: bool = True
    """The messages of one call, and then of the next, arrive in that order."""
    duplicates: bool = False
    """A message that comes again is recognised, for a while."""
    reports_missing: bool = False
    """A message that nothing takes is told: STALLED, or FATAL; ``elsewhere`` names a topic that nothing takes."""
    concurrent: bool = True
    """It may be called while another call is under way, as relays do with an async one."""
    tells_duplicates: bool = True
    """It says so when it recognises a message; False where that is acknowledged like any other."""


class Publishing(ABC):
    """A publisher on a broker of yours, for one test: a topic of its own, and a look at what arrived there."""

    features: PublisherFeatures = PublisherFeatures()
    publisher: Any
    """A `retrysafe.messaging.brokers.base.Publisher` or `AsyncPublisher`."""
    topic: str
    elsewhere: str = ""
    beside: str = ""
    """Another topic, with a destination of its own that takes messages; empty where there is none."""
    largest: int | None = None
    """The largest payload in bytes that the broker takes, as it is set up here; None where that cannot be reached."""

    @abstractmethod
    async def arrived(self) -> Sequence[Envelope]:
        """Return the messages that have arrived at the topic since the test began, in its order, whole."""

    async def cut(self) -> bool:
        """Make the broker unreachable for the publisher, until `mend`; False where that cannot be done here."""
        return False

    async def mend(self) -> None:
        """Make it reachable again."""
        raise NotImplementedError("A bench that can cut() its broker off has to mend() it: define that too.")

    async def stall(self) -> bool:
        """Let the destination of the topic take nothing, as a queue that is full or missing, and keep what it has.

        Until `unstall`; False where that cannot be done here.
        """
        return False

    async def unstall(self) -> None:
        """Let it take messages again."""
        raise NotImplementedError("A bench that can stall() a destination has to unstall() it: define that too.")

    # ------------------------------------------------------------ short hands for cases

    def envelope(self, number: int = 0, **other: Any) -> Envelope:
        """A message."""
        made = Envelope(
            id=f"{self.topic}-{number}",
            topic=self.topic,
            key=f"key {number}",
            type="orders.placed.v1",
            source="/suite",
            sequence=number,
            headers={},
            payload=b'{"number":%d}' % number,
            media_type="application/json",
        )
        return made._replace(**other)

    async def publish(self, *envelopes: Envelope) -> list[PublishResult]:
        """Publish; the answer has to come, and to be one reception for each message."""
        async with asyncio.timeout(PATIENCE):
            if inspect.iscoroutinefunction(self.publisher.publish):
                said = await self.publisher.publish(list(envelopes))
            else:
                said = await asyncio.to_thread(self.publisher.publish, list(envelopes))
        assert len(said) == len(envelopes), f"{len(envelopes)} messages, {len(said)} receptions"
        assert all(isinstance(one.status, PublishStatus) for one in said)
        return list(said)

    async def publish_until_taken(self, *envelopes: Envelope) -> None:
        """As a relay does: what was not taken again, under its id."""
        left = list(envelopes)
        async with asyncio.timeout(PATIENCE):
            while left:
                said = await self.publish(*left)
                left = [one for one, word in zip(left, said, strict=True) if word.status not in TAKEN]


Case = Callable[[Publishing], Awaitable[None]]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    """Add a case to the suite."""
    CASES[function.__name__] = function
    return function


def _distinct(envelopes: Sequence[Envelope]) -> list[str]:
    return list(dict.fromkeys(one.id for one in envelopes))


def _needs(publishing: Publishing, feature: str) -> None:
    if not getattr(publishing.features, feature):
        pytest.skip(f"{type(publishing).__name__} declares {feature}=False")


@case
async def what_is_acked_has_arrived(publishing: Publishing) -> None:
    envelopes = [publishing.envelope(number) for number in range(20)]
    said = await publishing.publish(*envelopes)
    assert [one.status for one in said] == [PublishStatus.ACKED] * 20
    assert sorted(one.id for one in await publishing.arrived()) == sorted(one.id for one in envelopes)


@case
async def what_arrives_is_whole(publishing: Publishing) -> None:
    # a payload that the broker takes, also in base64 in an event's JSON
    large = 200_000 if publishing.largest is None else min(200_000, publishing.largest // 2)
    envelopes = [
        publishing.envelope(1, key=None, sequence=None),
        publishing.envelope(2, key='ключ, "quoted" 100%', sequence=2**40, source="https://shop.example/a?b#c"),
        publishing.envelope(3, payload=bytes(range(256)), media_type="application/avro"),
        publishing.envelope(4, payload=b"", headers={"tenant": "ü ß", "traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"}),
        publishing.envelope(5, payload=b"x" * large, type="orders.placed.v2"),
    ]
    for envelope in envelopes:
        assert [one.status for one in await publishing.publish(envelope)] == [PublishStatus.ACKED]
    assert sorted(await publishing.arrived()) == sorted(envelopes)


@case
async def the_order_of_calls_is_kept(publishing: Publishing) -> None:
    _needs(publishing, "ordered")
    envelopes = [publishing.envelope(number, key="same") for number in range(10)]
    for envelope in envelopes:
        assert [one.status for one in await publishing.publish(envelope)] == [PublishStatus.ACKED]
    assert [one.id for one in await publishing.arrived()] == [one.id for one in envelopes]


@case
async def the_order_within_a_call_is_kept(publishing: Publishing) -> None:
    _needs(publishing, "ordered")
    envelopes = [publishing.envelope(number) for number in range(50)]
    await publishing.publish(*envelopes)
    assert [one.id for one in await publishing.arrived()] == [one.id for one in envelopes]


@case
async def nothing_is_nothing(publishing: Publishing) -> None:
    assert await publishing.publish() == []
    assert await publishing.arrived() == []


@case
async def a_message_that_comes_again_is_taken_again_or_recognised(publishing: Publishing) -> None:
    envelope = publishing.envelope(1)
    await publishing.publish(envelope)
    (said,) = await publishing.publish(envelope)
    arrived = await publishing.arrived()
    assert {one.id for one in arrived} == {envelope.id}
    assert said.status in TAKEN
    if publishing.features.duplicates:
        told = PublishStatus.DUPLICATE if publishing.features.tells_duplicates else PublishStatus.ACKED
        assert (said.status, len(arrived)) == (told, 1)
    else:
        assert (said.status, len(arrived)) == (PublishStatus.ACKED, 2), "it says that it does not recognise duplicates"


@case
async def another_source_may_use_the_same_id(publishing: Publishing) -> None:
    for source in ("/one", "/other"):
        (said,) = await publishing.publish(publishing.envelope(1, source=source))
        assert said.status is PublishStatus.ACKED
    assert {one.source for one in await publishing.arrived()} == {"/one", "/other"}


@case
async def what_nothing_takes_is_told_and_keeps_no_other(publishing: Publishing) -> None:
    _needs(publishing, "reports_missing")
    missing = publishing.envelope(1, topic=publishing.elsewhere)
    said = await publishing.publish(missing, publishing.envelope(2))
    assert said[0].status in (PublishStatus.STALLED, PublishStatus.REJECTED), (
        "it spends no attempt, or is given up for good"
    )
    assert said[0].error, "it says why"
    assert said[1].status is PublishStatus.ACKED
    assert [one.id for one in await publishing.arrived()] == [publishing.envelope(2).id]


@case
async def calls_at_the_same_time_do_not_meet(publishing: Publishing) -> None:
    _needs(publishing, "concurrent")
    calls = [[publishing.envelope(number * 10 + n) for n in range(10)] for number in range(5)]
    said = await asyncio.gather(*(publishing.publish(*call) for call in calls))
    refused = [one for call in said for one in call if one.status is not PublishStatus.ACKED]
    assert not refused, refused
    assert len(await publishing.arrived()) == 50


@case
async def a_broker_that_is_away_is_told_and_nothing_is_lost(publishing: Publishing) -> None:
    """51: what is not acked is sent again, under the same id; what was acked has arrived."""
    before = publishing.envelope(1)
    await publishing.publish_until_taken(before)
    if not await publishing.cut():
        pytest.skip(f"{type(publishing).__name__} cannot cut its broker off")
    envelopes = [publishing.envelope(number) for number in range(2, 8)]
    said = await publishing.publish(*envelopes)
    assert {one.status for one in said} <= {*BLAMELESS, PublishStatus.UNKNOWN}, "nobody has it, and none is to blame"
    await publishing.mend()
    await publishing.publish_until_taken(*envelopes)
    assert set(_distinct(await publishing.arrived())) == {before.id, *(one.id for one in envelopes)}


@case
async def a_destination_that_takes_nothing_blames_no_message(publishing: Publishing) -> None:
    """Back-pressure is not poison: an attempt is spent only by what is refused for the message itself."""
    before = publishing.envelope(1)
    await publishing.publish_until_taken(before)
    if not await publishing.stall():
        pytest.skip(f"{type(publishing).__name__} cannot stall its destination")
    envelopes = [publishing.envelope(number) for number in range(2, 6)]
    said = [one for envelope in envelopes for one in await publishing.publish(envelope)]
    said += await publishing.publish(*envelopes)
    assert {one.status for one in said} <= BLAMELESS, "a message that is blamed for it becomes a dead letter"
    assert len({one.error for one in said}) == 1, "errors are grouped by their text: no numbers of messages in it"
    assert said[0].error, "it says why"
    await publishing.unstall()
    await publishing.publish_until_taken(*envelopes)
    assert set(_distinct(await publishing.arrived())) >= {one.id for one in envelopes}


@case
async def a_destination_that_takes_nothing_keeps_no_other(publishing: Publishing) -> None:
    if not publishing.beside or not await publishing.stall():
        pytest.skip(f"{type(publishing).__name__} cannot stall one of two destinations")
    for number in (1, 2):
        other = publishing.envelope(10 + number, topic=publishing.beside)
        stalled, taken = await publishing.publish(publishing.envelope(number), other)
        assert stalled.status in BLAMELESS
        assert taken.status in TAKEN
    route = getattr(publishing.publisher, "destination", None)
    if route is not None:
        assert route(publishing.envelope(1)) != route(publishing.envelope(1, topic=publishing.beside))
    await publishing.unstall()


@case
async def what_is_too_large_is_refused_alone(publishing: Publishing) -> None:
    if publishing.largest is None:
        pytest.skip(f"{type(publishing).__name__} has no limit of its own")
    envelopes = [publishing.envelope(number) for number in range(4)]
    envelopes[2] = envelopes[2]._replace(payload=b"x" * (publishing.largest + 1))
    said = await publishing.publish(*envelopes)
    assert said.pop(2).status in (PublishStatus.RETRYABLE, PublishStatus.REJECTED)
    assert {one.status for one in said} == {PublishStatus.ACKED}
    assert [one.id for one in await publishing.arrived()].count(envelopes[2].id) == 0


@pytest.mark.parametrize("name", CASES)
async def test_publisher(name: str, publishing: Publishing) -> None:
    """One case of the suite; needs pytest-asyncio."""
    await CASES[name](publishing)


class PublisherSuite:
    """Everything that a publisher must do; subclass it under a name that begins with "Test".

    Give it a fixture ``publishing``: a `Publishing` of yours with a topic of its own.
    """

    test_publisher = staticmethod(test_publisher)


def topic() -> str:
    """A topic that no other test uses."""
    return f"suite-{secrets.token_hex(6)}"
