"""Loads into a DuckDB file, which one process has: its writers are cursors of one connection."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from threading import RLock
from typing import Any

import duckdb
import pyarrow as pa

from retrysafe.backends.sql.drivers.base import arguments
from retrysafe.backends.sql.postgresql import PostgresqlStore
from retrysafe.errors import RetryTransaction
from retrysafe.loads.sql import LEDGER, SqlTarget, Writing
from retrysafe.protocol.requests import Query, Rows

_AT_ONCE = 100_000
_TURNS: defaultdict[str | None, RLock] = defaultdict(RLock)
"""Files, each with the turn to load into it: DuckDB does not see that a load of a part overlaps with one of all."""
_TABLE = (
    f"CREATE TABLE IF NOT EXISTS {LEDGER} (target VARCHAR, part VARCHAR, fence BIGINT NOT NULL, run VARCHAR NOT NULL, "
    "counted BIGINT NOT NULL, version BIGINT, high VARCHAR, PRIMARY KEY (target, part))"
)
_BARE = "CASE WHEN CAST(:target AS VARCHAR) ILIKE 'main.%' THEN CAST(:target AS VARCHAR)[6:] ELSE :target END"
_NAMED = (
    "coalesce((SELECT table_name FROM duckdb_tables() WHERE database_name = current_database() AND "
    f"schema_name = 'main' AND lower(table_name) = lower({_BARE})), {_BARE})"
)
_DATABASE = "FROM duckdb_databases() WHERE database_name = current_database()"


class _Opened:
    """A cursor, which has a transaction of its own, and its executor."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    def execute(self, query: Query, /) -> Rows:
        """Perform one statement; of two transactions that write a row, the later fails and has done nothing."""
        sql, args = arguments(query, "?")
        try:
            rows = self.handle.execute(sql, args).fetchall()
        except duckdb.TransactionException as error:
            raise RetryTransaction(str(error)) from error
        except duckdb.ConstraintException as error:
            if LEDGER not in sql:
                raise
            raise RetryTransaction(str(error)) from error  # the first mark of a part was made after we began
        return Rows(rows, 0) if sql.startswith("SELECT") else Rows([], rows[0][0] if rows else 0)


class _Writing(Writing):
    mark = "?"

    def cursor(self) -> Any:
        """The one of the transaction: a new one would begin another."""
        return self.tx

    def insert(self, sql: str, args: tuple[Any, ...]) -> int:
        return int(self.tx.execute(sql, args).fetchall()[0][0])

    def copy(self, into: str, width: int, rows: Iterator[tuple[Any, ...]]) -> int:
        """Write rows as Arrow tables: one by one they would take a thousand times as long."""
        counted = 0
        while some := list(islice(rows, _AT_ONCE)):
            columns = [pa.array(column) for column in zip(*some, strict=True)]
            self.tx.register("retrysafe_rows", pa.table(columns, [f"c{i}" for i in range(width)]))
            counted += self.insert(f"INSERT INTO {into} SELECT * FROM retrysafe_rows", ())
        return counted


class DuckdbTarget(SqlTarget):
    """A file, by its path, or a connection to it."""

    writing = _Writing
    shared = ""
    named = _NAMED
    whole = f"SELECT path, {_NAMED} {_DATABASE}"

    def __init__(self, file: Any) -> None:
        self.store = PostgresqlStore()  # DuckDB reads its statements
        self._connection = duckdb.connect(file) if isinstance(file, str) else file
        cursor = self._connection.cursor()
        cursor.execute(_TABLE)
        [(path,)] = cursor.execute(f"SELECT path {_DATABASE}").fetchall()
        self._turn = _TURNS[path]

    def client(self) -> Any:
        return _Client(self._connection, self._turn)


class _Client:
    def __init__(self, connection: Any, turn: RLock) -> None:
        self._connection, self._turn = connection, turn

    def __call__(self, query: Query, /) -> Rows:
        return _Opened(self._connection.cursor()).execute(query)

    @contextmanager
    def transaction(self) -> Iterator[_Opened]:
        """A transaction on a cursor, which is rolled back if it is still open at the end."""
        with self._turn:
            opened = _Opened(self._connection.cursor())
            try:
                yield opened
            finally:
                with suppress(duckdb.TransactionException):
                    opened.handle.rollback()
                opened.handle.close()
