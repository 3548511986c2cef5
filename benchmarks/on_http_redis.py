"""The middleware on Redis, beside other layers on it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from benchmarks import web
from benchmarks.on_http import compared
from benchmarks.on_redis import VARIABLE
from benchmarks.rows import Row


def rows() -> Sequence[Row]:
    """Every layer that keeps its keys in Redis."""
    return compared("redis", _store, (0.60, 1.0), rivals=web.RIVALS)


@contextmanager
def _store() -> Iterator[str]:
    yield os.environ[VARIABLE]
