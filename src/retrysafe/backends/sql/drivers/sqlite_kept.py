"""A sqlite3 connection of ours: any thread may use and close it, and nothing of one use is under way in the next."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable


class Connection(sqlite3.Connection):
    """A connection that is lent to one use after another."""

    def settle(self) -> bool:
        """End what its use has left under way; whether it can be lent again."""
        try:
            if self.in_transaction:
                self.rollback()
        except sqlite3.Error:
            return False
        return True


def opened(
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
