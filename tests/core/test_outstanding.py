"""One frame settles many deliveries, and never one that is not handled."""

from __future__ import annotations

import random

from retrysafe.messaging.brokers.outstanding import Outstanding


def test_deliveries_in_order_are_settled_by_one_frame() -> None:
    """The frame names the last of them."""
    outstanding = Outstanding()
    for number in range(1, 6):
        outstanding.arrive(number)
    assert outstanding.settle([2, 1, 3]) == (3, [])
    assert outstanding.settle([4, 5]) == (5, [])


def test_nothing_on_its_way_to_us_is_settled() -> None:
    """Number 1 was delivered, and has not come to us yet."""
    outstanding = Outstanding()
    outstanding.arrive(2)
    assert outstanding.settle([2]) == (None, [2])
    outstanding.arrive(1)
    assert outstanding.settle([1]) == (1, [])


def test_in_any_order_each_is_settled_once_it_is_handled() -> None:
    """As a broker counts: what a frame names is unsettled until then, and all that it settles was handed in."""
    chance = random.Random(7)
    for _ in range(200):
        outstanding, unsettled, arrived, handed = Outstanding(), set[int](), list[int](), set[int]()
        coming = list(range(1, 40))
        while coming or arrived:
            for _ in range(min(len(coming), chance.randrange(4))):
                arrived.append(coming.pop(0))
                unsettled.add(arrived[-1])
                outstanding.arrive(arrived[-1])
            now = chance.sample(arrived, chance.randrange(len(arrived) + 1))
            arrived = [number for number in arrived if number not in now]
            handed.update(now)
            upto, others = outstanding.settle(now)
            frames = [{number} for number in others]
            frames += [] if upto is None else [{number for number in unsettled if number <= upto}]
            for frame in frames:
                assert frame
                assert frame <= unsettled & handed
                unsettled -= frame
            assert not unsettled & handed
