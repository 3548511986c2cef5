"""Loads of a million rows beside the same statements by hand; an operation is a row."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import psycopg

from benchmarks.rows import FLOOR, OURS, Row, Side
from benchmarks.stores import database
from retrysafe import Boundary
from retrysafe.loads import Loads, Merge

ROWS = 1_000_000
_TABLES = (
    "CREATE TABLE sales (day date, id bigint, amount bigint, loaded_by text)",
    "CREATE TABLE customers (id bigint PRIMARY KEY, name text, version bigint, loaded_by text)",
)
_DAY = "2026-11-27"
_STAGE = "CREATE TEMPORARY TABLE stage ON COMMIT DROP AS SELECT * FROM customers WHERE false"
_MERGE = (
    "INSERT INTO customers SELECT * FROM stage ON CONFLICT (id) DO UPDATE SET name = excluded.name, "
    "version = excluded.version, loaded_by = excluded.loaded_by WHERE customers.version < excluded.version"
)


def rows() -> Sequence[Row]:
    """Each turn loads the same part again, with other values."""
    return [
        Row(
            f"load of a million rows, postgresql psycopg/{strategy}",
            floor,
            {OURS: partial(_ours, strategy), FLOOR: partial(_by_hand, strategy)},
            needs=("postgresql",),
            operations=ROWS,
            long=True,
        )
        for strategy, floor in (("overwrite", "BEGIN, DELETE, COPY, COMMIT"), ("merge", "COPY, INSERT … ON CONFLICT"))
    ]


def _rows(strategy: str, count: int, turn: int) -> Iterator[tuple[Any, ...]]:
    if strategy == "overwrite":
        return ((_DAY, i, i + turn) for i in range(count))
    return ((i, f"customer {i}", turn) for i in range(count))


@contextmanager
def _tables() -> Iterator[str]:
    with database() as url:
        with psycopg.connect(url) as connection:
            for table in _TABLES:
                connection.execute(table)
        yield url


@contextmanager
def _ours(strategy: str) -> Iterator[Side]:
    turns = itertools.count(1)
    options: dict[str, Any] = {"by": "day", "partition": _DAY}
    if strategy == "merge":
        options = {"strategy": Merge(("id",), newer="version")}
    table = "sales" if strategy == "overwrite" else "customers"
    with _tables() as url, closing(Boundary("bench", store=url, effects="keyed", observers=[])) as boundary:
        loads = Loads(boundary, url)

        def turn(keys: Sequence[str]) -> None:
            given = partial(_rows, strategy, len(keys), next(turns))
            assert loads.load(table, rows=given, run=keys[0], **options).rows == len(keys)

        yield Side(turn)


@contextmanager
def _by_hand(strategy: str) -> Iterator[Side]:
    turns = itertools.count(1)
    table = "sales" if strategy == "overwrite" else "stage"
    with _tables() as url, closing(psycopg.connect(url, autocommit=True)) as connection:

        def turn(keys: Sequence[str]) -> None:
            tag = (keys[0],)
            with connection.transaction(), connection.cursor() as cursor:
                cursor.execute(f"DELETE FROM sales WHERE day = '{_DAY}'" if table == "sales" else _STAGE)
                with cursor.copy(f"COPY {table} FROM STDIN") as copy:
                    for row in _rows(strategy, len(keys), next(turns)):
                        copy.write_row(row + tag)
                if strategy == "merge":
                    cursor.execute(_MERGE)

        yield Side(turn)
