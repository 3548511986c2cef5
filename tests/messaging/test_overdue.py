"""A call of the publisher that takes long: nothing of its lanes leaves beside it, whoever else relays."""

from __future__ import annotations

import asyncio

import pytest

from retrysafe.messaging import Message
from retrysafe.messaging.brokers.memory.publisher import AsyncMemoryPublisher
from retrysafe.messaging.relay.relay import Relayed
from tests.faults.helpers import auntil
from tests.messaging.test_destinations import Hanging
from tests.messaging.test_operating import Place
from tests.messaging.test_operating import place as place


def withheld(place: Place) -> int:
    (row,) = place.sql("SELECT count(*) FROM retrysafe_outbox_attempts WHERE error <> ''")
    return int(row[0])


@pytest.mark.fault(55)
async def test_no_other_relay_publishes_what_a_call_under_way_may_still_publish(place: Place) -> None:
    """A late message would come after those that follow it in its lane."""
    ids = place.write(*(Message("hanging", n, key="A") for n in range(2)))
    publisher, other = Hanging(), AsyncMemoryPublisher()
    relay = place.relay(publisher)
    relay._dispatch._patience = 0.0
    async with relay:
        await auntil(lambda: withheld(place) == 1)
        await asyncio.to_thread(place.write, Message("well", 1, key="B"))
        await place.relay(other).arun_once()
        publisher.answers.set()
        await auntil(lambda: not place.sql("SELECT 1 FROM retrysafe_outbox"))
    published = [one.id for one in (*publisher.published, *other.published) if one.topic == "hanging"]
    assert (published, len(publisher.published) + len(other.published)) == (ids, 3)
    assert place.sql("SELECT count(*) FROM retrysafe_outbox_attempts") == [(0,)]


async def test_a_call_that_is_given_up_holds_its_lane_no_longer(place: Place) -> None:
    (one,) = place.write(Message("hanging", 1, key="A"))
    relay = place.relay(Hanging(), publish_timeout="50ms", backoff_base="1ms", backoff_max="1ms")
    relay._dispatch._patience = 0.0
    async with relay:
        await auntil(lambda: relay._dispatch._suspects)
    other = AsyncMemoryPublisher()
    assert await place.relay(other).arun_once() == Relayed(1, 0, 0)
    assert [each.id for each in other.published] == [one]
