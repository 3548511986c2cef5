"""The gateway beside a bare reverse proxy in Python, and both beside the service itself.

All processes share the machine's cores with the client that asks them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from benchmarks.gateways import served
from benchmarks.rows import FLOOR, OURS, Row
from benchmarks.stores import FULL, Store, memory

_STORES: tuple[tuple[str, Store], ...] = (("memory", memory), ("sqlite FULL", FULL))


def rows() -> Sequence[Row]:
    """Beside the proxy, and the service asked directly in the same run."""
    found = []
    for name, store in _STORES:
        for kind in ("fresh", "replay"):
            sides = {
                OURS: partial(served, "gateway", store),
                FLOOR: partial(served, "proxy", memory),
                "no proxy": partial(served, "direct", memory),
            }
            found.append(Row(f"gateway {name} {kind}", "a bare reverse proxy", sides, replay=kind == "replay"))
    return found
