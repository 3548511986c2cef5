"""What an operator asks: which records there are, how many, and how the server is set up."""

from __future__ import annotations

from retrysafe.core.transitions import Event
from retrysafe.ports import OperableStore, Steps, Store
from retrysafe.programs.drivers import ask
from retrysafe.types import Clocks, Filter, Finding, Micros, Record, Standing, Tally

PAGE = 500
"""How many records one ask of a scan is for."""


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
    counts: dict[tuple[str, Standing], tuple[int, Micros, Micros]] = {}
    cursor: str | None = None
    while True:
        page = yield from ask(store.scan(Filter(), cursor, PAGE))
        for record in page.records:
            alike = (record.boundary, record.standing)
            count, oldest, now = counts.get(alike, (0, record.updated, record.now))
            counts[alike] = (count + 1, min(oldest, record.updated), max(now, record.now))
        cursor = page.cursor
        if cursor is None:
            return [Tally(*alike, *counted) for alike, counted in sorted(counts.items())]


def expire(store: Store, seen: Record, *, forget: bool = False) -> Steps[bool]:
    """End the window of a settled record now, and with ``forget`` the memory of its key; False when it has changed."""
    memory = 0 if forget else max(seen.forget - seen.now, 0)
    return (yield from ask(store.resolve(seen, Event.EXPIRE, None, Clocks(lease=0, window=0, memory=memory))))


def examine(store: OperableStore) -> Steps[list[Finding]]:
    """Look at the server's settings."""
    found: list[Finding] = []
    for request in store.examine():
        found += yield from ask(request)
    return found
