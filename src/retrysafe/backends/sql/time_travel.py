"""Lets time pass in SQL stores, for tests."""

from __future__ import annotations

from collections.abc import Collection
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
    derived = isinstance(store, MysqlStore)  # it reads the table that it changes only through a derived one
    of, skip = ("r.", " FOR UPDATE SKIP LOCKED") if derived else ("", store.SKIP_LOCKED)
    shift = ", ".join(f"{of}{name} = {of}{name} - {_by(name, store.p('lease', 'micros'))}" for name in INSTANTS)
    ordered = sorted(keys)
    for start in range(0, len(ordered), AT_ONCE):
        params: dict[str, Any] = {f"key{i}": key for i, key in enumerate(ordered[start : start + AT_ONCE])}
        listed = ", ".join(store.p("key", name) for name in params)
        free = f"SELECT r.key_hash FROM {store.SCANNED} WHERE r.key_hash IN ({listed}){skip}"
        if derived:
            sql = f"UPDATE ({free}) AS free STRAIGHT_JOIN {TABLE} AS r ON r.key_hash = free.key_hash SET {shift}"
        else:
            sql = f"UPDATE {TABLE} SET {shift} WHERE key_hash IN ({free})"
        yield Ask(store.query(sql, params | {"micros": micros}), nothing)


def _by(name: str, micros: str) -> str:
    """The time by which a column is aged: the beginning of work under way names it to its steps, and stays.

    But for work that a quota counts.
    """
    over = "state IN ('completed', 'failed') OR quota IS NOT NULL"
    return micros if name != "created" else f"CASE WHEN {over} THEN {micros} ELSE 0 END"
