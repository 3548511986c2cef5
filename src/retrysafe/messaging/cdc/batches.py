"""Messages that were read from the log, and which of them leave now. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from retrysafe.backends.sql.envelopes import envelope_in
from retrysafe.backends.sql.outbox_log import SqlOutboxLog, TableLook
from retrysafe.messaging.relay.procedures import each
from retrysafe.protocol.message_stores import OutboxStore
from retrysafe.protocol.messages import Queued
from retrysafe.protocol.ordering import bucket
from retrysafe.protocol.requests import Program, ask
from retrysafe.protocol.store import TransactionalStore


class LoggedMessage(NamedTuple):
    """A message, and the number of the transaction that has written it."""

    xid: int
    queued: Queued


def message_in(xid: int, row: Mapping[str, str | None]) -> LoggedMessage:
    """The message of a new row of the outbox, whose values are text."""
    payload = bytes.fromhex((row["payload"] or "").removeprefix("\\x"))
    envelope = envelope_in({**row, "payload": payload})
    number, lane, created = (int(row[name] or 0) for name in ("id", "lane", "created"))
    return LoggedMessage(xid, Queued(number, lane, created, 0, 0, envelope, noted=False))


def take(
    store: TransactionalStore,
    outbox: OutboxStore,
    log: SqlOutboxLog,
    batch: Sequence[LoggedMessage],
    silence: float,
    shut: Sequence[str],
) -> Program[list[Queued] | None]:
    """Begin a transaction that holds the buckets of a batch, and return what of it is to leave.

    None, and no transaction, when the table does not show yet what the log says.
    """
    batch = [one for one in batch if outbox.takes(one.queued.envelope)]
    yield from ask(store.begin())
    yield from each(outbox.prepare(silence))
    yield from ask(log.hold(sorted({bucket(one.queued.lane) for one in batch}), silence))
    look = yield from ask(log.look([one.queued.id for one in batch], shut))
    if any(one.queued.id not in look.waiting and not look.shows(one.xid) for one in batch):
        yield from ask(store.rollback())
        return None
    return leaving(batch, look)


def leaving(batch: Sequence[LoggedMessage], look: TableLook) -> list[Queued]:
    """Return the messages to publish: transactions as they were committed, each lane in the order of its numbers.

    What the table no longer has has left. What follows one of its lane that may not leave stays, for a round.
    """
    lanes: dict[int, list[Queued]] = {}
    stopped: set[int] = set()
    takes: set[int] = set()
    for _, queued in sorted(batch, key=lambda one: one.queued.id):
        found = look.waiting.get(queued.id)
        if found is None or found.message_id != queued.envelope.id or queued.lane in stopped:
            continue
        if not found.free:
            stopped.add(queued.lane)
            continue
        known = queued._replace(started=found.started, finished=found.finished, now=look.now, noted=found.noted)
        lanes.setdefault(queued.lane, []).append(known)
        takes.add(queued.id)
    turns = {lane: iter(queue) for lane, queue in lanes.items()}
    return [next(turns[one.queued.lane]) for one in batch if one.queued.id in takes]
