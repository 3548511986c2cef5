"""The messages of a subscription in memory, by lanes, and those that are handled together."""

from __future__ import annotations

from collections.abc import Iterator

from retrysafe.messaging.subscription.lanes import Lanes
from retrysafe.protocol.messages import Delivery, Envelope
from retrysafe.protocol.redelivery_policy import HandleResult, MessageOutcome
from tests.tables import each_row

ANY = 1 << 20


def delivery(name: str, key: str, size: int) -> Delivery:
    headers = {"a": "b" * 9} if size >= 10 else {}
    payload = b"." * (size - 10 * bool(headers))
    return Delivery(
        Envelope(name, "orders", key, "order", "/shop", None, headers, payload, "text/plain"), None, "orders"
    )


def filled(lanes: Lanes, sizes: dict[str, list[int]]) -> list[int]:
    ready = [lanes.add(delivery(f"{key}{n}", key, size)) for key, of in sizes.items() for n, size in enumerate(of)]
    return [lane for lane in ready if lane is not None]


def taken(lanes: Lanes, ready: list[int], most: int, most_bytes: int) -> tuple[list[str], list[int]]:
    """The ids that are taken, and the lanes that are still ready."""
    waiting = ready[1:]

    def more() -> Iterator[int]:
        while waiting:
            yield waiting.pop(0)

    portion = lanes.take(ready[0], more(), most, most_bytes)
    return [one.envelope.id for one in portion.deliveries], waiting


def test_takes_up_to_a_number_and_asks_for_no_lane_in_vain() -> None:
    lanes = Lanes(100)
    ready = filled(lanes, {"a": [1, 1], "b": [1, 1], "c": [1, 1]})
    assert taken(lanes, ready, 4, ANY) == (["a0", "a1", "b0", "b1"], ready[2:])


@each_row(
    ("most_bytes", "ids", "left"),
    [
        (1, ["a0"], 2),
        (100, ["a0"], 2),
        (101, ["a0", "a1"], 2),
        (200, ["a0", "a1"], 2),
        (201, ["a0", "a1", "b0"], 1),
        (401, ["a0", "a1", "b0", "b1", "c0"], 0),
    ],
)
def test_ends_with_the_message_that_makes_so_many_bytes(most_bytes: int, ids: list[str], left: int) -> None:
    lanes = Lanes(100)
    ready = filled(lanes, {"a": [100, 100], "b": [100, 100], "c": [100, 100]})
    assert taken(lanes, ready, 100, most_bytes) == (ids, ready[3 - left :])


def test_takes_one_message_however_large_it_is() -> None:
    lanes = Lanes(100)
    assert taken(lanes, filled(lanes, {"a": [5000]}), 100, 10) == (["a0"], [])


def test_a_retry_follows_three_new_messages_and_a_lane_is_new_again_when_its_first_message_is_settled() -> None:
    lanes, again = Lanes(100), HandleResult(MessageOutcome.STALLED, 1.0)
    ready = filled(lanes, {"a": [1, 1], "b": [1], "c": [1], "d": [1], "e": [1], "f": [1], "g": [1]})
    portion = lanes.take(ready[0], ready[1:2], 3, ANY)
    assert [one.settled for _, one in lanes.conclude(portion, [again, again, again])] == [[], []]
    assert (lanes.retried, lanes.load) == ({"orders": 3}, lanes.count - 3)
    for lane in ready:
        lanes.make_ready(lane)
    order = [lanes.turn(new_only=only).popleft() for only in (False, False, False, True, False, False, False)]
    assert [ready.index(lane) for lane in order] == [2, 3, 4, 5, 0, 6, 1]
    portion = lanes.take(ready[0], (), 1, ANY)
    assert [len(one.settled) for _, one in lanes.conclude(portion, [HandleResult(MessageOutcome.HANDLED)])] == [1]
    lanes.make_ready(ready[0])
    assert (lanes.retried, list(lanes.new), lanes.new_partitions()) == ({"orders": 1}, [ready[0]], {"orders"})
    lanes.drop(ready[1])
    assert (lanes.retried.total(), lanes.add(delivery("b1", "b", 1)), lanes.retried.total()) == (0, ready[1], 1)
