"""What a record takes in the memory of Redis and Valkey."""

from __future__ import annotations

from retrysafe.backends.footprint import Footprint, Sizes

_RECORD = 610
"""A hash with a record's fields, without its names and result, and its entries among keys and expiries."""


def redis(sizes: Sizes) -> Footprint:
    """A key with its fields; with append-only persistence, each claim and its result is written to the log."""
    notes = (
        "Set maxmemory above this with maxmemory-policy noeviction: an evicted record runs its operation again.",
        "A fork for a snapshot may need as much memory again while much is written.",
    )
    return Footprint(_RECORD + sizes.names + 1.25 * sizes.result, 0, 900 + sizes.names + sizes.result, notes=notes)
