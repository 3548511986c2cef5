"""The middleware on PostgreSQL, leased, through both drivers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from benchmarks.on_http import compared
from benchmarks.postgresql import database
from benchmarks.rows import Row


def rows() -> Sequence[Row]:
    """asyncpg and psycopg."""
    return [
        row
        for driver, scheme in (("asyncpg", "postgresql+asyncpg"), ("psycopg", "postgresql"))
        for row in compared(f"postgresql {driver}", partial(_store, scheme), (0.40, 0.85))
    ]


@contextmanager
def _store(scheme: str) -> Iterator[str]:
    with database() as url:
        yield url.replace("postgresql", scheme, 1)
