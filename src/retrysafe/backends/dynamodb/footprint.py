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
_WRITE, _READ = 1024, 4096


def dynamodb(sizes: Sizes) -> Footprint:
    """An item is written when its key is claimed, and with its result; a replay is one strongly consistent read."""
    claimed = _ITEM + sizes.names
    item = claimed + sizes.result
    writes = math.ceil(claimed / _WRITE) + math.ceil(item / _WRITE)
    notes = (
        "A write of a key that is there already costs units too, and time to live removes items for nothing.",
        "One key is one partition: 1,000 writes a second at most for one hot key.",
    )
    return Footprint(item, _OVERHEAD, write_units=writes, read_units=math.ceil(item / _READ), notes=notes, forgets=True)
