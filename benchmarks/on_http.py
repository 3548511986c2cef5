"""The middleware around an application of Starlette, beside the bare application, and other layers in the same run.

Behind uvicorn, in a process of its own whose processor time counts; and in process, without a server or client in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from benchmarks import stores, web
from benchmarks.guarding import CLIENTS
from benchmarks.rows import FLOOR, OURS, Opener, Row
from benchmarks.stores import Store

_STORES: tuple[tuple[str, Store, tuple[str, ...], Sequence[str]], ...] = (
    ("memory", stores.memory, (), web.RIVALS),
    ("sqlite NORMAL", stores.NORMAL, (), ()),
    ("sqlite FULL", stores.FULL, (), ()),
    ("redis", stores.redis, ("redis",), web.RIVALS),
    ("postgresql asyncpg", partial(stores.postgresql, "asyncpg"), ("postgresql",), ()),
    ("postgresql psycopg", partial(stores.postgresql, "psycopg"), ("postgresql",), ()),
)


def rows() -> Sequence[Row]:
    """Every store, over one connection and over many."""
    return [row for store in _STORES for row in _rows(*store)]


def _rows(name: str, store: Store, needs: tuple[str, ...], rivals: Sequence[str]) -> Iterator[Row]:
    for kind in ("fresh", "replay"):
        for clients in (1, CLIENTS):
            sides: dict[str, Opener] = {layer: partial(web.served, layer, store, clients) for layer in (OURS, *rivals)}
            sides[FLOOR] = partial(web.served, "bare", stores.memory, clients)
            beside = "the bare application behind uvicorn"
            yield Row(f"http {name} ×{clients}/{kind}", beside, sides, kind == "replay", needs, needs)
        if store is stores.memory:
            sides = {OURS: partial(web.in_process, OURS, store), FLOOR: partial(web.in_process, "bare", store)}
            yield Row(f"http {name} in process/{kind}", "the bare application", sides, kind == "replay")
