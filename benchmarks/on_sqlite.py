"""SQLite beside the standard sqlite3 module on one connection, with the same journal and sync settings."""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import by_hand
from benchmarks.on_memory import coroutine, function
from benchmarks.rows import RATIO, Row, Sides, at_once, one_by_one
from retrysafe import Boundary

CLIENTS = 16
_INSERT = (
    "INSERT INTO by_hand (key, fingerprint, state, attempt, expires) VALUES (?, ?, 'running', ?, ?) "
    "ON CONFLICT (key) DO NOTHING"
)
_COMPLETE = "UPDATE by_hand SET state = 'completed', result = ? WHERE key = ? AND attempt = ? AND state = 'running'"
_READ = "SELECT fingerprint, result FROM by_hand WHERE key = ? AND state = 'completed'"
_ORDER = by_hand.ORDER.format("?", "?")


def rows() -> Sequence[Row]:
    """Leased and transactional, in both sync settings; async with many clients, whose commits can be shared."""
    return [
        Row(f"sqlite {synchronous}/{name}", partial(sides, synchronous, floor), RATIO, replay=floor is Replay)
        for synchronous in ("FULL", "NORMAL")
        for name, sides, floor in (
            ("once fresh", _once, Leased),
            ("once replay", _once, Replay),
            ("claim tx fresh", _claim, Transaction),
            ("claim tx replay", _claim, Replay),
            (f"once async fresh ×{CLIENTS}", _aonce, Leased),
        )
    ]


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
        """Whether the key is ours."""
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
        self.connection.execute(_ORDER, (key, by_hand.AMOUNT))
        result = function(key)
        self.complete(key, attempt, result)
        self.connection.execute("COMMIT")
        return result


class Replay(Leased):
    """By hand: look first, which is the fastest when the answer is there."""

    def __call__(self, key: str) -> Any:
        return self.stored(key) or super().__call__(key)


Floor = Callable[[sqlite3.Connection], Callable[[str], Any]]


@contextmanager
def _file(synchronous: str) -> Iterator[tuple[str, sqlite3.Connection]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "bench.db")
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {synchronous}")
            connection.executescript(by_hand.TABLE.format(text="TEXT", bytes="BLOB", number="INTEGER"))
            yield f"sqlite:///{path}?synchronous={synchronous}", connection


@contextmanager
def _once(synchronous: str, floor: Floor) -> Iterator[Sides]:
    with _file(synchronous) as (url, connection):
        boundary = Boundary("bench", store=url)
        yield Sides(one_by_one(boundary.once(key="order")(function)), one_by_one(floor(connection)))
        boundary.close()


@contextmanager
def _claim(synchronous: str, floor: Floor) -> Iterator[Sides]:
    with _file(synchronous) as (url, connection):
        boundary = Boundary("bench", store=url, effects="transactional")

        def ours(key: str) -> None:
            with boundary.claim(key, payload={"order": key, "amount": by_hand.AMOUNT}) as claim:
                if not claim.replayed:
                    claim.tx.execute(_ORDER, (key, by_hand.AMOUNT))
                    claim.result = function(key)

        yield Sides(one_by_one(ours), one_by_one(floor(connection)))
        boundary.close()


@contextmanager
def _aonce(synchronous: str, floor: Floor) -> Iterator[Sides]:
    with _file(synchronous) as (url, connection), asyncio.Runner() as runner:
        boundary = Boundary("bench", store=url)
        yield Sides(
            at_once(runner, [boundary.once(key="order")(coroutine)] * CLIENTS),
            one_by_one(floor(connection)),
        )
        runner.run(boundary.aclose())
