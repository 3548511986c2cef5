"""What an operator asks and does: which records there are, how many, how the server is set up; settle and expire."""

from __future__ import annotations

from typing import NamedTuple

from retrysafe.protocol.asks import Steps, ask
from retrysafe.protocol.records import (
    Clocks,
    EffectiveState,
    Filter,
    Finding,
    Micros,
    Page,
    Record,
    StoredResult,
    Tally,
)
from retrysafe.protocol.retry_table import in_doubt
from retrysafe.protocol.settling import read, resolve, suspect
from retrysafe.protocol.store import OperableStore, Store
from retrysafe.protocol.transitions import Transition

PAGE = 500
"""How many records one ask of a scan is for."""


class Change(NamedTuple):
    """Whether a change was made, and the record as it was before, or as it is when the change was not made."""

    done: bool
    record: Record | None


def page(store: OperableStore, wanted: Filter, cursor: str | None, limit: int = PAGE) -> Steps[Page]:
    """Return a page of the records that are wanted, without their results."""
    return (yield from ask(store.scan(wanted, cursor, limit)))


def find(store: OperableStore, wanted: Filter, limit: int) -> Steps[list[Record]]:
    """Return up to ``limit`` records that are wanted, without their results."""
    found: list[Record] = []
    cursor: str | None = None
    while len(found) < limit:
        page = yield from ask(store.scan(wanted, cursor, min(PAGE, limit - len(found))))
        found += page.records
        cursor = page.cursor
        if cursor is None:
            break
    return found[:limit]


def tally(store: OperableStore) -> Steps[list[Tally]]:
    """Count the records by boundary and standing; where the store cannot, by reading them all."""
    asks = store.tally()
    if not asks:
        return (yield from _tally_by_scan(store))
    counted: list[Tally] = []
    for request in asks:
        counted += yield from ask(request)
    return counted


def _tally_by_scan(store: OperableStore) -> Steps[list[Tally]]:
    counts: dict[tuple[str, EffectiveState], tuple[int, Micros, Micros]] = {}
    cursor: str | None = None
    while True:
        page = yield from ask(store.scan(Filter(), cursor, PAGE))
        for record in page.records:
            alike = (record.boundary, record.effective_state)
            count, oldest, now = counts.get(alike, (0, record.updated, record.now))
            counts[alike] = (count + 1, min(oldest, record.updated), max(now, record.now))
        cursor = page.cursor
        if cursor is None:
            return [Tally(*alike, *counted) for alike, counted in sorted(counts.items())]


def settle_doubt(
    store: Store,
    key: bytes,
    event: Transition,
    stored: StoredResult | None,
    *,
    clocks: Clocks | None = None,
    attempt: str | None = None,
) -> Steps[Change]:
    """Settle a key whose outcome is unknown, or whose attempt died in doubt; not if it is another attempt's by now.

    Without ``clocks`` the record keeps those that it was last written with.
    """
    record = yield from read(store, key)
    if record is None or attempt not in (None, record.attempt) or not in_doubt(record):
        return Change(False, record)
    clocks, before = clocks or clocks_of(record), record
    if record.effective_state is EffectiveState.LAPSED:
        yield from suspect(store, record, clocks)
        record = yield from read(store, key)
        if record is None or record.attempt != before.attempt:
            return Change(False, record)
    if (yield from resolve(store, record, event, stored, clocks)):
        return Change(True, before)
    return Change(False, (yield from read(store, key)))


def expire_seen(store: Store, seen: Record, *, forget: bool = False) -> Steps[Change]:
    """End the window of a settled record that is still as seen."""
    if (yield from expire(store, seen, forget=forget)):
        return Change(True, seen)
    return Change(False, (yield from read(store, seen.key)))


def clocks_of(record: Record) -> Clocks:
    """The window and memory that a record was last written with."""
    return Clocks(lease=0, window=record.expires - record.updated, memory=record.tombstone_until - record.updated)


def expire(store: Store, seen: Record, *, forget: bool = False) -> Steps[bool]:
    """End the window of a settled record now, and with ``forget`` the memory of its key; False when it has changed."""
    memory = 0 if forget else max(seen.tombstone_until - seen.now, 0)
    return (yield from ask(store.resolve(seen, Transition.EXPIRE, None, Clocks(lease=0, window=0, memory=memory))))


def examine(store: OperableStore) -> Steps[list[Finding]]:
    """Look at the server's settings."""
    found: list[Finding] = []
    for request in store.examine():
        found += yield from ask(request)
    return found
