"""Received messages by lanes: those of a lane are handled one by one, in the order of the broker. No I/O."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from retrysafe.messaging.brokers.lane_queue import spare
from retrysafe.protocol.messages import Delivery
from retrysafe.protocol.ordering import lane as lane_of
from retrysafe.protocol.redelivery_policy import HandleResult, MessageOutcome


class Portion(NamedTuple):
    """Deliveries that are handled together, and the lane of each."""

    deliveries: list[Delivery]
    lanes: list[int]


class Concluded(NamedTuple):
    """The result of a lane: its settled deliveries, and after how many seconds its first message is tried again.

    ``keeps_order``: the messages that follow in the lane must wait for it.
    """

    settled: list[Delivery]
    again: float | None
    keeps_order: bool


_NOTED = (MessageOutcome.FAILED, MessageOutcome.GAP)
"""Outcomes that leave a record of the attempt."""
_NEW_IN_A_ROW = 3
"""New messages after which a retry is due: those of a long outage would hold up what arrived behind them."""
_REMEMBERED = 10_000
"""Lanes without messages of which it is remembered that their first one was given back."""


class Lanes:
    """The messages in memory, by lanes. A lane is ready, being handled, or waiting; the caller tracks which."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.count = 0
        self.retried: Counter[str] = Counter()
        """The number of messages of each partition in lanes whose first message was tried, and is tried again."""
        self.new: deque[int] = deque()
        """The ready lanes whose first message was never tried."""
        self.again: deque[int] = deque()
        """The ready lanes whose first message was tried before."""
        self._row = 0
        """The number of turns of new messages since the last retry."""
        self._lanes: dict[int, deque[Delivery]] = {}
        self._tried: set[int] = set()

    def __iter__(self) -> Iterator[Delivery]:
        """Everything, each lane in its order."""
        return (delivery for queue in self._lanes.values() for delivery in queue)

    @property
    def load(self) -> int:
        """The number of messages that count towards the limit."""
        return self.count - spare(self.retried.total())

    def add(self, delivery: Delivery) -> int | None:
        """Queue a delivery; return its lane if it was empty, and is ready now."""
        envelope = delivery.envelope
        of = lane_of(envelope.topic, envelope.key, envelope.id)
        queue = self._lanes.get(of)
        self.count += 1
        self.retried[delivery.partition] += of in self._tried
        if queue is not None:
            queue.append(delivery)
            return None
        self._lanes[of] = deque((delivery,))
        return of

    def make_ready(self, lane: int) -> None:
        """Put a lane behind the others that are ready."""
        (self.again if lane in self._tried else self.new).append(lane)

    def turn(self, *, new_only: bool) -> deque[int]:
        """The ready lanes that are next: a retry after each three new messages, as far as there are both."""
        retry = self.again and (not self.new or (self._row >= _NEW_IN_A_ROW and not new_only))
        self._row = 0 if retry else self._row + 1
        return self.again if retry else self.new

    def new_partitions(self) -> set[str]:
        """The partitions of the lanes that are ready, and whose first message was never tried."""
        return {self._lanes[lane][0].partition for lane in self.new}

    def take(self, first: int, more: Iterable[int], most: int, most_bytes: int) -> Portion:
        """Deliveries from the heads of ready lanes, each lane in its order.

        It returns up to ``most`` deliveries, and stops after the one that reaches ``most_bytes``. It takes a lane from
        ``more`` only while there is room for at least one delivery.
        """
        portion = Portion([], [])
        room = self._take(first, portion, most, most_bytes)
        lanes = iter(more)
        while room > 0 and len(portion.deliveries) < most and (lane := next(lanes, None)) is not None:
            room = self._take(lane, portion, most, room)
        return portion

    def _take(self, lane: int, portion: Portion, most: int, room: int) -> int:
        """Take deliveries from one lane; return how many bytes are left."""
        for delivery in self._lanes[lane]:
            if room <= 0 or len(portion.deliveries) >= most:
                break
            portion.deliveries.append(delivery)
            portion.lanes.append(lane)
            room -= delivery.envelope.size
        return room

    def conclude(self, portion: Portion, handled: Sequence[HandleResult]) -> Iterator[tuple[int, Concluded]]:
        """Remove settled deliveries; yield each lane's result. A lane stops at the first message to be tried again."""
        stopped: dict[int, float] = {}
        for lane in self._tried.intersection(portion.lanes):
            self.retried.subtract(delivery.partition for delivery in self._lanes[lane])
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
                if one.became in _NOTED:  # the next attempt looks for the record and removes it
                    self._lanes[lane][0] = delivery._replace(redelivered=True)
        self._tried.difference_update(settled)
        self._tried.update(stopped)
        for lane in stopped:
            self.retried.update(delivery.partition for delivery in self._lanes[lane])
        for lane, done in settled.items():
            head = self._lanes[lane][0] if self._lanes[lane] else None
            keyed = head is not None and head.envelope.key is not None
            yield lane, Concluded(done, stopped.get(lane), keyed)

    def goes_on(self, lane: int) -> bool:
        """Tell whether the lane has more messages; an empty lane is removed."""
        if self._lanes.get(lane):
            return True
        self._lanes.pop(lane, None)
        return False

    def drop(self, lane: int) -> list[Delivery]:
        """Remove a lane; return its deliveries. Its first message was tried, also when it comes back."""
        dropped = list(self._lanes.pop(lane, ()))
        self.count -= len(dropped)
        if lane in self._tried:
            self.retried.subtract(delivery.partition for delivery in dropped)
            if len(self._tried) > len(self._lanes) + _REMEMBERED:
                self._tried.intersection_update(self._lanes)
        return dropped

    def rest(self) -> list[Delivery]:
        """Remove everything; return it, each lane in its order."""
        return [delivery for lane in [*self._lanes] for delivery in self.drop(lane)]
