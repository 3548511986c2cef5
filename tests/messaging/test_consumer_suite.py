"""The published suite of consumers catches consumers that are wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from retrysafe.messaging.brokers.base import Consumer
from retrysafe.protocol.messages import Delivery
from retrysafe.testing import consumers
from tests.conftest import require
from tests.messaging.harnesses import bench


class Wrong:
    """A right consumer, of which the mistakes below change one thing each."""

    def __init__(self, right: Any) -> None:
        self.right = right
        self.redelivery_window = None

    async def receive(self, most: int, wait: float, /) -> Sequence[Delivery]:
        found: Sequence[Delivery] = await self.right.receive(most, wait)
        return found

    async def ack(self, deliveries: Sequence[Delivery], /) -> None:
        await self.right.ack(deliveries)

    async def give_back(self, delivery: Delivery, delay: float, /) -> None:
        await self.right.give_back(delivery, delay)

    async def aclose(self) -> None:
        await self.right.aclose()


class LosesAttributes(Wrong):
    async def receive(self, most: int, wait: float, /) -> Sequence[Delivery]:
        found = await super().receive(most, wait)
        return [one._replace(envelope=one.envelope._replace(sequence=None)) for one in found]


class HandsOutTooMany(Wrong):
    async def receive(self, most: int, wait: float, /) -> Sequence[Delivery]:
        return await super().receive(most + 3, wait)


class HandsOutBackwards(Wrong):
    async def receive(self, most: int, wait: float, /) -> Sequence[Delivery]:
        return (await super().receive(most, wait))[::-1]


class SettlesWhatItHandsOut(Wrong):
    async def receive(self, most: int, wait: float, /) -> Sequence[Delivery]:
        found = await super().receive(most, wait)
        await super().ack(found)
        return found


class NeverSettles(Wrong):
    async def ack(self, deliveries: Sequence[Delivery], /) -> None:
        """Forgotten."""


class SettlesAllUpToTheLast(Wrong):
    """As with AMQP's "multiple"."""

    def __init__(self, right: Any) -> None:
        super().__init__(right)
        self.out: list[Delivery] = []

    async def receive(self, most: int, wait: float, /) -> Sequence[Delivery]:
        found = await super().receive(most, wait)
        self.out += found
        return found

    async def ack(self, deliveries: Sequence[Delivery], /) -> None:
        last = max((self.out.index(one) for one in deliveries if one in self.out), default=-1)
        await super().ack(self.out[: last + 1])


class SettlesWhatIsGivenBack(Wrong):
    async def give_back(self, delivery: Delivery, delay: float, /) -> None:
        await super().ack([delivery])


class IgnoresTheDelay(Wrong):
    async def give_back(self, delivery: Delivery, delay: float, /) -> None:
        await super().give_back(delivery, 0.0)


class LetsFollowersOvertake(Wrong):
    """Keeps what is given back somewhere else, and goes on with what follows."""

    async def give_back(self, delivery: Delivery, delay: float, /) -> None:
        if delay > 1:
            return
        await super().give_back(delivery, delay)


class StopsForWhatIsGivenBack(Wrong):
    """One message that is not due keeps all the others waiting."""

    due = 0.0

    async def give_back(self, delivery: Delivery, delay: float, /) -> None:
        self.due = asyncio.get_running_loop().time() + delay
        await super().give_back(delivery, delay)

    async def receive(self, most: int, wait: float, /) -> Sequence[Delivery]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        await asyncio.sleep(max(0.0, min(self.due, deadline) - loop.time()))
        return [] if loop.time() < self.due else await super().receive(most, max(0.0, deadline - loop.time()))


class LosesWhatItWasToHandOutWhenCancelled(Wrong):
    async def receive(self, most: int, wait: float, /) -> Sequence[Delivery]:
        found = await super().receive(most, wait)
        await asyncio.sleep(0.01)
        return found


class SaysThatEverythingIsNew(Wrong):
    async def receive(self, most: int, wait: float, /) -> Sequence[Delivery]:
        return [one._replace(redelivered=False) for one in await super().receive(most, wait)]


class CountsWhatIsSettled(Wrong):
    async def lag(self) -> dict[str, int]:
        return {"all": 5}


MISTAKES: dict[type[Wrong], str] = {
    LosesAttributes: "every_attribute_arrives_as_it_was",
    HandsOutTooMany: "no_more_are_handed_out_than_asked_for",
    HandsOutBackwards: "messages_of_a_key_come_in_their_order",
    SettlesWhatItHandsOut: "what_is_not_settled_is_handed_out_again_in_its_order",
    NeverSettles: "what_is_settled_is_never_handed_out_again",
    SettlesAllUpToTheLast: "what_is_not_settled_is_handed_out_again_in_its_order",
    SettlesWhatIsGivenBack: "what_is_given_back_comes_again",
    IgnoresTheDelay: "what_follows_a_message_that_was_given_back_stays_behind_it",
    LetsFollowersOvertake: "what_follows_a_message_that_was_given_back_stays_behind_it",
    StopsForWhatIsGivenBack: "what_follows_a_message_that_was_given_back_stays_behind_it",
    LosesWhatItWasToHandOutWhenCancelled: "a_receive_that_is_cancelled_loses_nothing",
    CountsWhatIsSettled: "the_lag_is_what_is_not_settled",
    SaysThatEverythingIsNew: "what_a_dead_consumer_left_is_handed_out_again_in_its_order",
}


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_consumer_is_caught(mistake: Callable[[Any], Wrong], monkeypatch: pytest.MonkeyPatch) -> None:
    require("redis")
    monkeypatch.setattr(consumers, "PATIENCE", 8.0)
    monkeypatch.setattr(consumers, "_SOON", 2.0)

    @asynccontextmanager
    async def opened() -> AsyncIterator[Any]:
        async with bench("redis") as made:
            right = made.consumer
            made.consumer = lambda: _wrapped(right, mistake)  # type: ignore[method-assign]
            cut = made.crash
            made.crash = lambda wrong: cut(wrong.right)  # type: ignore[attr-defined,method-assign]
            yield made

    with pytest.raises((AssertionError, TimeoutError)):
        consumers.test_consumer_conformance(MISTAKES[mistake], opened)  # type: ignore[index]


async def _wrapped(make: Callable[[], Any], mistake: Callable[[Any], Wrong]) -> Consumer:
    return mistake(await make())


def test_undeclared_features_of_a_broker_are_skipped_by_name() -> None:
    require("redis")

    @asynccontextmanager
    async def opened() -> AsyncIterator[Any]:
        async with bench("redis") as made:
            made.features = consumers.ConsumerFeatures(exclusive=False)
            yield made

    with pytest.raises(pytest.skip.Exception, match="not exclusive"):
        consumers.test_consumer_conformance("consumers_together_take_everything_in_the_order_of_keys", opened)
