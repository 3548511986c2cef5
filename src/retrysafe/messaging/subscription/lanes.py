"""Received messages in their lanes: each lane serial, in the order of the broker. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from retrysafe.protocol.messages import Delivery
from retrysafe.protocol.ordering import lane as lane_of
from retrysafe.protocol.redelivery_policy import HandleResult, MessageOutcome


class Portion(NamedTuple):
    """What is handled together: deliveries, and the lane of each."""

    deliveries: list[Delivery]
    lanes: list[int]


class Concluded(NamedTuple):
    """What became of a lane: what of it is settled, and after how many seconds its head has to come again.

    ``keeps_order``: what follows in the lane must wait for it.
    """

    settled: list[Delivery]
    again: float | None
    keeps_order: bool


_NOTED = (MessageOutcome.FAILED, MessageOutcome.GAP)
"""What leaves a note of the attempt."""


class Lanes:
    """What is in memory, by lanes. A lane is ready, being handled, or waiting; its owner tracks which."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.count = 0
        self._lanes: dict[int, deque[Delivery]] = {}

    def add(self, delivery: Delivery) -> int | None:
        """Queue a delivery; its lane, if that is ready by it."""
        envelope = delivery.envelope
        of = lane_of(envelope.topic, envelope.key, envelope.id)
        queue = self._lanes.get(of)
        self.count += 1
        if queue is not None:
            queue.append(delivery)
            return None
        self._lanes[of] = deque((delivery,))
        return of

    def take(self, first: int, more: Iterable[int], most: int, most_bytes: int) -> Portion:
        """Deliveries from the heads of ready lanes, each lane in its order.

        There are up to ``most`` of them, and the one that makes them ``most_bytes`` or more is the last. Of ``more``,
        no lane is asked for of which nothing could be taken.
        """
        portion = Portion([], [])
        room = self._take(first, portion, most, most_bytes)
        lanes = iter(more)
        while room > 0 and len(portion.deliveries) < most and (lane := next(lanes, None)) is not None:
            room = self._take(lane, portion, most, room)
        return portion

    def _take(self, lane: int, portion: Portion, most: int, room: int) -> int:
        """Take from one lane; how many bytes are left."""
        for delivery in self._lanes[lane]:
            if room <= 0 or len(portion.deliveries) >= most:
                break
            portion.deliveries.append(delivery)
            portion.lanes.append(lane)
            room -= delivery.envelope.size
        return room

    def conclude(self, portion: Portion, handled: Sequence[HandleResult]) -> Iterator[tuple[int, Concluded]]:
        """Take out what is settled; what became of each lane. A lane stops at the first that has to come again."""
        stopped: dict[int, float] = {}
        settled: dict[int, list[Delivery]] = {lane: [] for lane in portion.lanes}
        for delivery, lane, one in zip(portion.deliveries, portion.lanes, handled, strict=True):
            if lane in stopped:
                continue
            if one.again is None:
                settled[lane].append(delivery)
                self._lanes[lane].popleft()
                self.count -= 1
            else:
                stopped[lane] = one.again
                if one.became in _NOTED:  # whose note is removed by an attempt that looks for one
                    self._lanes[lane][0] = delivery._replace(redelivered=True)
        for lane, done in settled.items():
            head = self._lanes[lane][0] if self._lanes[lane] else None
            keyed = head is not None and head.envelope.key is not None
            yield lane, Concluded(done, stopped.get(lane), keyed)

    def goes_on(self, lane: int) -> bool:
        """Whether there is more in the lane; an empty one is forgotten."""
        if self._lanes.get(lane):
            return True
        self._lanes.pop(lane, None)
        return False

    def drop(self, lane: int) -> list[Delivery]:
        """Everything in a lane, which is forgotten."""
        dropped = list(self._lanes.pop(lane, ()))
        self.count -= len(dropped)
        return dropped
