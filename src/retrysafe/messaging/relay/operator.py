"""For operators of an outbox: status, topics paused and resumed, dead letters, and how long published rows are kept."""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, cast

from retrysafe.admin.archive import FORMAT
from retrysafe.admin.operator import BATCH, Batch
from retrysafe.admin.sweeper import Sweeper
from retrysafe.backends.backend import Backend
from retrysafe.backends.sql.outbox_operating import SqlPublished
from retrysafe.messaging import validation
from retrysafe.messaging.error_kinds import by_kind
from retrysafe.messaging.operators import PAGE, Operating
from retrysafe.messaging.outbox import outbox_of
from retrysafe.messaging.relay.presence import Reporter
from retrysafe.messaging.relay.procedures import OutboxStatus, redrive, standing
from retrysafe.protocol.durations import seconds as seconds_of
from retrysafe.protocol.events import Observer
from retrysafe.protocol.messages import DeadLetter, DeadLetterFilter, Envelope, Groups
from retrysafe.protocol.records import Duration, Micros
from retrysafe.protocol.requests import ask
from retrysafe.protocol.store import TransactionalStore

Kept = tuple[int, Envelope]
"""A message that has left, with its number in the outbox."""


class OutboxSweeper(Sweeper):
    """Removes messages that were kept (``Relay(keep_published=True)``) and left longer ago than ``older_than``, in
    batches.

    It is used as a `Sweeper` is, with its arguments. ``archive`` is called with numbers and envelopes, before they are
    removed: ``JsonLines(path, line=retrysafe.messaging.relay.operator.line)``, or a function of yours.
    """

    _side = "outbox"

    def __init__(
        self,
        store: Any,
        *,
        older_than: Duration,
        every: Duration = "1h",
        batch: int = 1000,
        pause: Duration = "10ms",
        archive: Callable[[Sequence[Any]], object] | Callable[[Sequence[Any]], Awaitable[object]] | None = None,
        observers: Iterable[Observer] | None = None,
    ) -> None:
        self._age = seconds_of(older_than, "older_than")
        super().__init__(store, every=every, batch=batch, pause=pause, archive=archive, observers=observers)

    def _store_to_sweep(self, backend: Backend) -> Any:
        _, store = outbox_of(backend)
        return SqlPublished(store, self._age)


def line(kept: Kept) -> str:
    """A message as one line of JSON: its CloudEvents attributes, its payload in base64."""
    number, envelope = kept
    payload = base64.b64encode(envelope.payload).decode("ascii")
    plain = {"format": FORMAT, "number": number, **envelope._asdict(), "payload": payload}
    return json.dumps(plain, ensure_ascii=True, separators=(",", ":"))


ANY = DeadLetterFilter()


class OutboxOperator(Operating):
    """Looks after the outboxes of a database, by hand or from a monitor.

    Arguments:
        store: what ``Outbox(store=…)`` was given; a URL of an async driver will do.
        actor: who makes the changes; by default the user and the machine.
        observers: receive an event for every change, and from `report` the backlog; by default a `LoggingObserver`.
    """

    def __init__(self, store: Any, *, actor: str | None = None, observers: Iterable[Observer] | None = None) -> None:
        super().__init__(store, actor=actor, observers=observers)
        self._outbox, sql = outbox_of(self._backend)
        self._store = cast("TransactionalStore", sql)
        self._reporter = Reporter(self._observers)

    # ------------------------------------------------------------ looking

    def status(self) -> OutboxStatus:
        """Return the outbox's state: messages by topic, relays, dead letters. Counts up to 100,000 rows of each."""
        return self._do(standing(self._outbox))

    def report(self, stalled_after: Duration = "1m") -> OutboxStatus:
        """`standing`, reported to the observers as relays report it, for monitors where no relay runs."""
        found = self.status()
        self._reporter.stands(found, seconds_of(stalled_after, "stalled_after"))
        return found

    def dead(self, chosen: DeadLetterFilter = ANY) -> Iterator[DeadLetter]:
        """The dead letters that are chosen, and the heads of parked lanes, oldest number first; a page in memory."""
        after = 0
        while page := self.page(chosen, after):
            yield from page
            after = page[-1].number

    def page(self, chosen: DeadLetterFilter = ANY, after: int = 0, limit: int = PAGE) -> list[DeadLetter]:
        """Up to ``limit`` dead letters that are chosen, with numbers above ``after``; fewer if they are large."""
        return self._do(ask(self._outbox.letters(chosen, after, limit)))

    def count(self, chosen: DeadLetterFilter = ANY, most: int | None = None) -> Groups:
        """Count the chosen dead letters by topic, type and error; numbers and ids in those are ``#``.

        With ``most``, only the first so many dead letters are looked at.
        """
        counts = self._do(ask(self._outbox.count(chosen, most)))
        return by_kind(counts)

    # ------------------------------------------------------------ changing

    def pause(self, topic: str) -> None:
        """Let nothing of a topic leave until `resume`; what a relay has taken already may still do."""
        self._do(ask(self._outbox.pause(validation.name(topic, "topic"))))
        self._reporter.emit("topic_paused", topic=topic, actor=self.actor)

    def resume(self, topic: str) -> bool:
        """Let a topic go on; False if it was not paused."""
        done = self._do(ask(self._outbox.resume(topic)))
        if done:
            self._reporter.emit("topic_resumed", topic=topic, actor=self.actor)
        return done

    def redrive(self, chosen: DeadLetterFilter = ANY, *, limit: int | None = None, reason: str = "") -> int:
        """Let dead letters leave again, up to ``limit`` of them; returns how many.

        A dead letter goes to the end of its lane, under its old id: whatever of its key left meanwhile was before it. A
        parked lane goes on where it is. Each has all its attempts again. What dies again meanwhile is left alone.
        """
        return self._change(self._redrive, "redriven", self.dead(chosen), limit, reason)

    def discard(self, chosen: DeadLetterFilter = ANY, *, limit: int | None = None, reason: str = "") -> int:
        """Delete dead letters that are not to be sent, up to ``limit`` of them, for good; returns how many.

        The first message of a parked lane stays: others wait for it.
        """
        letters = (letter for letter in self.dead(chosen) if not letter.parked)
        return self._change(self._discard, "discarded", letters, limit, reason)

    def _change(
        self,
        how: Callable[[Sequence[DeadLetter]], int],
        event: str,
        chosen: Iterable[DeadLetter],
        limit: int | None,
        reason: str,
    ) -> int:
        done, began = 0, None
        letters = map(_without_payload, chosen)
        while page := list(islice(letters, PAGE if limit is None else min(PAGE, limit - done))):
            began = page[0].now if began is None else began
            done += how([one for one in page if one.dead_at <= began])
        self._tell(event, done, reason)
        return done

    def redrive_batch(
        self,
        chosen: DeadLetterFilter,
        *,
        until: Micros,
        cursor: str | None = None,
        limit: int = BATCH,
        reason: str = "",
    ) -> Batch:
        """Redrive up to ``limit`` dead letters that died no later than ``until``; go on at the batch's cursor.

        Repeating a batch is harmless: what it has redriven is no dead letter any more.
        """
        page = self.page(chosen, int(cursor or 0), limit)
        done = self._redrive([one for one in page if one.dead_at <= until])
        self._tell("redriven", done, reason)
        return Batch(done, len(page) - done, str(page[-1].number) if page else None)

    def _redrive(self, letters: Sequence[DeadLetter]) -> int:
        return self._transact(lambda: redrive(self._store, self._outbox, letters)) if letters else 0

    def _discard(self, letters: Sequence[DeadLetter]) -> int:
        return self._do(ask(self._outbox.discard([letter.number for letter in letters]))) if letters else 0

    def _tell(self, event: str, done: int, reason: str) -> None:
        if done:
            self._reporter.emit(event, side="outbox", messages=done, actor=self.actor, reason=reason)


def _without_payload(letter: DeadLetter) -> DeadLetter:
    """Drop the payload of a letter while others are looked up."""
    return letter._replace(envelope=letter.envelope._replace(payload=b"", headers={}))
