"""The progress of a relay in each bucket: waiting messages that cannot leave are not read again with every batch. Pure.

A batch is the oldest of what is due, so a relay reads a bucket from its beginning. Where much of it cannot leave (a
topic is paused, a key is parked, one key has a million messages), the relay passes it over, and reads on behind it:
``after``. What it passed over leaves by lanes: those whose wait has ended, and those that have more messages than a
batch may have of one lane. A message behind ``after`` leaves only if nothing of its lane is left before it, so no order
depends on what a relay remembers; and every now and then it begins anew, for what was committed late.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import NamedTuple

from retrysafe.protocol.messages import Queued
from retrysafe.protocol.records import Micros

MORE = 1000
"""Rows that are read at once, beside those of a batch, where what was read cannot leave."""
PAGES = 5
"""The number of further reads for one batch."""
WORTH = 500
"""Rows that are passed over: fewer are read again."""
SETTLED = 5_000_000
"""Microseconds after which a row may be passed over: one with a lower number is rarely committed so much later."""
ANEW = 5.0
"""Seconds, at least, after which a bucket is read from its beginning again."""
ROWS_A_SECOND = 10_000
"""The average number of rows passed over in a second: the more there are, the more rarely they are read."""
LANES = 8
"""The number of passed over lanes that have a part in one batch."""


class Most(NamedTuple):
    """The bounds of a batch: messages, bytes of their payloads and headers, and messages of one lane.

    One message always fits.
    """

    messages: int
    bytes: int
    of_lane: int

    def beside(self, queue: Sequence[Queued]) -> Most:
        """Return the rest of it beside these."""
        if not queue:
            return self
        taken = sum([one.envelope.size for one in queue])
        return self._replace(messages=self.messages - len(queue), bytes=max(self.bytes - taken, 0))

    def half(self) -> Most:
        """Half of it."""
        return self._replace(messages=max(self.messages // 2, 1), bytes=self.bytes // 2)


def most(messages: int, size: int) -> Most:
    """The bounds of a batch. A lane has a part of it only where others wait: its messages leave one after the other."""
    return Most(messages, size, max(min(10, messages), messages // 4))


class ReadSpan(NamedTuple):
    """The part of a bucket to read: so many rows from a number on, up to another, and the first number in use.

    ``shut``: the topics whose destinations take nothing now.
    """

    start: int
    span_rows: int
    low: int = 0
    end: int = 0
    shut: tuple[str, ...] = ()


class Released(NamedTuple):
    """Lanes whose wait has ended, and what is said of paused topics: how many, and the last instant."""

    lanes: list[int]
    topics: tuple[int, int]


class Passed(NamedTuple):
    """Up to which number there is nothing new in some buckets, as long as this is said of paused topics."""

    after: dict[int, int]
    topics: tuple[int, int]


NOTHING = Passed({}, (0, 0))


class OutboxRow(NamedTuple):
    """A row that was read: whether it may leave, and how many of its lane may that were read with it."""

    id: int
    lane: int
    created: Micros
    free: bool
    together: int


class Stretch(NamedTuple):
    """Rows of a bucket in their order, and what of them is taken."""

    rows: list[OutboxRow]
    queue: list[Queued]
    now: Micros


class Walk:
    """One relay in one bucket."""

    def __init__(self) -> None:
        self.after = 0
        """Up to here everything was passed over; 0: nothing."""
        self.lanes: dict[int, None] = {}
        """Of what was passed over, the lanes that may go on."""
        self.topics: tuple[int, int] | None = None
        """The state of paused topics when the first row was passed over."""
        self.shut: tuple[str, ...] = ()
        """The topics that were shut when rows were passed over."""
        self.passed = 0
        self.began = 0.0
        self.further = False
        """True if there was more to read than a batch may."""
        self.idle = 0
        """The number of rows read for the last batch that did not leave with it."""

    def restart(self, now: float = 0.0) -> None:
        """Read from the beginning."""
        self.after = self.passed = self.idle = 0
        self.lanes, self.topics, self.began, self.further = {}, None, now, False

    def knows(self, shut: tuple[str, ...]) -> None:
        """These topics are shut: when others were, what was passed over is read anew."""
        if self.shut != shut:
            self.restart(self.began)
            self.shut = shut

    def rows(self, most: Most) -> int:
        """Return the number of rows to read for a batch: its size, and the rows that did not leave the last time."""
        return most.messages + min(self.idle, MORE)

    def goes_on(self, released: Released) -> bool:
        """Add lanes whose wait has ended; False, and all is read anew, when topics were paused or resumed meanwhile."""
        if self.topics is None:
            self.topics = released.topics
        elif self.topics != released.topics:
            self.restart(self.began)
            return False
        self.lanes |= dict.fromkeys(released.lanes)
        return True

    def turn(self) -> list[int]:
        """The lanes that have a part in the next batch; the others' turn comes after them."""
        found = list(self.lanes)[:LANES]
        for lane in found:
            self.lanes[lane] = self.lanes.pop(lane)
        return found

    def saw(self, stretch: Stretch, most: Most, *, ended: bool) -> bool:
        """Pass over what cannot leave now, if that saves much; whether the whole stretch was passed over."""
        hot = {row.lane for row in stretch.rows if row.together > most.of_lane}
        passed: list[OutboxRow] = []
        for row in stretch.rows:
            if (row.free and row.lane not in hot) or row.created > stretch.now - SETTLED:
                break
            passed.append(row)
        whole = len(passed) == len(stretch.rows) and not ended
        if not whole and len(passed) < WORTH:
            return False
        self.after, self.passed = passed[-1].id, self.passed + len(passed)
        self.lanes |= dict.fromkeys(row.lane for row in passed if row.lane in hot)
        return whole


_AFTER, _FURTHER = attrgetter("after"), attrgetter("further")


class Walks:
    """One relay in all buckets."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._walks: dict[int, Walk] = {}
        self._fruitful = False

    def of(self, number: int) -> Walk:
        """The walk in a bucket, which begins anew when it is time."""
        walk, now = self._walks.setdefault(number, Walk()), self._clock()
        if walk.after and now - walk.began >= self._rest():
            walk.restart(now)
        if not walk.after:
            walk.began = now
        walk.further = False
        return walk

    def find_passed(self, shut: tuple[str, ...] = ()) -> Passed:
        """Return the part in which a look would find nothing new, for now, while these topics are shut."""
        if not self._has_passed():
            return NOTHING
        now, rest = self._clock(), self._rest()
        idle = {
            number: walk
            for number, walk in self._walks.items()
            if walk.after
            and walk.topics is not None
            and not walk.lanes
            and walk.shut == shut
            and now - walk.began < rest
        }
        topics = next((walk.topics for walk in idle.values() if walk.topics is not None), (0, 0))
        return Passed({number: walk.after for number, walk in idle.items() if walk.topics == topics}, topics)

    def _has_passed(self) -> bool:
        return any(map(_AFTER, self._walks.values()))

    def _rest(self) -> float:
        return ANEW + sum(one.passed for one in self._walks.values()) / ROWS_A_SECOND

    def record(self, queue: Sequence[Queued]) -> None:
        """These are to leave."""
        self._fruitful = self._fruitful or len(queue) > 0

    @property
    def further(self) -> bool:
        """True if there is more to read at once."""
        return any(map(_FURTHER, self._walks.values()))

    def restart(self) -> bool:
        """Read everything from its beginning; whether that may find something: it has not just been done."""
        again = self._fruitful and self._has_passed()
        self._walks.clear()
        self._fruitful = False
        return again
