"""Writes that can be repeated, and tell whether this one was the write that counted. They need no record.

Each is a statement in the caller's transaction, which the caller commits: of several callers at once, all but one learn
that another was first. What belongs to the write is done in the same transaction, if it was this one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from retrysafe.backends.driver import arun, run
from retrysafe.backends.joining import join_any
from retrysafe.backends.user_tables import UserTable, refuse_text, user_table
from retrysafe.errors import ConfigurationError, RetryTransaction
from retrysafe.protocol.client import AsyncExecutor, AsyncFlushing, Executor, Flushing
from retrysafe.protocol.requests import Ask, Program, Query, Rows, as_it_is

R = TypeVar("R")
Row = Mapping[str, Any]
_NO_MORE: Row = {}
_REFUSED = "21000"
_REFUSAL = "(SELECT 1 UNION SELECT 2)"
"""On MySQL, the value by which a row that must stay ends the statement, its lock kept: the count of changed rows is the
same for a new row and for an old one that stays, on connections with FOUND_ROWS, as SQLAlchemy and Django make them."""


def insert_once(
    tx: Any, table: Any, row: Row, *, key: Sequence[str], returning: Sequence[str] = ()
) -> tuple[dict[str, Any], bool]:
    """Insert a row unless one with this key is there; return the row of the key, and whether it was created now.

    Arguments:
        tx: a connection or session in a transaction, as ``Boundary.claim(tx=…)`` takes it.
        table: its name, a SQLAlchemy table or mapped class, or a Django model.
        row: the values by column; with a model, by field.
        key: the columns of a primary key or of a unique constraint; none of them may be NULL.
        returning: more columns to return, such as an id that the database gives.

    Raises `RetryTransaction` if the row of another transaction is in the way and not visible to this one: run the
    transaction again; `ConfigurationError` if the table has no unique constraint of these columns.
    """
    return _run(_on(tx), lambda on: on.insert_once(table, row, key, returning))


async def ainsert_once(
    tx: Any, table: Any, row: Row, *, key: Sequence[str], returning: Sequence[str] = ()
) -> tuple[dict[str, Any], bool]:
    """`insert_once` in a transaction of async code."""
    return await _arun(_on(tx), lambda on: on.insert_once(table, row, key, returning))


def upsert(tx: Any, table: Any, row: Row, *, key: Sequence[str], newer: str | None = None) -> bool:
    """Insert a row, or write it over the one with this key; return whether it was written.

    ``newer`` names a column that only grows, such as a version: a row that has the same or a higher value stays as it
    is. Other arguments are those of `insert_once`.
    """
    return _run(_on(tx), lambda on: on.upsert(table, row, key, newer))


async def aupsert(tx: Any, table: Any, row: Row, *, key: Sequence[str], newer: str | None = None) -> bool:
    """`upsert` in a transaction of async code."""
    return await _arun(_on(tx), lambda on: on.upsert(table, row, key, newer))


def update_if(
    tx: Any, table: Any, values: Row, where: Row, *, unset: Sequence[str] = (), at_most: Row = _NO_MORE
) -> bool:
    """Change the rows that are as expected; return whether there was one.

    Arguments:
        tx, table: as for `insert_once`.
        values: what is written.
        where: columns and the value that each must have.
        unset: columns that must be NULL, such as a mark that is set once.
        at_most: columns that must be NULL or not above a value, and are set to it, such as a fencing token. Under a
            lease, ``lease.update`` raises instead.
    """
    return _run(_on(tx), lambda on: on.update_if(table, values, where, unset, at_most))


async def aupdate_if(
    tx: Any, table: Any, values: Row, where: Row, *, unset: Sequence[str] = (), at_most: Row = _NO_MORE
) -> bool:
    """`update_if` in a transaction of async code."""
    return await _arun(_on(tx), lambda on: on.update_if(table, values, where, unset, at_most))


class _On(NamedTuple):
    """A transaction of the caller's, and the writes in it."""

    tx: Any
    execute: Executor | None
    aexecute: AsyncExecutor | None
    kind: str

    def insert_once(
        self, name: Any, row: Row, key: Sequence[str], more: Sequence[str]
    ) -> Program[tuple[dict[str, Any], bool]]:
        table = user_table(name, self.kind, self.tx)
        _refuse_key(row, key)
        refuse_text("returning", more)
        complete = table.complete(row)
        sql = _insert(self.kind, table.name, _columns(table, complete), _columns(table, key), (), "")
        sql = _return(self.kind, sql, _columns(table, more) or ("1",))
        made = yield from self._insert(sql, table, complete, key, None)
        if made and not more:
            return dict(row), True
        names = [*row, *(name for name in more if name not in row)]
        if made and self.kind != "mysql":
            return {**row, **_load(table, more, made.rows[0])}, True
        found = yield from self._find(table, row, key, ", ".join(_columns(table, names)))
        return _load(table, names, found.rows[0]), bool(made)

    def upsert(self, name: Any, row: Row, key: Sequence[str], newer: str | None) -> Program[bool]:
        table = user_table(name, self.kind, self.tx)
        _refuse_key(row, key)
        if newer is not None and (row.get(newer) is None or newer in key):
            raise ConfigurationError(f"newer={newer!r} is no column with a value beside the key. Nothing was sent.")
        changed = [name for name in row if name not in key]
        if not changed:
            raise ConfigurationError("The row has nothing beside its key: insert_once() is for that. Nothing was sent.")
        complete = table.complete(row)
        guard = "" if newer is None else table.column(newer)
        columns = _columns(table, complete), _columns(table, key), _columns(table, changed)
        sql = _insert(self.kind, table.name, *columns, guard)
        written = yield from self._insert(sql, table, complete, key, newer)
        if written is None and self.kind == "mysql":
            yield from self._find(table, row, key, "1")
        return written is not None

    def update_if(self, name: Any, values: Row, where: Row, unset: Sequence[str], most: Row) -> Program[bool]:
        table = user_table(name, self.kind, self.tx)
        refuse_text("unset", unset)
        if not where or None in where.values() or None in most.values() or not {**values, **most}:
            raise ConfigurationError(
                "update_if() takes values, and where= columns with values, without which it would change every row. "
                "A column that must be NULL goes into unset=. Nothing was sent."
            )
        written = {**values, **most}
        params = {
            **{f"v{i}": table.store(name, written[name]) for i, name in enumerate(written)},
            **{f"w{i}": table.store(name, where[name]) for i, name in enumerate(where)},
            **{f"m{i}": table.store(name, most[name]) for i, name in enumerate(most)},
        }
        sets = ", ".join(f"{column} = :v{i}" for i, column in enumerate(_columns(table, written)))
        tests = [
            *(f"{column} = :w{i}" for i, column in enumerate(_columns(table, where))),
            *(f"{column} IS NULL" for column in _columns(table, unset)),
            *(f"({column} IS NULL OR {column} <= :m{i})" for i, column in enumerate(_columns(table, most))),
        ]
        output = f" OUTPUT inserted.{_columns(table, written)[0]}" if self.kind == "mssql" else ""
        update = Query(f"UPDATE {table.name} SET {sets}{output} WHERE {' AND '.join(tests)}", params, patient=True)
        done = yield from _rows(update)
        if done.affected or self.kind != "mysql":
            return done.affected > 0
        same = f"SELECT 1 FROM {table.name} WHERE {' AND '.join(tests)} FOR UPDATE"
        met = yield from _rows(Query(same, params, patient=True))
        if met.rows:  # it has these values already, which some connections do not count; its lock is ours now
            yield from _rows(update)
        return bool(met.rows)

    def _insert(
        self, sql: str, table: UserTable, row: Row, key: Sequence[str], newer: str | None
    ) -> Program[Rows | None]:
        """Perform the statement of `_insert`; None: the row that is there stays."""
        params = {f"v{i}": table.store(name, row[name]) for i, name in enumerate(row)}
        if self.kind == "mysql":
            params |= {f"k{i}": table.store(name, row[name]) for i, name in enumerate(key)}
            params["n"] = None if newer is None else table.store(newer, row[newer])
        from retrysafe.backends.sql.constraints import by_constraint  # with the drivers that it needs

        query = Query(sql, params, refusals={_REFUSED: None}, patient=True)
        done = yield from by_constraint(query, table, self.kind, key)
        return done if done.affected > 0 else None

    def _find(self, table: UserTable, row: Row, key: Sequence[str], columns: str) -> Program[Rows]:
        """The row of the key that was met, in a new statement; on MySQL its lock is ours already."""
        tests = " AND ".join(f"{column} = :k{i}" for i, column in enumerate(_columns(table, key)))
        params = {f"k{i}": table.store(name, row[name]) for i, name in enumerate(key)}
        locked = " FOR UPDATE" if self.kind == "mysql" else ""
        sql = f"SELECT {columns} FROM {table.name} WHERE {tests}{locked}"
        found = yield from _rows(Query(sql, params, patient=True))
        if not found.rows and self.kind == "mysql":
            raise ConfigurationError(
                f"A row of {table.name} that has another key is in the way: the row agrees with it in a second unique "
                f"constraint than that of key={tuple(key)}. Nothing was written."
            )
        if not found.rows:
            raise RetryTransaction(f"A row of {table.name} was in the way, and is not visible to this transaction.")
        return found


@lru_cache(maxsize=512)
def _insert(
    kind: str, table: str, names: tuple[str, ...], key: tuple[str, ...], changed: tuple[str, ...], newer: str
) -> str:
    """An INSERT that meets a row of its key: it writes the columns that are ``changed``, over a lower ``newer``."""
    values = ", ".join(f":v{i}" for i in range(len(names)))
    insert = f"INSERT INTO {table} ({', '.join(names)}) VALUES ({values})"
    if kind == "mssql":
        return _merge(table, names, key, changed, newer)
    if kind != "mysql":
        sets = ", ".join(f"{column} = excluded.{column}" for column in changed)
        met = f"{table.rpartition('.')[2]}.{newer}"
        guard = f" WHERE {met} IS NULL OR {met} < excluded.{newer}" if newer else ""
        then = f"UPDATE SET {sets}{guard}" if changed else "NOTHING"
        return f"{insert} ON CONFLICT ({', '.join(key)}) DO {then}"
    tests = [f"{column} <=> :k{i}" for i, column in enumerate(key)] if changed else ["1 = 0"]
    if newer:
        tests.append(f"({newer} IS NULL OR {newer} < :n)")
    first = f"{key[0]} = IF({' AND '.join(tests)}, {key[0]}, {_REFUSAL})"
    sets = ", ".join([first, *(f"{column} = :v{names.index(column)}" for column in changed)])
    return f"{insert} ON DUPLICATE KEY UPDATE {sets}"


def _merge(table: str, names: tuple[str, ...], key: tuple[str, ...], changed: tuple[str, ...], newer: str) -> str:
    """`_insert` of SQL Server: it locks the range of the key, and returns what it wrote: NOCOUNT hides numbers."""
    values = ", ".join(f":v{i} AS {name}" for i, name in enumerate(names))
    same = " AND ".join(f"t.{name} = s.{name}" for name in key)
    sets = ", ".join(f"t.{name} = s.{name}" for name in changed)
    guard = f" AND (t.{newer} IS NULL OR t.{newer} < s.{newer})" if newer else ""
    met = f" WHEN MATCHED{guard} THEN UPDATE SET {sets}" if changed else ""
    return (
        f"MERGE INTO {table} WITH (HOLDLOCK) AS t USING (SELECT {values}) AS s ON {same}{met} WHEN NOT MATCHED THEN "
        f"INSERT ({', '.join(names)}) VALUES ({', '.join(f's.{name}' for name in names)}) OUTPUT inserted.{key[0]};"
    )


def _return(kind: str, sql: str, columns: Sequence[str]) -> str:
    """The INSERT that returns these columns of a new row; MySQL's returns none."""
    if kind == "mssql":
        inserted = ", ".join(one if one == "1" else f"inserted.{one}" for one in columns)
        return f"{sql.rpartition(' OUTPUT ')[0]} OUTPUT {inserted};"
    return sql if kind == "mysql" else f"{sql} RETURNING {', '.join(columns)}"


def _rows(query: Query) -> Program[Rows]:
    rows: Rows = yield Ask(query, as_it_is)
    return rows


def _columns(table: UserTable, names: Sequence[str] | Row) -> tuple[str, ...]:
    return tuple(map(table.column, names))


def _load(table: UserTable, names: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
    return {name: table.load(name, value) for name, value in zip(names, values, strict=False)}


def _refuse_key(row: Row, key: Sequence[str]) -> None:
    refuse_text("key", key)
    if not key or any(row.get(name) is None for name in key):
        raise ConfigurationError(
            f"key={key!r} has to be a tuple of columns that all have a value in the row: two rows with NULL in a key "
            "differ. Nothing was sent."
        )


def _on(tx: Any) -> _On:
    joining = join_any(tx)
    return _On(tx if joining.tx is None else joining.tx, joining.execute, joining.aexecute, joining.kind)


def _run(on: _On, program: Callable[[_On], Program[R]]) -> R:
    if on.execute is None:
        raise ConfigurationError(
            "tx= belongs to async code: await ainsert_once, aupsert or aupdate_if of retrysafe.patterns."
        )
    if isinstance(on.execute, Flushing):
        on.execute.flush()
    return run(program(on), on.execute)


async def _arun(on: _On, program: Callable[[_On], Program[R]]) -> R:
    if on.aexecute is None:
        raise ConfigurationError("tx= belongs to sync code: call insert_once, upsert or update_if.")
    if isinstance(on.aexecute, AsyncFlushing):
        await on.aexecute.aflush()
    return await arun(program(on), on.aexecute)
