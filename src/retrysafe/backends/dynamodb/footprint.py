"""The size of a record in DynamoDB, by the service's rules of item sizes and capacity units.

Source: Amazon DynamoDB Developer Guide, "Item sizes and formats" and "Read and write operations".
"""

from __future__ import annotations

import math

from retrysafe.backends.footprint import Footprint, Sizes

_ITEM = 480
"""An item without its names and result: the attributes' names and values."""
_OVERHEAD = 100
"""Bytes that the service bills for each item's index."""
_WRITE = 1024


def dynamodb(sizes: Sizes) -> Footprint:
    """An item is written when its key is claimed, and with its result; a replay is a refused write, charged as one."""
    claimed = _ITEM + sizes.names
    item = claimed + sizes.result
    writes = math.ceil(claimed / _WRITE) + math.ceil(item / _WRITE)
    notes = (
        "Time to live removes items for nothing.",
        "One key is one partition: 1,000 writes a second at most for one hot key.",
    )
    again = math.ceil(item / _WRITE)
    return Footprint(item, _OVERHEAD, write_units=writes, replay_units=again, notes=notes, forgets=True)
