"""The gateway beside a bare reverse proxy in Python, and both beside the service itself.

The figure is what is left of the floor's throughput: of the proxy's, or of the direct call's. All processes share the
machine's cores with the client that asks them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial

from benchmarks import gateways
from benchmarks.on_http import memory, sqlite
from benchmarks.rows import RATIO, Row, Sides

_STORES: tuple[tuple[str, Callable[[], AbstractContextManager[str]]], ...] = (
    ("memory", memory),
    ("sqlite FULL", partial(sqlite, "FULL")),
)


def rows() -> Sequence[Row]:
    """Beside the proxy, and beside nothing."""
    found = [
        Row(
            f"gateway {name}/{kind}, of {floor}",
            partial(_sides, "gateway", floor, store),
            RATIO,
            None,
            kind == "replay",
        )
        for name, store in _STORES
        for kind in ("fresh", "replay")
        for floor in ("proxy", "direct")
    ]
    return [Row("gateway/bare proxy, of direct", partial(_sides, "proxy", "direct", memory), RATIO), *found]


@contextmanager
def _sides(layer: str, floor: str, store: Callable[[], AbstractContextManager[str]]) -> Iterator[Sides]:
    with store() as url, gateways.served(layer, url) as ours, gateways.served(floor, "") as below:
        yield Sides(ours, below)
