"""For people who look after inboxes: dead letters counted, seen, and marked to be handled again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple, cast

from retrysafe.admin.operator import BATCH, Batch
from retrysafe.backends.sql.inbox import ATTEMPTS, SEQUENCES
from retrysafe.messaging.error_kinds import by_kind
from retrysafe.messaging.inbox import procedures
from retrysafe.messaging.inbox.dead_letters import Letters
from retrysafe.messaging.operators import PAGE, Operating
from retrysafe.protocol.durations import seconds as seconds_of
from retrysafe.protocol.events import Observer
from retrysafe.protocol.messages import DeadLetterFilter, Groups, InboxLetter, Place
from retrysafe.protocol.records import Duration, Micros
from retrysafe.protocol.requests import Ask, ask
from retrysafe.protocol.store import TransactionalStore

ANY = DeadLetterFilter()
_LONGEST_INSTANT, _HASH_DIGITS = 18, 64


class Consuming(NamedTuple):
    """The dead letters of a consumer: how many, how many of them are to be handled again, seconds since the oldest."""

    boundary: str
    consumer: str
    dead: int
    marked: int
    oldest: float


class InboxOperator(Operating):
    """Looks after the inboxes of a database.

    Arguments:
        store: the boundary's, or the one that ``Inbox(dead_letter_store=…)`` was given; a URL of an async driver will
            do.
        actor: who makes the changes; by default the user and the machine.
        observers: receive an event for every change; by default a `LoggingObserver`.
    """

    def __init__(self, store: Any, *, actor: str | None = None, observers: Iterable[Observer] | None = None) -> None:
        super().__init__(store, actor=actor, observers=observers)
        self._inbox = Letters(self._backend).inbox

    def status(self) -> list[Consuming]:
        """The consumers that have dead letters."""
        found = self._do(ask(self._inbox.tally()))
        return [Consuming(boundary, name, dead, marked, age / 1e6) for boundary, name, dead, marked, age in found]

    def dead(self, chosen: DeadLetterFilter = ANY) -> Iterator[InboxLetter]:
        """The dead letters that are chosen, the oldest first; a page in memory."""
        after: Place | None = None
        while page := self.page(chosen, after):
            yield from page
            after = page[-1].place

    def page(self, chosen: DeadLetterFilter = ANY, after: Place | None = None, limit: int = PAGE) -> list[InboxLetter]:
        """Up to ``limit`` dead letters that are chosen, behind a place, the oldest first; fewer if they are large."""
        return self._do(ask(self._inbox.letters(chosen, after=after, limit=limit)))

    def count(self, chosen: DeadLetterFilter = ANY, most: int | None = None) -> Groups:
        """Count the chosen dead letters by topic, type and error; numbers and ids in those are ``#``.

        With ``most``, only the oldest so many dead letters are looked at.
        """
        counts = self._do(ask(self._inbox.groups(chosen, most)))
        return by_kind(counts)

    def redrive(self, chosen: DeadLetterFilter = ANY, *, limit: int | None = None, reason: str = "") -> int:
        """Mark dead letters, up to ``limit`` of them, to be handled again; returns how many.

        A running `Subscription` of their consumer, or `Handler.handle_marked`, then handles each once, under its old
        id: those of a key in the order of their sequences, or in which they died, but after what followed them and was
        handled before. One that fails stays a dead letter. One that died longer ago than its boundary's window is told
        to be late: if it was handled in any other way since, that is forgotten, and it is handled twice.
        """
        return self._mark(islice(self.dead(chosen), limit), chosen, reason)

    def discard(self, chosen: DeadLetterFilter = ANY, *, limit: int | None = None, reason: str = "") -> int:
        """Delete dead letters that are not to be handled, up to ``limit`` of them, for good; returns how many.

        Their keys stay as they are: `Boundary.resolve` settles one that is unknown. A message that its broker delivers
        once more is handled as if it were new.
        """
        return self._change(self._inbox.discard, "discarded", islice(self.dead(chosen), limit), chosen, reason)

    def redrive_batch(
        self,
        chosen: DeadLetterFilter,
        *,
        until: Micros,
        cursor: str | None = None,
        limit: int = BATCH,
        reason: str = "",
    ) -> Batch:
        """Mark up to ``limit`` dead letters that died no later than ``until``; go on at the batch's cursor.

        Repeating a batch is harmless: what it has marked stays marked, or is handled by then.
        """
        page = self.page(chosen, None if cursor is None else place_of(cursor), limit)
        meant = [one for one in page if one.letter.dead_at <= until]
        marked = self._mark(meant, chosen, reason)
        more = len(meant) == len(page) and bool(page)
        return Batch(marked, len(page) - marked, name_of(page[-1].place) if more else None)

    def _mark(self, letters: Iterable[InboxLetter], chosen: DeadLetterFilter, reason: str) -> int:
        return self._change(self._inbox.mark, "redriven", letters, chosen, reason)

    def _change(
        self,
        how: Callable[..., Ask[int]],
        event: str,
        letters: Iterable[InboxLetter],
        chosen: DeadLetterFilter,
        reason: str,
    ) -> int:
        found = sorted(one.arrival.identity for one in letters)
        store = cast("TransactionalStore", self._backend.store)
        changed = self._transact(lambda: procedures.change(store, how, found)) if found else 0
        if changed:
            fields = {"side": "inbox", "messages": changed, "actor": self.actor, "reason": reason}
            self._observers.emit(event, "retrysafe.inbox", chosen.consumer or "", b"", "", fields)
        return changed

    def forget(self, older_than: Duration) -> int:
        """Remove notes of attempts, and sequences of entities, that have not changed for so long; returns how many.

        Never less than the longest window: an old sequence that comes again would be applied.
        """
        before = round(seconds_of(older_than, "older_than") * 1e6)
        return self._do(procedures.forget([self._inbox.forget(table, before) for table in (ATTEMPTS, SEQUENCES)]))


def name_of(place: Place) -> str:
    """The place of a dead letter as text."""
    return f"{place[0]}-{place[1].hex()}"


def place_of(text: str) -> Place:
    """The place that a text names; raise `ValueError` for one that names none."""
    died, _, identity = text.partition("-")
    if not (died.isascii() and died.isdigit() and len(died) <= _LONGEST_INSTANT and len(identity) == _HASH_DIGITS):
        raise ValueError(text)
    return int(died), bytes.fromhex(identity)
