"""Keeping leases alive."""

from __future__ import annotations

from collections.abc import Sequence

from retrysafe.ports import Steps, Store
from retrysafe.programs.drivers import ask
from retrysafe.types import Held


def renew(store: Store, held: Sequence[Held]) -> Steps[set[bytes]]:
    """Extend the leases of held claims; return the keys that are still held."""
    kept: set[bytes] = set()
    for renewal in renewals(store, held):
        kept |= yield from renewal
    return kept


def renewals(store: Store, held: Sequence[Held]) -> list[Steps[set[bytes]]]:
    """Extend the leases of held claims; each program returns those of its keys that are still held.

    They are apart so that a server which does not answer for some keys costs the others nothing.
    """
    return [ask(request) for request in store.renew(held)]
