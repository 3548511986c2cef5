"""Steps of one claim beside the INSERT of a row by hand, alone and with a row of the user's in one transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from typing import Any, ClassVar

import psycopg

from benchmarks.rivals.contenders import dbos_steps
from benchmarks.rows import FLOOR, OURS, Row, Side
from benchmarks.stores import FULL, Store, path_of, postgresql
from retrysafe import Boundary

_TABLE = (
    "CREATE TABLE steps_by_hand (key {text}, name {text}, idx {text}, token {number}, result {bytes}, "
    "PRIMARY KEY (key, name, idx))"
)
_EFFECTS = "CREATE TABLE effects (order_id {text})"
_INSERT = "INSERT INTO steps_by_hand VALUES ({0}, {0}, {0}, {0}, {0})"
_EFFECT = "INSERT INTO effects VALUES ({0})"


def rows() -> Sequence[Row]:
    """A step is one operation; the claim around those of a turn is a part of its cost."""
    servers: tuple[tuple[str, Store, Callable[[str], Database], bool], ...] = (
        ("postgresql psycopg sync", partial(postgresql, "psycopg"), Postgresql, True),
        ("sqlite FULL", FULL, Sqlite, False),
    )
    return [
        Row(
            f"{server}/{name}",
            "one INSERT by hand",
            {OURS: partial(_ours, store, database, rows), FLOOR: partial(_by_hand, store, database, rows)}
            | ({"DBOS": dbos_steps} if on_server and not rows else {}),
            needs=("postgresql",) if on_server else (),
            counted=("postgresql",) if on_server else (),
        )
        for server, store, database, on_server in servers
        for name, rows in (("step", False), ("step with a row", True))
    ]


class Database:
    """A connection, and the statements in its dialect."""

    mark = "?"
    types: ClassVar = {"text": "TEXT", "number": "INTEGER", "bytes": "BLOB"}

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.insert, self.effect = _INSERT.format(self.mark), _EFFECT.format(self.mark)
        for table in (_TABLE, _EFFECTS):
            connection.execute(table.format(**self.types))

    def transaction(self) -> AbstractContextManager[Any]:
        """A transaction."""
        raise NotImplementedError


class Postgresql(Database):
    """psycopg, with prepared statements."""

    mark = "%s"
    types: ClassVar = {"text": "text", "number": "bigint", "bytes": "bytea"}

    def __init__(self, url: str) -> None:
        super().__init__(psycopg.connect(url, autocommit=True, prepare_threshold=0))

    def transaction(self) -> AbstractContextManager[Any]:
        """psycopg's own."""
        transaction: AbstractContextManager[Any] = self.connection.transaction()
        return transaction


class Sqlite(Database):
    """sqlite3."""

    def __init__(self, url: str) -> None:
        connection = sqlite3.connect(path_of(url), isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        super().__init__(connection)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """BEGIN IMMEDIATE and COMMIT."""
        self.connection.execute("BEGIN IMMEDIATE")
        yield
        self.connection.execute("COMMIT")


def _work(key: str) -> dict[str, str]:
    return {"order": key}


@contextmanager
def _ours(store: Store, connect: Callable[[str], Database], rows: bool) -> Iterator[Side]:
    with store() as url, closing(Boundary("bench", store=url, effects="keyed", observers=[])) as boundary:
        database = connect(url)

        def row(tx: Any, key: str) -> dict[str, str]:
            tx.execute(database.effect, (key,))
            return _work(key)

        def turn(keys: Sequence[str]) -> None:
            with boundary.claim(keys[0]) as claim:
                for key in keys:
                    if rows:
                        with database.transaction():
                            claim.step("step", row, key, each=key, tx=database.connection)
                    else:
                        claim.step("step", _work, key, each=key)
                claim.result = len(keys)

        with closing(database.connection):
            yield Side(turn)


@contextmanager
def _by_hand(store: Store, connect: Callable[[str], Database], rows: bool) -> Iterator[Side]:
    with store() as url:
        database = connect(url)

        def insert(of: str, key: str) -> None:
            result = json.dumps(_work(key)).encode()
            database.connection.execute(database.insert, (of, "step", key, 1, result))

        def turn(keys: Sequence[str]) -> None:
            for key in keys:
                if rows:
                    with database.transaction():
                        database.connection.execute(database.effect, (key,))
                        insert(keys[0], key)
                else:
                    insert(keys[0], key)

        with closing(database.connection):
            yield Side(turn)
