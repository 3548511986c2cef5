"""Keeping leases alive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from retrysafe.protocol.asks import Ask, Steps, ask
from retrysafe.protocol.records import Ownership
from retrysafe.protocol.store import Store


def renew(store: Store, held: Sequence[Ownership]) -> Steps[set[Ownership]]:
    """Extend the leases of held claims; return those that are still held."""
    kept: set[Ownership] = set()
    for renewal in renewals(store, held):
        kept |= yield from renewal
    return kept


def renewals(store: Store, held: Sequence[Ownership]) -> list[Steps[set[Ownership]]]:
    """Extend the leases of held claims; each program returns those of its claims that are still held.

    They are apart so that a server which does not answer for some keys costs the others nothing. No ask has a key
    twice: it is answered by key, and of two claims to one, the first was taken over by the second.
    """
    batches: list[dict[bytes, Ownership]] = []
    for one in held:
        batch = next((known for known in batches if one.key not in known), None)
        if batch is None:
            batches.append(batch := {})
        batch[one.key] = one
    return [_renewal(request, batch) for batch in batches for request in store.renew(list(batch.values()))]


def _renewal(request: Ask[set[bytes]], batch: Mapping[bytes, Ownership]) -> Steps[set[Ownership]]:
    return {batch[key] for key in (yield from ask(request))}
