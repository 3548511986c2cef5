"""The size of a record in the memory of Redis and Valkey."""

from __future__ import annotations

from retrysafe.backends.footprint import Footprint, Sizes

_VALUE = 208
"""A record as one string, without its names and result, with the head of a string."""
_KEY = 176
"""The key, the value's object, and the entries among the keys and the expiries."""


def redis(sizes: Sizes) -> Footprint:
    """A key with its value; with append-only persistence, each claim and its result is written to the log."""
    value = _VALUE + sizes.names + sizes.result
    notes = (
        "Set maxmemory above this with maxmemory-policy noeviction: an evicted record runs its operation again.",
        "A fork for a snapshot may need as much memory again while much is written.",
    )
    log = 610 + 2 * sizes.names + sizes.result
    return Footprint(_allocate(value) + _KEY, 0, log, notes=notes, forgets=True)


def _allocate(size: int) -> int:
    """Return the bytes that jemalloc allocates for a size: it has four classes from each power of two to the next."""
    step = max(16, 1 << max(0, (size - 1).bit_length() - 3))
    return -(-size // step) * step
