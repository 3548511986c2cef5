"""Removing what is forgotten, at once or after it was archived."""

from __future__ import annotations

from collections.abc import Sequence

from retrysafe.protocol.asks import Steps, ask
from retrysafe.protocol.records import Record
from retrysafe.protocol.store import OperableStore, Store


def sweep(store: Store, limit: int) -> Steps[int]:
    """Remove up to ``limit`` forgotten records; return how many went."""
    gone = 0
    for request in store.sweep(limit):
        gone += yield from ask(request)
    return gone


def forgotten(store: OperableStore, limit: int) -> Steps[list[Record]]:
    """Return up to ``limit`` forgotten records, to be archived and then removed."""
    found: list[Record] = []
    for request in store.forgotten(limit):
        found += yield from ask(request)
    return found


def remove(store: OperableStore, seen: Sequence[Record]) -> Steps[int]:
    """Remove what was archived; a record whose key was used again meanwhile stays."""
    gone = 0
    for request in store.remove(seen):
        gone += yield from ask(request)
    return gone
