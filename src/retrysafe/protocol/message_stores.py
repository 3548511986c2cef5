"""Stores of messages: what is asked of an outbox and of an inbox."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from retrysafe.protocol.messages import (
    Arrival,
    Backlog,
    DeadLetter,
    DeadLetterFilter,
    Envelope,
    Groups,
    Holder,
    InboxLetter,
    Look,
    Place,
    Queued,
    RelaySeen,
    Turn,
)
from retrysafe.protocol.outbox_walk import NOTHING, Most, Passed, ReadSpan, Released, Stretch
from retrysafe.protocol.publish_policy import Death, Delay
from retrysafe.protocol.records import Ownership
from retrysafe.protocol.redelivery_policy import Counts
from retrysafe.protocol.requests import Ask


class OutboxStore(Protocol):
    """The questions to a store about messages that wait to leave. Every method is pure."""

    def takes(self, envelope: Envelope) -> bool:
        """Tell whether a message may leave, as far as it is restricted what does."""
        ...

    def add(self, envelopes: Sequence[Envelope]) -> list[Ask[None]]:
        """Write messages, in this order."""
        ...

    def waiting(self, low: int = 0, passed: Passed = NOTHING) -> Ask[list[int]]:
        """The buckets that hold messages from ``low`` on; where a relay has ``passed`` over some, behind them.

        Or lanes among those whose wait has ended; and all of them when topics were paused or resumed since.
        """
        ...

    def prepare(self, silence: float) -> list[Ask[None]]:
        """Let each statement of a transaction that has just begun see what was committed last, whatever the default.

        And let it not be ended before nothing was asked in it for ``silence`` seconds, where `hold` cannot.
        """
        ...

    def hold(self, number: int, silence: float) -> Ask[bool]:
        """Hold a bucket to the end of the transaction, which may be silent for so long; False when another does."""
        ...

    def fence(self, ownership: Ownership) -> Ask[bool]:
        """Hold the record of a lease to the end of the transaction; False when another relay has taken it over."""
        ...

    def look(self) -> Ask[Look]:
        """The lowest number of all messages, and which transactions may still write a lower one."""
        ...

    def due(self, number: int, span: ReadSpan, most: Most) -> Ask[Stretch]:
        """Rows of a bucket, and the oldest of them that may leave: none behind one that waits, none of a paused topic.

        Nor of the topics ``span.shut``, whose destinations take nothing now.
        Where reading begins behind ``span.low``, none may that has one of its lane before.
        """
        ...

    def lane(self, number: int, of: int, span: ReadSpan, most: Most) -> Ask[Stretch]:
        """`due` for one lane alone, up to ``span.end``."""
        ...

    def lanes_released(self, number: int, upto: int, limit: int) -> Ask[Released]:
        """Up to so many lanes whose message up to ``upto`` has waited long enough, and what is said of topics."""
        ...

    def note_begin(self, queue: Sequence[Queued]) -> list[Ask[None]]:
        """Note that an attempt to publish each of these begins."""
        ...

    def outlive(self, queue: Sequence[Queued]) -> Ask[None]:
        """Note that no relay has died of the attempts which began at these, whatever became of them."""
        ...

    def withdraw(self, queue: Sequence[Queued]) -> list[Ask[None]]:
        """Note that the attempts which were to begin did not."""
        ...

    def resume_lanes(self, queue: Sequence[Queued]) -> Ask[None]:
        """Let messages that wait, and their lanes, go on at once."""
        ...

    def leave(self, queue: Sequence[Queued], *, keep: bool) -> list[Ask[None]]:
        """Remove what has left; ``keep``: to the table of what was published."""
        ...

    def delay(self, delay: Delay) -> list[Ask[None]]:
        """Let a message, and with it its lane, wait."""
        ...

    def bury(self, death: Death) -> list[Ask[None]]:
        """Move a message to the dead letters."""
        ...


class OperableOutbox(OutboxStore, Protocol):
    """The further questions of people and monitors. Every method is pure."""

    def backlog(self) -> Ask[list[Backlog]]:
        """Count waiting messages, by topic."""
        ...

    def relays(self) -> Ask[list[RelaySeen]]:
        """The relays that have said they are there, and not that they go."""
        ...

    def attendance(self) -> Ask[tuple[list[RelaySeen], int]]:
        """`relays`, of which there is one at least, and the number of buckets that they can hold."""
        ...

    def beat(self, name: str, hold: str) -> Ask[None]:
        """Note that a relay is there."""
        ...

    def bye(self, names: Sequence[str]) -> Ask[None]:
        """Forget relays."""
        ...

    def buckets(self) -> Ask[set[int]]:
        """The buckets that relays can hold."""
        ...

    def restore(self, there: set[int]) -> Ask[None]:
        """Make the buckets that are missing beside these."""
        ...

    def counts(self) -> Ask[tuple[int, int, int]]:
        """Count dead letters, kept messages that have left, and parked lanes."""
        ...

    def holders(self) -> Ask[list[Holder]] | None:
        """Find the holders that keep the database from removing rows, the oldest first; None if it does not tell."""
        ...

    def pause(self, topic: str) -> Ask[None]:
        """Let nothing of a topic leave."""
        ...

    def resume(self, topic: str) -> Ask[bool]:
        """Let a topic go on; False if it was not paused."""
        ...

    def topics_paused(self) -> Ask[list[str]]:
        """The topics of which nothing leaves."""
        ...

    def letters(self, chosen: DeadLetterFilter, after: int, limit: int) -> Ask[list[DeadLetter]]:
        """Dead letters, and the heads of parked lanes, in the order of their numbers."""
        ...

    def count(self, chosen: DeadLetterFilter, most: int | None = None) -> Ask[Groups]:
        """Count the chosen dead letters by topic, type and error, among the first ``most``."""
        ...

    def claim_letters(self, numbers: Sequence[int]) -> Ask[list[int]]:
        """Lock dead letters to the end of the transaction; return those that are still there."""
        ...

    def redrive(self, numbers: Sequence[int]) -> list[Ask[None]]:
        """Put dead letters at the end of their lanes, under the ids that they have."""
        ...

    def discard(self, numbers: Sequence[int]) -> Ask[int]:
        """Delete dead letters for good; return how many were there still."""
        ...

    def unpark(self, numbers: Sequence[int]) -> Ask[int]:
        """Let parked lanes go on with the message that they wait for; return how many were parked."""
        ...


class InboxStore(Protocol):
    """The questions to a store about messages that arrive. Every method is pure."""

    def note_begin(self, arrival: Arrival) -> Ask[None]:
        """Note that an attempt begins."""
        ...

    def note_first(self, arrival: Arrival) -> Ask[bool]:
        """Note that an attempt begins, unless there was one before or the message lies in the dead letters."""
        ...

    def note_end(self, arrival: Arrival, error: str, *, counted: bool) -> Ask[None]:
        """Note that an attempt has ended by an error; ``counted``: that it began is noted already."""
        ...

    def note_withdrawal(self, arrival: Arrival) -> Ask[None]:
        """Note that an attempt which was to begin did not."""
        ...

    def counts(self, arrival: Arrival) -> Ask[Counts]:
        """The attempts so far, and whether it lies in the dead letters."""
        ...

    def clear(self, arrival: Arrival) -> Ask[None]:
        """Forget the attempts at a message that is settled."""
        ...

    def bury(self, arrival: Arrival, counts: Counts, error: str) -> list[Ask[None]]:
        """Keep a message as a dead letter, or keep why a dead letter died again; its attempts go with it."""
        ...

    def letters(
        self,
        chosen: DeadLetterFilter,
        *,
        after: Place | None = None,
        limit: int,
    ) -> Ask[list[InboxLetter]]:
        """Dead letters, the oldest first, after a place."""
        ...

    def list_marked(
        self, boundary: str, consumer: str, *, after: Turn | None = None, limit: int
    ) -> Ask[list[InboxLetter]]:
        """Dead letters of a consumer that are to be handled again, in the order of their turns, after one of them."""
        ...

    def waits(self, arrival: Arrival) -> Ask[bool]:
        """Tell whether a dead letter of the same key, earlier in its sequence, is still to be handled again."""
        ...

    def mark(self, *identities: bytes) -> Ask[int]:
        """Ask that dead letters be handled again; how many of them are there still."""
        ...

    def discard(self, *identities: bytes) -> Ask[int]:
        """Delete dead letters for good; how many of them were there still."""
        ...

    def take(self, identity: bytes) -> Ask[bool]:
        """Begin to handle a marked dead letter: one consumer alone gets True, and a crash leaves it unmarked."""
        ...

    def remove(self, identity: bytes) -> Ask[None]:
        """Forget a dead letter."""
        ...

    def advance(self, key: bytes, sequence: int, *, strict: bool) -> Ask[bool]:
        """Move an entity on to a sequence, if it is newer, or, strictly, the next one; False if it is not."""
        ...

    def introduce(self, key: bytes, boundary: str, consumer: str, entity: str, sequence: int) -> Ask[bool]:
        """Note the first sequence of an entity; False when there is one already."""
        ...

    def read_applied(self, key: bytes) -> Ask[int | None]:
        """The last sequence of an entity, whatever the transaction's snapshot."""
        ...
