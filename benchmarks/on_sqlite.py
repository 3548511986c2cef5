"""SQLite beside the standard sqlite3 module on one connection, with the same journal and sync settings."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

from benchmarks import by_hand
from benchmarks.guarding import CLIENTS, aonce, claim, function, once
from benchmarks.rows import FLOOR, OURS, Opener, Row, Side, one_by_one
from benchmarks.stores import FULL, NORMAL, Store, path_of
from retrysafe import insert_once

_INSERT = (
    "INSERT INTO by_hand (key, fingerprint, state, attempt, expires) VALUES (?, ?, 'running', ?, ?) "
    "ON CONFLICT (key) DO NOTHING"
)
_COMPLETE = "UPDATE by_hand SET state = 'completed', result = ? WHERE key = ? AND attempt = ? AND state = 'running'"
_ENTRY = by_hand.ENTRY.format("?")
_READ = "SELECT fingerprint, result FROM by_hand WHERE key = ? AND state = 'completed'"
_ORDER = by_hand.ORDER.format("?", "?")


def rows() -> Sequence[Row]:
    """Leased and transactional, in both sync settings; async with many clients, whose commits can be shared."""
    return [row for name, store in (("FULL", FULL), ("NORMAL", NORMAL)) for row in _rows(name, store)]


def _rows(synchronous: str, store: Store) -> Iterator[Row]:
    kinds: tuple[tuple[str, Opener, Floor], ...] = (
        ("once fresh", partial(once, store), Leased),
        ("once replay", partial(once, store), Replay),
        ("claim tx fresh", partial(claim, partial(_with_orders, store), _order), Transaction),
        ("claim tx replay", partial(claim, partial(_with_orders, store), _order), Replay),
        ("insert_once", partial(_by_hand, synchronous, store, Inserted), Entry),
        (f"once async fresh ×{CLIENTS}", partial(aonce, store, CLIENTS), Leased),
    )
    for name, ours, floor in kinds:
        sides: dict[str, Opener] = {OURS: ours, FLOOR: partial(_by_hand, synchronous, store, floor)}
        yield Row(f"sqlite {synchronous}/{name}", "sqlite3 by hand", sides, replay=floor is Replay)


def _order(tx: Any, key: str) -> None:
    tx.execute(_ORDER, (key, by_hand.AMOUNT))


@contextmanager
def _with_orders(store: Store) -> Iterator[str]:
    """A store beside the table of the work."""
    with store() as url:
        with closing(sqlite3.connect(path_of(url))) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(by_hand.TABLE.format(text="TEXT", bytes="BLOB", number="INTEGER"))
        yield url


class Leased:
    """By hand: insert, work, update, each committed by itself."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def __call__(self, key: str) -> Any:
        attempt = by_hand.attempt()
        if not self.claim(key, attempt):
            return self.stored(key)
        result = function(key)
        self.complete(key, attempt, result)
        return result

    def claim(self, key: str, attempt: str) -> bool:
        """Claim the key, and tell whether it is ours."""
        arguments = (key, by_hand.fingerprint(key), attempt, int(time.time()) + by_hand.DAY)
        return self.connection.execute(_INSERT, arguments).rowcount == 1

    def complete(self, key: str, attempt: str, result: dict[str, Any]) -> None:
        """Store the result."""
        if self.connection.execute(_COMPLETE, (by_hand.encode(result), key, attempt)).rowcount != 1:
            raise RuntimeError("the claim was lost")

    def stored(self, key: str) -> Any:
        """The stored result, or None."""
        found = self.connection.execute(_READ, (key,)).fetchone()
        return None if found is None else by_hand.replayed(found, key)


class Transaction(Leased):
    """By hand: the record and an order in one transaction."""

    def __call__(self, key: str) -> Any:
        attempt = by_hand.attempt()
        self.connection.execute("BEGIN IMMEDIATE")
        if not self.claim(key, attempt):
            self.connection.execute("ROLLBACK")
            return self.stored(key)
        _order(self.connection, key)
        result = function(key)
        self.complete(key, attempt, result)
        self.connection.execute("COMMIT")
        return result


class Entry(Leased):
    """By hand: a row in its transaction, unless it is there."""

    def __call__(self, key: str) -> Any:
        self.connection.execute("BEGIN IMMEDIATE")
        created = self.insert(by_hand.entry(key))
        self.connection.execute("COMMIT")
        return created

    def insert(self, entry: dict[str, Any]) -> bool:
        """Insert it, and tell whether it is new."""
        return self.connection.execute(_ENTRY, tuple(entry.values())).rowcount == 1


class Inserted(Entry):
    """The same by `insert_once`."""

    def insert(self, entry: dict[str, Any]) -> bool:
        return insert_once(self.connection, "by_hand", entry, key=("key",))[1]


class Replay(Leased):
    """By hand: look first, which is the fastest when the answer is there."""

    def __call__(self, key: str) -> Any:
        return self.stored(key) or super().__call__(key)


Floor = Callable[[sqlite3.Connection], Callable[[str], Any]]


@contextmanager
def _by_hand(synchronous: str, store: Store, floor: Floor) -> Iterator[Side]:
    with _with_orders(store) as url, closing(sqlite3.connect(path_of(url), isolation_level=None)) as connection:
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        yield one_by_one(floor(connection))
