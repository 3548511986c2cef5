"""The procedures of an inbox: note attempts at a message, conclude them, and handle dead letters again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from retrysafe.backends.backend import Backend
from retrysafe.backends.steps import can_go_on
from retrysafe.claims.notes import is_settled_by_hand
from retrysafe.messaging.inbox.message import NOT_KEPT, is_large, without_body
from retrysafe.protocol.message_stores import InboxStore
from retrysafe.protocol.messages import Arrival, InboxLetter
from retrysafe.protocol.procedures import clocks_of, expire
from retrysafe.protocol.records import State
from retrysafe.protocol.redelivery_policy import Counts, HandleResult, MessageOutcome, RetryLimits, after_failure
from retrysafe.protocol.requests import Ask, Program, ask
from retrysafe.protocol.store import TransactionalStore
from retrysafe.protocol.transitions import Transition


class HandlerOutcome(NamedTuple):
    """The end of an attempt at a message, before it is noted.

    ``again``: seconds after which it has to come again without its attempt being counted. ``before``: it is dead since
    another delivery of it. ``gap``: the place in a sequence that has to be filled before it.
    """

    became: MessageOutcome
    error: str = ""
    again: float | None = None
    before: bool = False
    gap: bytes | None = None


class AttemptView(Protocol):
    """An attempt at a message."""

    arrival: Arrival
    counted: bool
    """True if it is to be noted that it begins, as `decide_to_try` has judged."""

    @property
    def place(self) -> bytes | None:
        """The identity of the message's place in the sequence of its key; None if it has none."""
        ...

    def decide_to_try(self, counts: Counts) -> HandlerOutcome | None:
        """The outcome of a message that is not to be tried; None: try it."""
        ...


UNCOUNTED = (MessageOutcome.BUSY, MessageOutcome.STALLED, MessageOutcome.BEHIND, MessageOutcome.SUSPECT)
"""No attempt was made, or none that the message could have ended otherwise."""
LONGEST = 2000
"""Characters that are kept of an error beside what is said of a body."""
ENDED = (MessageOutcome.FAILED, MessageOutcome.GAP)
"""An attempt has ended by an error."""


def begin(inbox: InboxStore, attempt: AttemptView) -> Program[HandlerOutcome | None]:
    """Look whether a message is to be tried, and note that an attempt begins if it is."""
    first = yield from ask(inbox.note_first(attempt.arrival))
    end = attempt.decide_to_try(Counts() if first else (yield from ask(inbox.counts(attempt.arrival))))
    if attempt.counted and not first:
        yield from ask(inbox.note_begin(attempt.arrival))
    return end


def conclude(
    inbox: InboxStore, attempt: AttemptView, end: HandlerOutcome, limits: RetryLimits, chance: float
) -> Program[HandleResult]:
    """Note the end of an attempt at a message, and tell what becomes of it.

    One that is given up leaves its place in the sequence empty, which is noted by counts of that place. While they are
    kept, one that waits for an empty place is given up too, and leaves its own.
    """
    arrival, counted, place = attempt.arrival, attempt.counted, attempt.place
    if counted and arrival.identity != arrival.record_key:  # of another payload: no attempt at the message of the key
        yield from ask(inbox.note_withdrawal(arrival._replace(identity=arrival.record_key)))
    if end.became in ENDED:
        yield from ask(inbox.note_end(arrival, end.error, counted=counted))
        counts = yield from ask(inbox.counts(arrival))
        pause = after_failure(counts, limits, chance, gap=end.became is MessageOutcome.GAP)
        if pause is None or (end.gap is not None and (yield from _stays_empty(inbox, arrival, end.gap))):
            yield from _note_empty(inbox, arrival, end.gap, end.error)
            yield from _note_empty(inbox, arrival, place, end.error)
            return (yield from bury(inbox, arrival, counts, end.error))
        return HandleResult(end.became, pause, end.error)
    if end.became is MessageOutcome.DEAD:
        counts = yield from ask(inbox.counts(arrival))
        if end.before and counts.dead:
            if counted:
                yield from ask(inbox.clear(arrival))
            return HandleResult(MessageOutcome.DEAD, None, end.error)
        counts = counts._replace(started=max(counts.started, 1), finished=max(counts.finished, 1))
        yield from _note_empty(inbox, arrival, place, end.error)
        return (yield from bury(inbox, arrival, counts, end.error))
    if counted:
        yield from ask(inbox.note_withdrawal(arrival) if end.became in UNCOUNTED else inbox.clear(arrival))
    return HandleResult(end.became, end.again, end.error)


def _note_empty(inbox: InboxStore, arrival: Arrival, place: bytes | None, error: str) -> Program[None]:
    if place is not None:
        yield from ask(inbox.note_end(arrival._replace(identity=place), error, counted=False))


def _stays_empty(inbox: InboxStore, arrival: Arrival, place: bytes) -> Program[bool]:
    counts = yield from ask(inbox.counts(arrival._replace(identity=place)))
    return counts.finished > 0


def bury(inbox: InboxStore, arrival: Arrival, counts: Counts, error: str) -> Program[HandleResult]:
    """Move a message to the dead letters. Each step may be repeated after a crash between them.

    A large message that the store refuses twice, although the store answers, is kept without its body: otherwise it
    would come again for ever.
    """
    for _ in range(2 if is_large(arrival.envelope) else 0):
        try:
            yield from _bury(inbox, arrival, counts, error)
            return HandleResult(MessageOutcome.DEAD, None, error)
        except Exception:  # noqa: BLE001 - one that is too large may end the connection, or be any error of a driver
            yield from ask(inbox.counts(arrival))
    if is_large(arrival.envelope):
        error = f"{error[:LONGEST]} ({NOT_KEPT})"
        arrival = arrival._replace(envelope=without_body(arrival.envelope))
    yield from _bury(inbox, arrival, counts, error)
    return HandleResult(MessageOutcome.DEAD, None, error)


def _bury(inbox: InboxStore, arrival: Arrival, counts: Counts, error: str) -> Program[None]:
    for request in inbox.bury(arrival, counts, error):
        yield from ask(request)


def revive(inbox: InboxStore, arrival: Arrival) -> Program[HandleResult]:
    """Take a message back from the dead letters that another delivery has handled since its last attempt failed."""
    yield from ask(inbox.remove(arrival.identity))
    return HandleResult(MessageOutcome.DUPLICATE)


def conclude_redriven(inbox: InboxStore, letter: InboxLetter, end: HandlerOutcome) -> Program[HandleResult]:
    """Note what became of a dead letter that was handled again: it is gone, marked once more, or dead as before."""
    arrival = letter.arrival
    if end.became in UNCOUNTED or (end.became is MessageOutcome.GAP and (yield from _comes(inbox, arrival))):
        yield from ask(inbox.mark(arrival.identity))
        return HandleResult(end.became, end.again or 0.0, end.error)
    if end.became in ENDED or end.became is MessageOutcome.DEAD:
        return (
            yield from bury(inbox, arrival, Counts(letter.letter.started + 1, letter.letter.finished + 1), end.error)
        )
    yield from ask(inbox.remove(arrival.identity))
    return HandleResult(end.became)


def _comes(inbox: InboxStore, arrival: Arrival) -> Program[bool]:
    """Tell whether the message that this one waits for is about to be handled again."""
    if None in (arrival.envelope.key, arrival.envelope.sequence):
        return False
    return (yield from ask(inbox.waits(arrival)))


def change(store: TransactionalStore, how: Callable[..., Ask[int]], identities: Sequence[bytes]) -> Program[int]:
    """Mark or discard dead letters in one transaction; how many of them are there still.

    The consumer that handles them sees all of them or none, so that a strict sequence has no gap in between.
    """
    changed = 0
    yield from ask(store.begin())
    for start in range(0, len(identities), AT_ONCE):
        changed += yield from ask(how(*identities[start : start + AT_ONCE]))
    yield from ask(store.commit())
    return changed


def reopen(backend: Backend, key: bytes) -> Program[None]:
    """Let the key of a message that failed for good be claimed once more; any other record stays as it is.

    Work in steps goes on behind those that are done; other work is new. A person who has settled the key as failed has
    said that its effect will never happen: that stays too.
    """
    record = yield from ask(backend.store.read(key))
    if record is not None and record.state is State.FAILED and not is_settled_by_hand(record.result):
        if (yield from can_go_on(backend, record)):
            yield from ask(backend.store.resolve(record, Transition.EXPIRE, None, clocks_of(record)))
        else:
            yield from expire(backend.store, record, forget=True)


AT_ONCE = 500
"""The number of dead letters that one statement marks."""
ROUNDS = 3
"""The number of tries to advance a sequence that another transaction changes at the same moment."""


def advance(
    inbox: InboxStore, key: bytes, names: tuple[str, str, str], sequence: int, *, first: int | None
) -> Program[tuple[bool, int | None]]:
    """Move an entity on to a sequence; whether it was moved, and, if not, the last one that was applied.

    ``first``: strictly one after the other, beginning with that one; None: to whatever is newer. ``names`` are those of
    the boundary, the consumer and the entity.
    """
    last: int | None = None
    for _ in range(ROUNDS):
        if (yield from ask(inbox.advance(key, sequence, strict=first is not None))):
            return True, sequence
        if first in (None, sequence) and (yield from ask(inbox.introduce(key, *names, sequence))):
            return True, sequence
        last = yield from ask(inbox.read_applied(key))
        if last is None or sequence <= last or (first is not None and sequence != last + 1):
            break
    return False, last


def forget(asks: list[Ask[int]]) -> Program[int]:
    """Remove rows that are no longer needed; return their number."""
    removed = 0
    for request in asks:
        removed += yield from ask(request)
    return removed
