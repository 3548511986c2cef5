"""A sqlite3 connection of ours: any thread may use and close it, and nothing of one use is under way in the next."""

from __future__ import annotations

import math
import os
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import ref


class Connection(sqlite3.Connection):
    """A connection that is lent to one use after another.

    It knows its cursors: one that is not read to its end keeps a transaction open behind the commit, and a connection
    that is closed meanwhile stays open until it is gone.
    """

    file: tuple[int, int] | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._reading: set[ref[Any]] = set()
        self._busy = float(options.get("timeout", 5.0))
        self._waits = self._usual = _steps(self._busy)

    def cursor(self, factory: Any = sqlite3.Cursor) -> Any:
        return self._note(super().cursor(factory))

    def execute(self, *args: Any) -> sqlite3.Cursor:
        cursor: sqlite3.Cursor = self._note(super().cursor()).execute(*args)
        return cursor

    def executemany(self, *args: Any) -> sqlite3.Cursor:
        cursor: sqlite3.Cursor = self._note(super().cursor()).executemany(*args)
        return cursor

    def blobopen(self, *args: Any, **options: Any) -> sqlite3.Blob:
        blob: sqlite3.Blob = self._note(super().blobopen(*args, **options))
        return blob

    def _note(self, reads: Any) -> Any:
        self._reading.add(ref(reads, self._reading.discard))
        return reads

    def reset(self) -> bool:
        try:
            for noted in self._reading.copy() if self._reading else ():
                if (reads := noted()) is not None:
                    reads.close()
            self._reading.clear()
            if self.in_transaction:
                self.rollback()
            self.isolation_level = None
            if self._waits != self._usual:
                self.set_busy_timeout(self._busy)
        except sqlite3.Error:
            return False
        return True

    def abandon(self) -> None:
        """Roll back, and allow nothing more: a thread of cancelled work may have it still, so it stays open."""
        with suppress(sqlite3.Error):
            self.set_authorizer(_allow_rollback)
            self.rollback()

    def set_busy_timeout(self, seconds: float) -> None:
        """Let statements wait so long for other writers, until it is lent again; rounded up to 50 ms."""
        steps = _steps(seconds)
        if steps != self._waits:
            super().execute(f"PRAGMA busy_timeout = {50 * steps}").close()
            self._waits = steps


def _allow_rollback(action: int, operation: str | None, *_: object) -> int:
    return sqlite3.SQLITE_OK if (action, operation) == (sqlite3.SQLITE_TRANSACTION, "ROLLBACK") else sqlite3.SQLITE_DENY


def _steps(seconds: float) -> int:
    """Convert a duration to steps of 50 ms; a use nearly always has all of its time left."""
    return math.ceil(20 * max(0.0, seconds))


def open_connection(
    path: str | os.PathLike[str], busy: float, prepare: Callable[[Connection], object] = lambda _: None
) -> Connection:
    """Open a file whose transactions begin and end by statement; ``busy``: seconds to wait for another writer.

    What ``prepare`` raises closes it: a connection that is left to the garbage collector could cross a fork.
    """
    connection = sqlite3.connect(
        path, timeout=busy, isolation_level=None, check_same_thread=False, cached_statements=64, factory=Connection
    )
    try:
        prepare(connection)
    except BaseException:
        connection.close()
        raise
    return connection
