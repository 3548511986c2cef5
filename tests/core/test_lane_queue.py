"""The lanes of a consumer: places are kept, lanes rest alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers.lane_queue import LaneQueue
from retrysafe.protocol.messages import Delivery, Envelope
from retrysafe.protocol.ordering import lane, partition, partitions_of


def delivery(number: int, key: str = "A", queue: str = "orders") -> Delivery:
    envelope = Envelope(f"id-{number}", "orders", key, "placed.v1", "/shop", None, {}, b"", "text/plain")
    return Delivery(envelope, number, queue)


def lanes_with(*deliveries: Delivery) -> LaneQueue:
    lanes = LaneQueue()
    for one in deliveries:
        lanes.put(one)
    return lanes


def tags(deliveries: list[Delivery]) -> list[int]:
    return [one.tag for one in deliveries]


def test_messages_are_handed_out_in_order_and_no_more_than_asked_for() -> None:
    lanes = lanes_with(*map(delivery, range(5)))
    assert tags(lanes.take(2, 0.0)) == [0, 1]
    assert tags(lanes.take(9, 0.0)) == [2, 3, 4]
    assert lanes.take(9, 0.0) == []


def test_a_key_that_is_no_text_has_a_lane_too() -> None:
    """A structured CloudEvent can bring half of a surrogate pair; it must not stop what came with it."""
    assert tags(lanes_with(delivery(0, "\ud800"), delivery(1)).take(9, 0.0)) == [0, 1]


def test_returned_messages_keep_their_place_when_their_lane_has_rested() -> None:
    lanes = lanes_with(delivery(0), delivery(1, "B"), delivery(2), delivery(3))
    first, other, third = lanes.take(3, 0.0)
    assert lanes.give_back(third, 5.0)
    assert lanes.give_back(first, 3.0)
    assert lanes.wakes() == 5.0
    assert lanes.take(9, 4.9) == [], "the whole lane rests for the longest of them"
    again = lanes.take(9, 5.0)
    assert tags(again) == [0, 2, 3]
    assert [one.redelivered for one in again] == [True, True, False]
    assert lanes.settle(other)


def test_other_lanes_pass_by_one_that_rests() -> None:
    lanes = lanes_with(delivery(0), delivery(1), delivery(2, "B"))
    (first,) = lanes.take(1, 0.0)
    lanes.give_back(first, 10.0)
    assert tags(lanes.take(9, 1.0)) == [2]
    assert lanes.wakes() == 10.0


def test_a_lane_that_nothing_waits_for_wakes_nobody() -> None:
    lanes = lanes_with(delivery(0))
    (first,) = lanes.take(1, 0.0)
    lanes.give_back(first, 10.0)
    lanes.take(1, 10.0)
    assert lanes.wakes() is None


def test_messages_that_are_not_out_can_neither_be_settled_nor_given_back() -> None:
    lanes = lanes_with(delivery(0))
    assert not lanes.settle(delivery(0)), "it was not handed out"
    (first,) = lanes.take(1, 0.0)
    assert lanes.settle(first)
    assert not lanes.settle(first)
    assert not lanes.give_back(first, 1.0)
    assert lanes.take(1, 2.0) == []


def test_a_partition_that_is_left_hands_out_nothing_and_is_forgotten_alone() -> None:
    lanes = lanes_with(
        delivery(0, "A", "q.0"), delivery(1, "B", "q.1"), delivery(2, "A", "q.0"), delivery(3, "B", "q.1")
    )
    out = lanes.take(2, 0.0)
    assert tags(out) == [0, 1]
    assert (lanes.count("q.0"), lanes.out("q.0")) == (2, 1)
    assert tags(lanes.take(9, 0.0, leaving={"q.0"})) == [3]
    lanes.forget("q.0")
    assert (lanes.count("q.0"), lanes.out("q.0"), lanes.count("q.1")) == (0, 0, 2)
    assert not lanes.has(0)
    assert not lanes.has(2)
    assert lanes.has(1)
    assert not lanes.settle(out[0])
    assert lanes.settle(out[1])
    assert (lanes.count("q.1"), lanes.has(1)) == (1, False)


def test_clearing_leaves_nothing() -> None:
    lanes = lanes_with(delivery(0), delivery(1))
    (first,) = lanes.take(1, 0.0)
    lanes.clear()
    assert not lanes.settle(first)
    assert lanes.take(9, 0.0) == []
    assert (lanes.count("orders"), lanes.has(0)) == (0, False)


@given(st.lists(st.tuples(st.sampled_from("ABC"), st.integers(0, 3)), max_size=30), st.randoms())
def test_no_message_is_ever_handed_out_before_one_of_its_lane_that_waits(
    script: list[tuple[str, int]], chance: object
) -> None:
    """After any takes, settlements and returns: per lane, first appearances are in order, and nothing is lost."""
    lanes, now = LaneQueue(), 0.0
    out: list[Delivery] = []
    seen: dict[str, list[int]] = {}
    settled: set[int] = set()
    for number, (key, action) in enumerate(script):
        lanes.put(delivery(number, key))
        now += 1.0
        for one in lanes.take(action, now):
            out.append(one)
            seen.setdefault(str(one.envelope.key), []).append(one.tag)
        if out and action == 3:
            back = chance.randrange(len(out))  # type: ignore[attr-defined]
            lane_of = out[back].envelope.key
            for one in [one for one in out if one.envelope.key == lane_of]:
                lanes.give_back(one, now + 2.0)
            out = [one for one in out if one.envelope.key != lane_of]
        elif out:
            one = out.pop(0)
            assert lanes.settle(one)
            settled.add(one.tag)
    rest = {one.tag for one in lanes.take(len(script), now + 100.0)} | {one.tag for one in out}
    assert rest | settled == set(range(len(script)))
    for key, numbers in seen.items():
        first = [number for at, number in enumerate(numbers) if number not in numbers[:at]]
        assert first == sorted(first), key


def test_a_lane_has_one_partition() -> None:
    assert partition("orders", "A", "1", None) == "orders"
    assert partition("orders", "A", "1", 4) == partition("orders", "A", "2", 4)
    assert partition("orders", "A", "1", 4) == f"orders.{lane('orders', 'A', '1') % 4}"
    assert {partition("orders", None, str(number), 4) for number in range(99)} == set(partitions_of("orders", 4))
    assert partitions_of("orders", None) == ["orders"]
    assert partitions_of("orders", 2) == ["orders.0", "orders.1"]
    with pytest.raises(ConfigurationError, match="partitions=0"):
        partitions_of("orders", 0)


def test_messages_waiting_for_a_retry_count_a_tenth_and_tell_when_they_fill_a_partition() -> None:
    lanes = lanes_with(*(delivery(number) for number in range(40)), delivery(40, queue="other"))
    lanes.take(99, 0.0)
    full, seen = [], [(lanes.load("orders"), lanes.crowds(lambda _: False))]
    for retried in (20, 39, 40):
        lanes.retried = {"orders": retried}
        full = lanes.crowds(lambda partition: lanes.load(partition) < 4)
        seen.append((lanes.load("orders"), full))
    assert seen == [(40, []), (22, []), (4, ["orders"]), (4, ["orders"])]
    lanes.retried = {"orders": 99}
    assert (lanes.load("orders"), lanes.load("other")) == (4, 1)
