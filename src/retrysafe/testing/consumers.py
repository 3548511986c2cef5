"""The conformance suite of consumers: what every `Consumer` must do, as cases over one bench.

Write a `ConsumerBench` for your broker, and give `ConsumerSuite` a function that opens it. What a broker cannot do is
declared in its features, and the cases that need it are skipped, by name.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple, Protocol, TypeVar

import pytest

from retrysafe.messaging.brokers.base import Consumer
from retrysafe.protocol.messages import Delivery, Envelope

T = TypeVar("T")

PATIENCE = 60.0
"""Seconds after which a case that has not ended has failed."""
_SOON = 30.0
"""Seconds in which a message that is there is handed out, however busy the machine."""
_QUIET = 0.5
"""Seconds without a message after which a broker that is asked has none."""


class ConsumerFeatures(NamedTuple):
    """The features of a broker and its consumer, beyond handing out messages and settling them."""

    exclusive: bool = True
    """Of several consumers one has a partition at a time, so that messages of a key keep their order among them."""
    durable: bool = True
    """Unsettled messages outlive their consumer; False for a broker that lives inside the consumer's process."""
    ahead: bool = True
    """The later messages of a lane are handed out before the first is settled, however many there are."""
    several: bool = True
    """Several messages of a lane are handed out before the first is settled; if not, ``ahead`` has to be False."""


class ConsumerBench(Protocol):
    """One topic of a broker, new and empty, and consumers of it that together take each message once."""

    @property
    def topic(self) -> str:
        """Its name."""
        ...

    @property
    def features(self) -> ConsumerFeatures:
        """The features that the cases may rely on."""
        ...

    async def consumer(self) -> Consumer:
        """Another consumer of the topic."""
        ...

    async def crash(self, consumer: Consumer) -> None:
        """Cut a consumer off, as the end of its process would: nothing is said to the broker."""
        ...

    async def publish(self, envelopes: Sequence[Envelope]) -> None:
        """Publish to the topic, in this order."""
        ...


Case = Callable[["Trial"], Awaitable[None]]
CASES: dict[str, tuple[Case, str]] = {}
"""Each case by its name, and the feature that it needs, if it needs one."""


def _case(needs: str = "") -> Callable[[Case], Case]:
    def add(function: Case) -> Case:
        CASES[getattr(function, "__name__", "")] = (function, needs)
        return function

    return add


class Trial:
    """The actions of cases on a bench."""

    def __init__(self, bench: ConsumerBench) -> None:
        self.bench = bench
        self._numbers = itertools.count()
        self._run = secrets.token_hex(4)

    @asynccontextmanager
    async def consumer(self) -> AsyncIterator[Consumer]:
        """A consumer, closed in the end."""
        made = await self.bench.consumer()
        try:
            yield made
        finally:
            await made.aclose()

    def envelopes(self, *keys: str | None) -> list[Envelope]:
        """A message for each key, with payloads that count from 0."""
        numbers = [next(self._numbers) for _ in keys]
        return [self._envelope(number, key) for number, key in zip(numbers, keys, strict=True)]

    def _envelope(self, number: int, key: str | None) -> Envelope:
        name = f"{self._run}-{number}"
        return Envelope(
            name, self.bench.topic, key, "placed.v1", "/suite", None, {}, str(number).encode(), "application/json"
        )

    async def publish(self, *keys: str | None) -> list[Envelope]:
        """Publish a message for each key."""
        envelopes = self.envelopes(*keys)
        await self.bench.publish(envelopes)
        return envelopes

    async def take(self, consumer: Consumer, number: int, *, settle: bool = False) -> list[Delivery]:
        """So many messages, however many calls that takes; with ``settle`` those of a call before the next one."""
        found: list[Delivery] = []
        while len(found) < number:
            some = await consumer.receive(number - len(found), _SOON)
            assert some, f"only {len(found)} of {number} messages came: {numbers(found)}"
            found += some
            if settle:
                await consumer.ack(some)
        return found

    async def hold(self, consumer: Consumer, number: int) -> list[Delivery]:
        """So many messages of one lane, or one where the broker hands out no more before that is settled."""
        return await self.take(consumer, number if self.bench.features.several else 1)

    async def take_all(self, consumer: Consumer, number: int) -> list[Delivery]:
        """So many messages, which are settled between two calls where the broker hands out no more before."""
        return await self.take(consumer, number, settle=not self.bench.features.several)

    async def nothing(self, consumer: Consumer) -> None:
        """The broker has nothing more for this consumer."""
        extra = await consumer.receive(10, _QUIET)
        assert not extra, f"handed out although nothing was due: {numbers(extra)}"


def numbers(deliveries: Sequence[Delivery]) -> list[int]:
    return [int(delivery.envelope.payload) for delivery in deliveries]


@asynccontextmanager
async def _under_way(work: Coroutine[Any, Any, T]) -> AsyncIterator[asyncio.Task[T]]:
    """Beside the body. What has not ended with the body is cancelled, and has ended after it."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # the body asks for the result, unless it failed itself


@_case()
async def every_attribute_arrives_as_it_was(trial: Trial) -> None:
    (plain,) = trial.envelopes("A")
    full = plain._replace(
        id=f"{plain.id}-full", key="ключ", sequence=7, type="placed.v2", headers={"traceparent": "00-1-2-01"},
        payload=bytes(range(256)), media_type="application/avro",
    )  # fmt: skip
    bare = plain._replace(id=f"{plain.id}-bare", key=None, payload=b"")
    await trial.bench.publish([plain, full, bare])
    async with trial.consumer() as consumer:
        found = {delivery.envelope.id: delivery.envelope for delivery in await trial.take(consumer, 3)}
    assert found == {envelope.id: envelope for envelope in (plain, full, bare)}


@_case()
async def an_empty_topic_gives_nothing(trial: Trial) -> None:
    async with trial.consumer() as consumer:
        await trial.nothing(consumer)


@_case()
async def no_more_are_handed_out_than_asked_for(trial: Trial) -> None:
    await trial.publish(*"ABCDEFG")
    async with trial.consumer() as consumer:
        assert len(await consumer.receive(1, _SOON)) == 1
        assert 1 <= len(await consumer.receive(3, _SOON)) <= 3
        await consumer.ack([])


@_case()
async def messages_of_a_key_come_in_their_order(trial: Trial) -> None:
    await trial.publish(*"ABAABBABAB" * 5)
    async with trial.consumer() as consumer:
        found = await trial.take(consumer, 50, settle=not trial.bench.features.ahead)
        assert sorted(numbers(found)) == list(range(50))
        for key in "AB":
            of_key = numbers([delivery for delivery in found if delivery.envelope.key == key])
            assert of_key == sorted(of_key)


@_case()
async def a_consumer_that_waits_is_woken(trial: Trial) -> None:
    async with trial.consumer() as consumer:
        await trial.nothing(consumer)
        async with _under_way(trial.take(consumer, 1)) as waiting:
            await asyncio.sleep(0)
            await trial.publish("A")
            assert numbers(await waiting) == [0]


@_case()
async def what_is_settled_is_never_handed_out_again(trial: Trial) -> None:
    await trial.publish(*"AABBCC")
    async with trial.consumer() as consumer:
        await consumer.ack(await trial.take_all(consumer, 6))
        await trial.nothing(consumer)
    async with trial.consumer() as later:
        await trial.nothing(later)


@_case()
async def the_lag_is_what_is_not_settled(trial: Trial) -> None:
    """Of a consumer that can tell it."""
    await trial.publish(*"ABCDE")
    async with trial.consumer() as consumer:
        lag: Callable[[], Awaitable[Mapping[str, int]]] | None = getattr(consumer, "lag", None)
        found = await trial.take(consumer, 5)
        if lag is None:
            return
        for settled, left in ((found[:0], 5), (found[1:3], 3), (found[3:], 1)):
            await consumer.ack(settled)
            while sum((await lag()).values()) != left:  # noqa: ASYNC110 - some brokers count with delay
                await asyncio.sleep(0.02)


@_case("durable")
async def what_is_not_settled_is_handed_out_again_in_its_order(trial: Trial) -> None:
    await trial.publish(*"A" * 10)
    async with trial.consumer() as consumer:
        found = await trial.hold(consumer, 6)
        settled = [found[0], found[2]] if len(found) > 1 else []
        await consumer.ack(settled)
    left = [number for number in range(10) if number not in numbers(settled)]
    async with trial.consumer() as later:
        assert numbers(await trial.take_all(later, len(left))) == left


@_case("durable")
async def what_a_dead_consumer_left_is_handed_out_again_in_its_order(trial: Trial) -> None:
    await trial.publish(*"A" * 10)
    dying = await trial.bench.consumer()
    settled = await trial.hold(dying, 2)
    await dying.ack(settled)
    held = await trial.hold(dying, 4)
    await trial.bench.crash(dying)
    async with trial.consumer() as later:
        again = await trial.take_all(later, 10 - len(settled))
        first = numbers(again)[0]
        assert first <= len(settled)
        if first < len(settled):  # its acknowledgements were on their way, and died with it
            again += await trial.take_all(later, len(settled) - first)
        assert numbers(again) == list(range(first, 10))
        assert all(delivery.redelivered for delivery in again[: len(held)])
        await later.ack(again)
        await trial.nothing(later)


@_case()
async def what_is_given_back_comes_again(trial: Trial) -> None:
    await trial.publish("A")
    async with trial.consumer() as consumer:
        for _ in range(3):
            (found,) = await trial.take(consumer, 1)
            await consumer.give_back(found, 0.01)
        (found,) = await trial.take(consumer, 1)
        assert numbers([found]) == [0]
        assert found.redelivered
        await consumer.ack([found])
        await trial.nothing(consumer)


@_case()
async def what_follows_a_message_that_was_given_back_stays_behind_it(trial: Trial) -> None:
    await trial.publish(*"AAA")
    async with trial.consumer() as consumer:
        (first,) = await trial.take(consumer, 1)
        assert numbers([first]) == [0]
        await consumer.give_back(first, 3600.0)
        await trial.publish("B")
        (other,) = await trial.take(consumer, 1)
        assert other.envelope.key == "B", "what follows a message that is not due was handed out before it"
        await consumer.ack([other])
        await trial.nothing(consumer)


@_case("several")
async def messages_that_are_given_back_come_in_their_order(trial: Trial) -> None:
    await trial.publish(*"A" * 6)
    async with trial.consumer() as consumer:
        found = await trial.take(consumer, 3)
        for delivery in (found[2], found[0], found[1]):
            await consumer.give_back(delivery, 0.01)
        again = await trial.take(consumer, 6)
        assert numbers(again) == [0, 1, 2, 3, 4, 5]
        await consumer.ack(again)
        await trial.nothing(consumer)


@_case("durable")
async def what_was_given_back_is_left_to_others(trial: Trial) -> None:
    await trial.publish(*"AA")
    async with trial.consumer() as consumer:
        (first,) = await trial.take(consumer, 1)
        await consumer.give_back(first, 0.01)
    async with trial.consumer() as later:
        assert numbers(await trial.take_all(later, 2)) == [0, 1]


@_case()
async def settling_twice_or_too_late_harms_nobody(trial: Trial) -> None:
    await trial.publish(*"AB")
    async with trial.consumer() as consumer:
        found = await trial.take(consumer, 2)
        await consumer.ack(found)
        await consumer.ack(found)
        await consumer.give_back(found[0], 0.01)
        await trial.nothing(consumer)
        await trial.publish("A")
        assert numbers(await trial.take(consumer, 1)) == [2]


@_case()
async def a_receive_that_is_cancelled_loses_nothing(trial: Trial) -> None:
    async with trial.consumer() as consumer:
        for pause in range(20):
            async with _under_way(consumer.receive(5, _SOON)) as waiting:
                for _ in range(pause):
                    await asyncio.sleep(0)
            if not waiting.cancelled():
                await consumer.ack(waiting.result())
        await trial.publish(*"A" * 20)
        found: set[int] = set()
        while len(found) < 20:
            async with _under_way(consumer.receive(5, _SOON)) as waiting:
                await asyncio.wait([waiting], timeout=0.002)
            if not waiting.cancelled():
                found.update(numbers(waiting.result()))
                await consumer.ack(waiting.result())


@_case("exclusive")
async def consumers_together_take_everything_in_the_order_of_keys(trial: Trial) -> None:
    handled: list[Delivery] = []
    done = asyncio.Event()

    async def work(consumer: Consumer) -> None:
        while not done.is_set():
            for delivery in await consumer.receive(3, _QUIET):
                handled.append(delivery)
                await asyncio.sleep(0)
                await consumer.ack([delivery])
                if len({one.envelope.id for one in handled}) == 120:
                    done.set()

    await trial.publish(*"ABCDEF" * 10)
    async with trial.consumer() as one, trial.consumer() as two, trial.consumer() as three:
        workers = [asyncio.create_task(work(consumer)) for consumer in (one, two)]
        await trial.publish(*"ABCDEF" * 10)
        workers.append(asyncio.create_task(work(three)))
        try:
            async with asyncio.timeout(PATIENCE):
                await done.wait()
        finally:
            done.set()
            await asyncio.gather(*workers)
    for key in "ABCDEF":
        of_key = numbers([delivery for delivery in handled if delivery.envelope.key == key])
        first = [number for at, number in enumerate(of_key) if number not in of_key[:at]]
        assert first == sorted(first), f"key {key} was not handled in its order: {of_key}"


OpenConsumerBench = Callable[[], AbstractAsyncContextManager[ConsumerBench]]


@pytest.mark.parametrize("name", CASES)
def test_consumer_conformance(name: str, consumer_bench: OpenConsumerBench) -> None:
    """One case of the suite, on a loop of its own."""
    case, needed = CASES[name]

    async def run() -> str:
        async with consumer_bench() as bench:
            if needed and not getattr(bench.features, needed):
                return f"declared: not {needed}"
            async with asyncio.timeout(PATIENCE):
                await case(Trial(bench))
        return ""

    skipped = asyncio.run(run())
    if skipped:
        pytest.skip(skipped)


class ConsumerSuite:
    """Everything that a consumer must do; subclass it under a name that begins with "Test".

    Give it a fixture ``consumer_bench``: a function without arguments that returns an async context manager around a
    `ConsumerBench` with a new, empty topic.
    """

    test_consumer_conformance = staticmethod(test_consumer_conformance)
