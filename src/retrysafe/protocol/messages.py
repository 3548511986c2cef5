"""Messages: as they leave, wait, arrive and are given up; what brokers made of them; their ids and legible text.

Ids sort by their time: UUIDs of version 7 (RFC 9562, section 5.7).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from retrysafe.protocol.records import Micros

ENTROPY = 10
"""Bytes of chance that an identifier takes."""


def uuid7(milliseconds: int, entropy: bytes) -> str:
    """The UUID for an instant since the Unix epoch and so many bytes of chance, as text."""
    chance = int.from_bytes(entropy[:ENTROPY], "big")
    number = (milliseconds & (1 << 48) - 1) << 80
    number |= 0x7 << 76 | (chance >> 68 & 0xFFF) << 64
    number |= 0b10 << 62 | chance & (1 << 62) - 1
    text = f"{number:032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def milliseconds_of(identifier: str) -> int | None:
    """Return the time of a UUID of version 7, since the Unix epoch; None for other ids."""
    digits = identifier.replace("-", "")
    if len(identifier) != 36 or len(digits) != 32 or digits[12] != "7":
        return None
    try:
        return int(digits, 16) >> 80
    except ValueError:
        return None


REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def distinct(text: str) -> str:
    """`legible` for identifiers: each such character becomes an escape of its own, such as ``\\x00``."""
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()


def legible(text: str) -> str:
    """The text with each NUL and each half of a surrogate pair replaced: PostgreSQL refuses the one, UTF-8 the other.

    CloudEvents 1.0.2 has neither in an attribute ("Type System"), but some producers send them.
    """
    if "\0" in text:
        text = text.replace("\0", REPLACEMENT)
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class Envelope(NamedTuple):
    """A message as it leaves: its bytes, and the attributes that CloudEvents 1.0 gives it.

    ``id`` is the same on every attempt to publish it; consumers recognise it by ``source`` and ``id``. ``key`` is the
    ``subject``: messages of one topic and key keep their order. ``type`` names what happened, with its major version.
    ``sequence`` counts the changes of what ``key`` names. ``headers`` has the trace context of its writer.
    """

    id: str
    topic: str
    key: str | None
    type: str
    source: str
    sequence: int | None
    headers: Mapping[str, str]
    payload: bytes
    media_type: str

    @property
    def size(self) -> int:
        """About how many bytes it has: those of its payload, and the characters of its headers."""
        headers = self.headers
        return len(self.payload) + sum(map(len, headers)) + sum(map(len, headers.values()))


class Queued(NamedTuple):
    """A message as it lies in an outbox: its place in the order, its lane, and the attempts to publish it.

    ``started`` counts the attempts that were begun, ``finished`` those that came to an end: what is missing died.
    ``noted``: the store keeps a note of them. ``now`` is the store's time when it was read.
    """

    id: int
    lane: int
    created: Micros
    started: int
    finished: int
    envelope: Envelope
    now: Micros = 0
    noted: bool = True


class DeadLetter(NamedTuple):
    """A message that was given up: its number, its attempts, what was said of the last one.

    ``parked``: it is still at the head of its lane, which waits with it. ``consumer`` is who could not handle it, of a
    ``boundary``, under the key with the hash ``record_key``; all three are empty for one that could not be published.
    """

    number: int
    envelope: Envelope
    started: int
    finished: int
    error: str
    created: Micros
    dead_at: Micros
    now: Micros
    parked: bool = False
    consumer: str = ""
    boundary: str = ""
    record_key: bytes = b""


class DeadLetterFilter(NamedTuple):
    """A selection of dead letters; None and the empty tuple select any. ``error`` is a part of the last error's text.

    ``except_type``: any type but this one.
    """

    ids: tuple[str, ...] = ()
    topic: str | None = None
    key: str | None = None
    type: str | None = None
    error: str | None = None
    consumer: str | None = None
    except_type: str | None = None
    boundary: str | None = None


Groups = dict[tuple[str, str, str], int]
"""Numbers of dead letters by topic, type and error."""


class Look(NamedTuple):
    """A look at all messages: the lowest number, or None, and which transactions have ended and begun.

    All transactions with numbers below ``ended`` have ended; all that had drawn the number of a message, and hold the
    lock of its key, have numbers below ``begun``. Both are 0 where a database does not tell.
    """

    oldest: int | None
    ended: int
    begun: int


class Holder(NamedTuple):
    """A session, prepared transaction or slot that keeps a database from cleaning up, and for how many seconds."""

    name: str
    seconds: float | None


class Backlog(NamedTuple):
    """The waiting messages of one topic in an outbox: all of them, and the due ones, without those that are delayed.

    Ages are seconds on the store's clock since the oldest was written.
    """

    topic: str
    messages: int
    oldest: float
    due: int
    oldest_due: float
    paused: bool
    error: str = ""
    """The reason why one of the messages has not left, as the broker gave it last."""


class RelaySeen(NamedTuple):
    """A relay that has said it is there: how it holds buckets, for how long it runs, and seconds since it said so."""

    name: str
    hold: str
    running: float
    silent: float


class PublishStatus(StrEnum):
    """A broker's reaction to a message.

    Acked: it has it, as safely as it was asked to. Duplicate: it had it. Retryable: it refused this message; tried
    again, and an attempt is spent. Rejected: it will never take this message. Unknown: it may have it, so it is sent
    again under the same id; an attempt is spent only when it was published alone to a destination that takes others.

    No attempt is spent, and nothing overtakes the message, when it is not the message's fault. Postponed: it was not
    tried, or an attempt is still under way. Stalled: its destination takes nothing now (a queue that is full or
    missing, lost its majority, does not confirm; an endpoint that answers 503); the relay leaves the destination
    alone, lets one message at a time through as a probe, and goes on with all others. Unavailable: the broker as a
    whole cannot be reached or accepts no messages at all, and the relay pauses.
    """

    ACKED = "acked"
    DUPLICATE = "duplicate"
    RETRYABLE = "retryable"
    REJECTED = "rejected"
    UNKNOWN = "unknown"
    POSTPONED = "postponed"
    STALLED = "stalled"
    UNAVAILABLE = "unavailable"


class PublishResult(NamedTuple):
    """A broker's reaction to a message, its words, and the seconds for which it wants to be left alone, at least."""

    status: PublishStatus
    error: str = ""
    pause: float = 0.0


class Delivery(NamedTuple):
    """A message as a broker hands it out, once or again; ``tag`` is what its consumer settles it by.

    ``partition`` is the queue or stream it came from, within which the broker keeps the order. ``redelivered``: the
    broker says that it has, or may have, handed it out before; what it says is a hint, not a count.
    """

    envelope: Envelope
    tag: Any
    partition: str
    redelivered: bool = False


class Arrival(NamedTuple):
    """A message as a consumer knows it: by its identity in the inbox, and by the key of its record.

    The two are one, but for a second payload under a used id, which is a dead letter of its own.
    """

    identity: bytes
    record_key: bytes
    boundary: str
    consumer: str
    envelope: Envelope


class InboxLetter(NamedTuple):
    """A message that a consumer has given up; ``marked``: it is to be handled again."""

    arrival: Arrival
    letter: DeadLetter
    marked: bool

    @property
    def place(self) -> Place:
        """Its place among the others."""
        return self.letter.dead_at, self.arrival.identity

    @property
    def turn(self) -> Turn:
        """Its turn to be handled again, among the others: strict sequences wait for each other."""
        return self.arrival.envelope.sequence or 0, *self.place


Place = tuple[Micros, bytes]
"""The place of a consumer's dead letter: the time of its death, and its identity."""
Turn = tuple[int, Micros, bytes]
"""The same behind its sequence, or 0 without one."""
