"""Compares effects, as a business table or a provider lists them, with the records of their keys.

A store keeps hashes, and both sides can have millions of rows in any order. So both are written to a temporary SQLite
file by hash, and compared there: memory stays bounded, and the disk holds about 150 bytes for each row.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from retrysafe.admin.effect_rows import Row
from retrysafe.admin.operator import Operator
from retrysafe.protocol.records import Filter, State

_SCHEMA = """
CREATE TABLE effects (hash BLOB PRIMARY KEY, key TEXT NOT NULL, times INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE records (hash BLOB PRIMARY KEY, state TEXT NOT NULL, young INTEGER NOT NULL) WITHOUT ROWID;
"""
_BATCH = 5000
_COMPLETED = State.COMPLETED.value
"""Also of records whose window is over."""


class Difference(Enum):
    """The differences that effects and records can have."""

    DUPLICATE = "duplicate"
    """One key has more than one effect."""
    NO_RECORD = "effect without a record"
    NOT_COMPLETED = "effect of a record that is not completed"
    NO_EFFECT = "completed record without an effect"


_QUERIES = {
    Difference.DUPLICATE: "SELECT hash, key, times || ' times' FROM effects WHERE times > 1",
    Difference.NO_RECORD: (
        "SELECT e.hash, e.key, '' FROM effects e LEFT JOIN records r ON r.hash = e.hash WHERE r.hash IS NULL"
    ),
    Difference.NOT_COMPLETED: (
        "SELECT e.hash, e.key, r.state FROM effects e JOIN records r ON r.hash = e.hash "
        "WHERE NOT r.young AND r.state <> ?"
    ),
    Difference.NO_EFFECT: (
        "SELECT r.hash, NULL, r.state FROM records r LEFT JOIN effects e ON e.hash = r.hash "
        "WHERE e.hash IS NULL AND NOT r.young AND r.state = ?"
    ),
}


class Found(NamedTuple):
    """One difference. ``key`` is None where only the record is known."""

    difference: Difference
    key_hash: bytes
    key: str | None
    detail: str


class Reconciliation:
    """Effects and records side by side in a temporary file, until it is closed.

    Arguments:
        folder: where the temporary file is made; by default where the system has such files.
    """

    def __init__(self, folder: str | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="retrysafe-audit-", dir=folder)
        self._file = sqlite3.connect(Path(self._folder.name) / "rows.db", isolation_level=None)
        self._file.executescript(f"PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; {_SCHEMA}")
        self.effects = 0
        self.records = 0

    def __enter__(self) -> Reconciliation:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()
        self._folder.cleanup()

    def add_effects(self, operator: Operator, rows: Iterable[Row], *, boundary: str, operation: str | None) -> None:
        """Add rows of the business. They are read before the records: a claim's record comes before its effect."""
        hashed = (
            (operator.hash_of(key, boundary=boundary, operation=operation, scope=scope), key) for key, scope in rows
        )
        statement = "INSERT INTO effects VALUES (?, ?, 1) ON CONFLICT (hash) DO UPDATE SET times = times + 1"
        for batch in _batches(hashed):
            self._write(statement, batch)
            self.effects += len(batch)

    def add_records(self, operator: Operator, wanted: Filter, *, settled_for: int) -> None:
        """Add the records. Those that changed in the last ``settled_for`` microseconds may be ahead of the rows."""
        found = ((one.key, one.state.value, one.now - one.updated < settled_for) for one in operator.each(wanted))
        for batch in _batches(found):
            self._write("INSERT OR REPLACE INTO records VALUES (?, ?, ?)", batch)
            self.records += len(batch)

    def differences(self) -> Iterator[Found]:
        """All differences, kind by kind, in the order of their hashes."""
        for difference, query in _QUERIES.items():
            with closing(self._file.execute(query, (_COMPLETED,) if "?" in query else ())) as cursor:
                for key_hash, key, detail in cursor:
                    yield Found(difference, key_hash, key, detail)

    def _write(self, statement: str, rows: list[tuple[object, ...]]) -> None:
        self._file.execute("BEGIN")
        self._file.executemany(statement, rows)
        self._file.execute("COMMIT")


def _batches(rows: Iterable[tuple[object, ...]]) -> Iterator[list[tuple[object, ...]]]:
    waiting = iter(rows)
    while batch := list(islice(waiting, _BATCH)):
        yield batch
