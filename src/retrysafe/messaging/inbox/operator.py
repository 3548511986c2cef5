"""For people who look after inboxes: dead letters counted, seen, and marked to be handled again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple, cast

from retrysafe.backends.sql.inbox import ATTEMPTS, SEQUENCES
from retrysafe.messaging.error_kinds import by_kind
from retrysafe.messaging.inbox import procedures
from retrysafe.messaging.inbox.dead_letters import Letters
from retrysafe.messaging.operators import PAGE, Operating
from retrysafe.protocol.durations import seconds as seconds_of
from retrysafe.protocol.events import Observer
from retrysafe.protocol.messages import DeadLetterFilter, InboxLetter, Place
from retrysafe.protocol.records import Duration
from retrysafe.protocol.requests import ask
from retrysafe.protocol.store import TransactionalStore

ANY = DeadLetterFilter()


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
        observers: told of every change; by default a `LoggingObserver`.
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
        while page := self._do(ask(self._inbox.letters(chosen, after=after, limit=PAGE))):
            yield from page
            after = page[-1].place

    def count(self, chosen: DeadLetterFilter = ANY) -> dict[tuple[str, str, str], int]:
        """How many dead letters are chosen, by topic, type and error; numbers and ids in those are ``#``."""
        counts = self._do(ask(self._inbox.groups(chosen)))
        return by_kind(counts)

    def redrive(self, chosen: DeadLetterFilter = ANY, *, limit: int | None = None, reason: str = "") -> int:
        """Mark dead letters, up to ``limit`` of them, to be handled again; returns how many.

        A running `Subscription` of their consumer, or `Handler.handle_marked`, then handles each once, under its old
        id: those of a key in the order of their sequences, or in which they died, but after what followed them and was
        handled before. One that fails stays a dead letter. One that died longer ago than its boundary's window is told
        to be late: if it was handled in any other way since, that is forgotten, and it is handled twice.
        """
        found = sorted(one.arrival.identity for one in islice(self.dead(chosen), limit))
        store = cast("TransactionalStore", self._backend.store)
        marked = self._do(procedures.mark(store, self._inbox, found), own=True) if found else 0
        if marked:
            fields = {"side": "inbox", "messages": marked, "actor": self.actor, "reason": reason}
            self._observers.emit("redriven", "retrysafe.inbox", chosen.consumer or "", b"", "", fields)
        return marked

    def forget(self, older_than: Duration) -> int:
        """Remove notes of attempts, and sequences of entities, that nobody has touched for so long; returns how many.

        Never less than the longest window: an old sequence that comes again would be applied.
        """
        before = round(seconds_of(older_than, "older_than") * 1e6)
        return self._do(procedures.forget([self._inbox.forget(table, before) for table in (ATTEMPTS, SEQUENCES)]))
