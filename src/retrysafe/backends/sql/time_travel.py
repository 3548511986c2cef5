"""Lets time pass in SQL stores, for tests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from retrysafe.backends.sql.mysql import MysqlStore
from retrysafe.backends.sql.store import SqlStore
from retrysafe.backends.sql.table import TABLE
from retrysafe.backends.time_travel import INSTANTS, Aged
from retrysafe.protocol.records import Micros
from retrysafe.protocol.requests import Ask, nothing

AT_ONCE = 500
"""The number of records that one statement ages."""


def age(store: SqlStore, keys: Collection[bytes], micros: Micros) -> Aged:
    """Age records; those locked by an open transaction are left, because its end writes every instant anew."""
    shift = ", ".join(f"{name} = {name} - {_by(name, store.p('lease', 'micros'))}" for name in INSTANTS)

    def statement(listed: str) -> str:
        free = f"SELECT r.key_hash FROM {TABLE} AS r WHERE r.key_hash IN ({listed}){store.SKIP_LOCKED}"
        return f"UPDATE {TABLE} SET {shift} WHERE key_hash IN ({free})"

    return _statements(store, keys, micros, statement)


def age_mysql(store: MysqlStore, keys: Collection[bytes], micros: Micros) -> Aged:
    """`age` for MySQL, which reads the table that it changes only through a derived table."""
    shift = ", ".join(f"r.{name} = r.{name} - {_by(name, ':micros')}" for name in INSTANTS)

    def statement(listed: str) -> str:
        free = f"SELECT f.key_hash FROM {TABLE} AS f WHERE f.key_hash IN ({listed}) FOR UPDATE SKIP LOCKED"
        return f"UPDATE ({free}) AS free STRAIGHT_JOIN {TABLE} AS r ON r.key_hash = free.key_hash SET {shift}"

    return _statements(store, keys, micros, statement)


def _by(name: str, micros: str) -> str:
    """The time by which a column is aged: the beginning of work under way names it to its steps, and stays.

    But for work that a quota counts.
    """
    over = "state IN ('completed', 'failed') OR quota IS NOT NULL"
    return micros if name != "created" else f"CASE WHEN {over} THEN {micros} ELSE 0 END"


def _statements(
    store: SqlStore, keys: Collection[bytes], micros: Micros, statement: Callable[[str], str]
) -> Iterator[Ask[Any]]:
    ordered = sorted(keys)
    for start in range(0, len(ordered), AT_ONCE):
        some: Sequence[bytes] = ordered[start : start + AT_ONCE]
        listed = ", ".join(store.p("key", f"key{i}") for i in range(len(some)))
        params: dict[str, Any] = {f"key{i}": key for i, key in enumerate(some)}
        yield Ask(store.query(statement(listed), params | {"micros": micros}), nothing)
