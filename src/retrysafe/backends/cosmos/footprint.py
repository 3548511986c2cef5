"""The size of a record in Cosmos DB, as JSON, and the request units of its calls, by the service's documentation."""

from __future__ import annotations

import math

from retrysafe.backends.footprint import Footprint, Sizes

_ITEM, _INDEX = 700, 300
"""An item without its names and result, and its entries in the index, in bytes."""
_WRITE = 6
"""Request units for each KB of a write; a point read takes 1."""


def cosmos(sizes: Sizes) -> Footprint:
    """An item is written when its key is claimed, and with its result; a replay is a refused write and a read."""
    claimed = _ITEM + sizes.names
    item = claimed + math.ceil(sizes.result / 3) * 4
    first, whole = math.ceil(claimed / 1024), math.ceil(item / 1024)
    notes = ("Request units are estimates: each answer tells its own in x-ms-request-charge.",)
    return Footprint(
        item,
        _INDEX,
        replay_requests=2,
        write_units=_WRITE * (first + whole),
        replay_units=_WRITE * first + whole,
        notes=notes,
        forgets=True,
    )
