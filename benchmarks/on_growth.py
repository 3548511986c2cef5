"""Claims on a table that holds a million records already, or ten, beside the same claims on an empty one."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial

import psycopg

from benchmarks.filling import POSTGRESQL, SQLITE, filling
from benchmarks.guarding import CLIENTS, aonce, once
from benchmarks.rows import FLOOR, OURS, Row
from benchmarks.stores import NORMAL, path_of, postgresql
from retrysafe.backends import registry

MILLION = 1_000_000


def rows() -> Sequence[Row]:
    """Fresh claims; ten million only when there is time."""
    return [
        Row(
            "claims at 1 million rows, sqlite NORMAL",
            "the same on an empty table",
            {OURS: partial(once, partial(_sqlite, MILLION)), FLOOR: partial(once, NORMAL)},
        ),
        *(
            Row(
                f"claims at {millions} million rows, postgresql asyncpg ×{CLIENTS}",
                "the same on an empty table",
                {
                    OURS: partial(aonce, partial(_postgresql, millions * MILLION), CLIENTS),
                    FLOOR: partial(aonce, partial(_postgresql, 0), CLIENTS),
                },
                needs=("postgresql",),
                long=millions > 1,
            )
            for millions in (1, 10)
        ),
    ]


@contextmanager
def _postgresql(count: int) -> Iterator[str]:
    with postgresql("asyncpg") as url:
        if count:
            with psycopg.connect(url.replace("+asyncpg", ""), autocommit=True) as connection:
                connection.execute("SET synchronous_commit TO off")
                filling(lambda sql: connection.execute(sql.encode()).rowcount, POSTGRESQL, settled=False)(count)
                connection.execute("VACUUM ANALYZE retrysafe_records")
                connection.execute("CHECKPOINT")
        yield url


@contextmanager
def _sqlite(count: int) -> Iterator[str]:
    with NORMAL() as url:
        backend = registry.connect(url)
        backend.migrate()
        backend.close()
        with closing(sqlite3.connect(path_of(url), isolation_level=None)) as connection:
            connection.execute("PRAGMA cache_size = -200000")
            filling(lambda sql: connection.execute(sql).rowcount, SQLITE, settled=False)(count)
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        yield url
