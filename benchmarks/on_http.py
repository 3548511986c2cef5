"""The middleware around an application of Starlette, beside the bare application, and other layers in the same run.

Behind uvicorn the figure is what is left of the bare application's throughput. In process it is the processor time
that the layer adds to a request, without a server or client in it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

from benchmarks import web
from benchmarks.rows import MICROSECONDS, RATIO, Row, Sides

Store = Callable[[], AbstractContextManager[str]]
"""Lends the URL of a store."""
Aims = tuple[float | None, float | None]
"""Of fresh requests and of replays, as ratios."""


def rows() -> Sequence[Row]:
    """Memory and SQLite."""
    return [
        *compared("memory", memory, (0.80, 1.5), added=20, rivals=web.RIVALS),
        *compared("sqlite NORMAL", partial(sqlite, "NORMAL"), (0.50, 0.95)),
        *compared("sqlite FULL", partial(sqlite, "FULL"), (0.40, 0.95)),
    ]


def compared(
    name: str, store: Store, aims: Aims, *, added: float | None = None, rivals: Sequence[str] = ()
) -> Sequence[Row]:
    """The rows of one store; rivals have no aims."""
    return [
        row
        for layer in ("retrysafe", *rivals)
        for kind, aim in zip(("fresh", "replay"), aims, strict=True)
        for row in _both(f"http {name}/{layer} {kind}", layer, store, kind == "replay", aim, added)
    ]


def _both(name: str, layer: str, store: Store, replay: bool, aim: float | None, added: float | None) -> Iterator[Row]:
    ours = layer == "retrysafe"
    yield Row(f"{name}, uvicorn", partial(_sides, web.served, layer, store), RATIO, aim if ours else None, replay)
    cost = added if ours and not replay else None
    yield Row(f"{name}, in process", partial(_sides, web.in_process, layer, store), MICROSECONDS, cost, replay)


@contextmanager
def _sides(
    running: Callable[[str, str], AbstractContextManager[web.Side]], layer: str, store: Store
) -> Iterator[Sides]:
    with store() as url, running(layer, url) as ours, running("bare", "") as floor:
        yield Sides(ours, floor)


@contextmanager
def memory() -> Iterator[str]:
    """No store at all."""
    yield "memory://"


@contextmanager
def sqlite(synchronous: str) -> Iterator[str]:
    """A new file."""
    with tempfile.TemporaryDirectory() as folder:
        yield f"sqlite:///{Path(folder, 'bench.db')}?synchronous={synchronous}"
