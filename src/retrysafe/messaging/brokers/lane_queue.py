"""The messages that a consumer has received and not settled, and the order in which it hands them out. Pure."""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import NamedTuple

from retrysafe.protocol.messages import Delivery
from retrysafe.protocol.ordering import lane

_FULL = 0.9
"""The part of what is held of a partition that retries take up when they are the reason why no more is received."""


def spare(retried: int) -> int:
    """Return the number of messages being tried again that are not counted: all but a tenth.

    So those of a key that fails leave room for other keys, and what is held has a bound.
    """
    return retried - retried // 10


class _Kept(NamedTuple):
    place: int
    lane: int
    delivery: Delivery


def _place(kept: _Kept) -> int:
    return kept.place


class LaneQueue:
    """Deliveries in the order in which they came, each until it is settled. Instants are seconds of any one clock.

    A delivery that is given back returns to its place, and its lane rests: what follows it in its lane stays behind
    it, what is of other lanes passes by. So nothing is sent back to the broker, which would lose its order.
    """

    def __init__(self) -> None:
        self._waiting: list[_Kept] = []
        self._out: dict[Hashable, _Kept] = {}
        self._tags: set[Hashable] = set()
        self._resting: dict[int, float] = {}
        self._held: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._places = 0
        self.retried: Mapping[str, int] = {}
        """The number of handed out messages that are tried again, or wait behind one that is, by partition."""

    def put(self, delivery: Delivery) -> None:
        """Keep one that came after all others."""
        self._places += 1
        envelope = delivery.envelope
        self._waiting.append(_Kept(self._places, lane(envelope.topic, envelope.key, envelope.id), delivery))
        self._held[delivery.partition] += 1
        self._bytes[delivery.partition] += envelope.size
        self._tags.add(delivery.tag)

    def has(self, tag: Hashable) -> bool:
        """Tell whether a delivery with this tag is in the queue, handed out or not."""
        return tag in self._tags

    def take(self, most: int, now: float, leaving: Collection[str] = ()) -> list[Delivery]:
        """Hand out up to so many, whose lanes do not rest and whose partitions are not left."""
        self._resting = {lane: until for lane, until in self._resting.items() if until > now}
        taken: list[_Kept] = []
        passed: list[_Kept] = []
        for at, kept in enumerate(self._waiting):
            if len(taken) == most:
                passed += self._waiting[at:]
                break
            stays = kept.lane in self._resting or kept.delivery.partition in leaving
            (passed if stays else taken).append(kept)
        self._waiting = passed
        self._out.update((kept.delivery.tag, kept) for kept in taken)
        return [kept.delivery for kept in taken]

    def settle(self, delivery: Delivery) -> bool:
        """It is done with; False when it is not in the queue, as after `forget`."""
        kept = self._out.pop(delivery.tag, None)
        if kept is not None:
            self._release(kept)
        return kept is not None

    def give_back(self, delivery: Delivery, until: float) -> bool:
        """Return it to its place; its lane rests until then. False when it is not in the queue."""
        kept = self._out.pop(delivery.tag, None)
        if kept is None:
            return False
        insort(self._waiting, kept._replace(delivery=kept.delivery._replace(redelivered=True)), key=_place)
        self._resting[kept.lane] = max(until, self._resting.get(kept.lane, until))
        return True

    def wakes(self) -> float | None:
        """Return the time at which the first waiting lane has rested enough; None: none waits."""
        lanes = {kept.lane for kept in self._waiting}
        return min((until for lane, until in self._resting.items() if lane in lanes), default=None)

    def rests(self, partition: str, until: float) -> bool:
        """Tell whether everything of a partition that is not settled waits for lanes that rest beyond that time."""
        lanes = {kept.lane for kept in self._waiting if kept.delivery.partition == partition}
        return bool(lanes) and not self.out(partition) and all(self._resting.get(one, until) > until for one in lanes)

    def count(self, partition: str) -> int:
        return self._held[partition]

    def load(self, partition: str) -> int:
        """Count those that count towards the limit."""
        return self._held[partition] - self.count_spared(partition)

    def count_spared(self, partition: str) -> int:
        """Count those that do not count towards the limit."""
        return spare(min(self.retried.get(partition, 0), self._held[partition]))

    def crowds(self, has_room: Callable[[str], bool]) -> list[str]:
        """The partitions that have no room because of what is tried again."""
        return [
            one
            for one, retried in self.retried.items()
            if retried > 0 and retried >= _FULL * self._held[one] and not has_room(one)
        ]

    def count_bytes(self, partition: str) -> int:
        return self._bytes[partition]

    def out(self, partition: str) -> int:
        """Count those that are handed out."""
        return sum(kept.delivery.partition == partition for kept in self._out.values())

    def forget(self, partition: str) -> None:
        """Drop what is of a partition: the broker hands it out again, to the next holder of the partition."""
        self._waiting = [kept for kept in self._waiting if kept.delivery.partition != partition]
        self._out = {tag: kept for tag, kept in self._out.items() if kept.delivery.partition != partition}
        self._tags = {kept.delivery.tag for kept in (*self._waiting, *self._out.values())}
        del self._held[partition]
        del self._bytes[partition]

    def clear(self) -> None:
        self._waiting, self._out, self._tags = [], {}, set()
        self._held, self._bytes = Counter(), Counter()

    def _release(self, kept: _Kept) -> None:
        self._held[kept.delivery.partition] -= 1
        self._bytes[kept.delivery.partition] -= kept.delivery.envelope.size
        self._tags.discard(kept.delivery.tag)
