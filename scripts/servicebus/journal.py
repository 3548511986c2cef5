"""The state that outlives the process: entities, messages and the ids that are recognised, in a file of SQLite."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_TABLES = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
CREATE TABLE IF NOT EXISTS entity (path TEXT PRIMARY KEY, kind TEXT, settings TEXT);
CREATE TABLE IF NOT EXISTS message (
    store TEXT, seq INTEGER, content BLOB, id TEXT, session TEXT, enqueued REAL, expires REAL, count INTEGER,
    PRIMARY KEY (store, seq)
);
CREATE TABLE IF NOT EXISTS seen (entity TEXT, id TEXT, at REAL, PRIMARY KEY (entity, id));
"""


class Row(NamedTuple):
    """A message as it is stored."""

    store: str
    seq: int
    content: bytes
    id: str
    session: str | None
    enqueued: float
    expires: float
    count: int


class Journal:
    """One writer. What is written counts when `commit` has returned."""

    def __init__(self, path: Path) -> None:
        self._file = sqlite3.connect(path, isolation_level=None)
        self._file.executescript(_TABLES)
        self._begun = False

    def _write(self, statement: str, *values: object) -> None:
        if not self._begun:
            self._file.execute("BEGIN")
            self._begun = True
        self._file.execute(statement, values)

    def commit(self) -> None:
        """Let what was written outlive the process and the machine."""
        if self._begun:
            self._file.execute("COMMIT")
            self._begun = False

    def entities(self) -> Iterator[tuple[str, str, dict[str, str]]]:
        """Path, kind and settings of each, topics before their subscriptions."""
        for path, kind, settings in self._file.execute("SELECT * FROM entity ORDER BY path").fetchall():
            yield path, kind, json.loads(settings)

    def messages(self) -> Iterator[Row]:
        """All of them, in their order."""
        for values in self._file.execute("SELECT * FROM message ORDER BY seq"):
            yield Row(*values)

    def seen(self) -> Iterator[tuple[str, str, float]]:
        """Entity, id and instant."""
        yield from self._file.execute("SELECT * FROM seen")

    def put_entity(self, path: str, kind: str, settings: dict[str, str]) -> None:
        """Make an entity, or give it other settings."""
        self._write("REPLACE INTO entity VALUES (?, ?, ?)", path, kind, json.dumps(settings))

    def drop_entity(self, path: str) -> None:
        """Remove an entity, with all that is below its path."""
        for column, table in (("path", "entity"), ("store", "message"), ("entity", "seen")):
            self._write(f"DELETE FROM {table} WHERE {column} = ? OR {column} GLOB ?", path, f"{path}/*")

    def add(self, row: Row) -> None:
        """A message has come."""
        self._write("INSERT INTO message VALUES (?, ?, ?, ?, ?, ?, ?, ?)", *row)

    def count(self, store: str, seq: int, count: int) -> None:
        """It was delivered in vain so often."""
        self._write("UPDATE message SET count = ? WHERE store = ? AND seq = ?", count, store, seq)

    def remove(self, store: str, seq: int) -> None:
        """A message is done with."""
        self._write("DELETE FROM message WHERE store = ? AND seq = ?", store, seq)

    def see(self, entity: str, id: str, at: float) -> None:
        """The id is to be recognised."""
        self._write("REPLACE INTO seen VALUES (?, ?, ?)", entity, id, at)
