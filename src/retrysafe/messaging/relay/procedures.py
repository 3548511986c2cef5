"""The procedures of an outbox: read the messages that are due in order, hold a bucket, and conclude a batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from retrysafe.errors import ConfigurationError
from retrysafe.protocol.message_stores import OperableOutbox, OutboxStore
from retrysafe.protocol.messages import Backlog, DeadLetter, Holder, Queued, RelaySeen
from retrysafe.protocol.ordering import BUCKETS
from retrysafe.protocol.outbox_walk import LANES, MORE, PAGES, Most, ReadSpan, Stretch, Walk
from retrysafe.protocol.publish_policy import MOST_COUNTED, PublishOutcome
from retrysafe.protocol.requests import Ask, Program, ask
from retrysafe.protocol.store import TransactionalStore


def each(asks: Iterable[Ask[None]]) -> Program[None]:
    """Put one ask after the other."""
    yield from asks


def due(
    outbox: OutboxStore, number: int, most: Most, low: int, walk: Walk, shut: tuple[str, ...] = ()
) -> Program[list[Queued]]:
    """The messages of a bucket that may leave next: of lanes that were passed over, and of what follows.

    None of the topics ``shut``, whose destinations take nothing now.
    """
    walk.knows(shut)
    queue = (yield from _read_passed(outbox, number, most, low, walk)) if walk.after else []
    room = most.beside(queue)
    start, following = max(low, walk.after + 1 if walk.after else 0), True
    for page in range(PAGES):
        span = ReadSpan(start, walk.rows(most) if page == 0 else most.messages + MORE, low, shut=shut)
        stretch: Stretch = yield outbox.due(number, span, most.beside(queue))
        ended = len(stretch.rows) < span.span_rows
        queue += stretch.queue
        if page == 0:
            walk.idle = len(stretch.rows) - len(stretch.queue)
        following = following and walk.saw(stretch, most, ended=ended)
        left = most.beside(queue)
        if ended or 2 * left.messages <= room.messages or left.bytes == 0:
            break
        start = stretch.rows[-1].id + 1
    else:
        walk.further = following
    return queue


def _read_passed(outbox: OutboxStore, number: int, most: Most, low: int, walk: Walk) -> Program[list[Queued]]:
    """Select messages of the lanes that were passed over; half a batch, so that the following ones go on too."""
    released = yield from ask(outbox.lanes_released(number, walk.after, LANES))
    if not walk.goes_on(released):
        return []
    queue: list[Queued] = []
    half = most.half()
    for of in walk.turn():
        span = ReadSpan(low, most.of_lane, low, walk.after, walk.shut)
        stretch = yield from ask(outbox.lane(number, of, span, half.beside(queue)))
        if not stretch.rows or not stretch.rows[0].free:
            walk.lanes.pop(of)
        queue += stretch.queue
        if len(queue) >= half.messages or half.beside(queue).bytes == 0:
            break
    return queue


def take(
    store: TransactionalStore,
    outbox: OutboxStore,
    number: int,
    most: Most,
    low: int,
    walk: Walk,
    silence: float,
    shut: tuple[str, ...] = (),
) -> Program[list[Queued] | None]:
    """Begin a transaction that holds a bucket, and return what of it is due; None, and no transaction, if another does.

    It ends when nothing is asked in it for ``silence`` seconds, where the database can do that.

    What is due is read after the bucket is held: an earlier look would show what its last holder has published since.
    """
    yield store.begin()
    yield from outbox.prepare(silence)
    if not (yield from ask(outbox.hold(number, silence))):
        yield store.rollback()
        return None
    return (yield from due(outbox, number, most, low, walk, shut))


def conclude(outbox: OutboxStore, verdict: PublishOutcome, *, keep: bool, noted: bool = False) -> Program[None]:
    """Write down, in the open transaction, what became of a wave; ``noted``: it was, that these attempts begin."""
    yield from outbox.leave(verdict.gone, keep=keep)
    for delay in verdict.delayed:
        yield from outbox.delay(delay)
    for death in verdict.dead:
        yield from outbox.bury(death)
    if noted and verdict.withdrawn:
        yield from outbox.withdraw(verdict.withdrawn)


def as_noted(queue: Sequence[Queued]) -> list[Queued]:
    """The queue as it is when it is written down that attempts begin."""
    return [queued._replace(noted=True) for queued in queue]


GONE = 60.0
"""Seconds after which a relay that says nothing is taken for gone."""


class OutboxStatus(NamedTuple):
    """The state of an outbox: messages by topic, relays, dead letters, and kept messages.

    Where more than `MOST_COUNTED` messages wait, the figures are of the oldest and the newest of them; no more dead
    letters and kept messages than that are counted.
    """

    backlog: list[Backlog]
    relays: list[RelaySeen]
    paused: list[str]
    dead: int
    kept: int
    holders: list[Holder] = []  # noqa: RUF012 - a NamedTuple's
    """The holders that have kept the database from removing old rows for more than a minute; the oldest first."""
    parked: int = 0
    """The number of parked lanes (``on_dead="park"``), each of which waits for a person."""

    @property
    def messages(self) -> int:
        """The number of waiting messages."""
        return sum([one.messages for one in self.backlog])

    @property
    def capped(self) -> bool:
        """True if more may wait than was counted."""
        return self.messages >= MOST_COUNTED

    @property
    def due(self) -> int:
        """The number of those that wait for nothing but a relay."""
        return sum([one.due for one in self.backlog])

    @property
    def oldest(self) -> float:
        """Seconds since the oldest message that has not left was written."""
        return max([one.oldest for one in self.backlog], default=0.0)

    @property
    def oldest_due(self) -> float:
        """Seconds since the oldest message that is due was written."""
        return max([one.oldest_due for one in self.backlog], default=0.0)

    def cause(self, topic: Backlog) -> str:
        """Say why messages of a topic are due for long: by its error, or as far as it can be told without one."""
        if topic.error:
            return topic.error
        return "the relays are too slow, or the broker refuses" if self.alive else "no relay is running"

    @property
    def alive(self) -> int:
        """The number of live relays."""
        return len([relay for relay in self.relays if relay.silent < GONE])


def standing(outbox: OperableOutbox) -> Program[OutboxStatus]:
    relays = yield from ask(outbox.relays())
    paused = yield from ask(outbox.topics_paused())
    return (yield from measure(outbox, relays, paused))


def measure(outbox: OperableOutbox, relays: list[RelaySeen], paused: list[str]) -> Program[OutboxStatus]:
    """Look at an outbox whose relays and paused topics are known."""
    backlog = yield outbox.backlog()
    dead, kept, parked = yield outbox.counts()
    holders = outbox.holders()
    held = [] if holders is None else (yield from ask(holders))
    return OutboxStatus(backlog, relays, paused, dead, kept, held, parked)


def attend(outbox: OperableOutbox, name: str, hold: str) -> Program[tuple[list[RelaySeen], list[RelaySeen]]]:
    """Say that a relay is there; return all that are, this one among them, and those that are forgotten now.

    A bucket that is missing would never be relayed: emptying all tables, as tests do, takes them with it.
    """
    yield outbox.beat(name, hold)
    relays: list[RelaySeen]
    relays, buckets = yield outbox.attendance()
    if buckets < BUCKETS:
        there = yield from ask(outbox.buckets())
        yield outbox.restore(there)
    _require_alike(name, relays)
    gone = [relay for relay in relays if relay.silent >= GONE]
    if gone:
        yield outbox.bye([relay.name for relay in gone])
    return [relay for relay in relays if relay.silent < GONE], gone


def _require_alike(name: str, relays: Sequence[RelaySeen]) -> None:
    """Relays that hold buckets in different ways do not see each other's hold: who was there first goes on alone."""
    if len({relay.hold for relay in relays}) < 2:
        return
    own = next((relay for relay in relays if relay.name == name), None)
    if own is None:
        return
    for other in relays:
        there = other.hold != own.hold and other.silent < GONE
        if there and (-other.running, other.name) < (-own.running, own.name):
            raise ConfigurationError(
                f"Relay {other.name} holds buckets by hold={other.hold!r}, this one by hold={own.hold!r}: both would "
                "publish the same messages. This one has stopped publishing. Give them the same hold=, "
                f"or end the other one first; one that died is forgotten after {GONE:.0f} seconds."
            )


def redrive(store: TransactionalStore, outbox: OperableOutbox, letters: Sequence[DeadLetter]) -> Program[int]:
    """Have dead letters published again, in one transaction; the number that was not redriven by another call."""
    yield store.begin()
    parked = [letter.number for letter in letters if letter.parked]
    ours = yield from ask(outbox.claim_letters([letter.number for letter in letters]))
    if ours:
        yield from outbox.redrive(ours)
    unparked = (yield from ask(outbox.unpark(parked))) if parked else 0
    yield store.commit()
    return len(ours) + unparked
