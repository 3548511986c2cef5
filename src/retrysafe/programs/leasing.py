"""Keeping leases alive."""

from __future__ import annotations

from collections.abc import Sequence

from retrysafe.ports import Steps, Store
from retrysafe.programs.drivers import ask
from retrysafe.types import Held


def renew(store: Store, held: Sequence[Held]) -> Steps[set[bytes]]:
    """Extend the leases of held claims; return the keys that are still held."""
    kept: set[bytes] = set()
    for request in store.renew(held):
        kept |= yield from ask(request)
    return kept
