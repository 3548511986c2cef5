"""The size of a record in MongoDB, as BSON, before the storage engine compresses it."""

from __future__ import annotations

from retrysafe.backends.footprint import Footprint, Sizes

_DOCUMENT = 480
"""A document without its names and result: the fields' names and values."""
_INDEXES = 70
"""An entry in the index of ``_id``, and one in the TTL index."""


def mongodb(sizes: Sizes) -> Footprint:
    """A document is written when its key is claimed, and changed with its result; both are in the oplog."""
    notes = (
        "The collection is compressed on disk, by about half for results of text.",
        "The TTL monitor removes forgotten records once a minute, and each removal is in the oplog too.",
    )
    claimed = _DOCUMENT + sizes.names
    log = 2 * claimed + sizes.result
    return Footprint(claimed + sizes.result, _INDEXES, log, replay_requests=2, notes=notes, forgets=True)
