"""The tables of a database as they are, and what differs from how they should be."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from retrysafe import lazy
from retrysafe.testing.crashing.points import Database

Rows = dict[str, list[dict[str, Any]]]
"""The rows of each table, by its name."""
MOST = 10_000
"""Tables with more rows are refused: they would not be compared whole."""


def snapshot(databases: Iterable[Database], words: frozenset[str]) -> Rows:
    """Every row of the tables that ``words`` name, but for retrysafe's own."""
    found: Rows = {}
    for database in databases:
        for table, rows in _KINDS[database.kind](dict(database.where), words).items():
            found[table] = [json.loads(json.dumps(row, default=str)) for row in rows]
            if len(rows) > MOST:
                raise ValueError(f"table {table} has more than {MOST} rows: let fresh() make less of them")
    return found


def _is_wanted(name: str, words: frozenset[str]) -> bool:
    return name.lower() in words and not name.lower().startswith("retrysafe_")


def _sqlite(where: Mapping[str, Any], words: frozenset[str]) -> Rows:
    path = where["path"]
    uri = path.startswith("file:")
    if not uri and not Path(path).exists():
        return {}
    with closing(sqlite3.connect(path, uri=uri)) as connection:
        connection.row_factory = sqlite3.Row
        connection.text_factory = lambda data: data.decode(errors="backslashreplace")
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        return {
            name: [dict(row) for row in connection.execute(f'SELECT * FROM "{name}" LIMIT {MOST + 1}')]
            for (name,) in tables
            if _is_wanted(name, words)
        }


_TABLES = """SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')
AND (pg_table_is_visible(c.oid) OR lower(n.nspname) = ANY({}))"""


def _postgresql(where: Mapping[str, Any], words: frozenset[str]) -> Rows:
    with lazy.psycopg.connect(where["dsn"], autocommit=True) as connection:

        def fetch(sql: str, *parameters: Any) -> list[Any]:
            return connection.execute(sql.encode(), parameters or None).fetchall()

        return _of_postgresql(fetch, fetch(_TABLES.format("%s"), list(words)), words)


def _of_postgresql(fetch: Callable[..., list[Any]], tables: list[Any], words: frozenset[str]) -> Rows:
    return {
        name: [
            json.loads(row) for (row,) in fetch(f'SELECT to_jsonb(t)::text FROM "{schema}"."{name}" t LIMIT {MOST + 1}')
        ]
        for schema, name in tables
        if _is_wanted(name, words)
    }


def _asyncpg(where: Mapping[str, Any], words: frozenset[str]) -> Rows:
    async def look() -> Rows:
        options = {name: value for name, value in where.items() if value is not None}
        options["server_settings"] = dict(options.get("server_settings", ()))
        connection = await lazy.asyncpg.connect(**options)
        try:
            tables = [tuple(row) for row in await connection.fetch(_TABLES.format("$1"), list(words))]
            found: Rows = {}
            for schema, name in tables:
                if _is_wanted(name, words):
                    sql = f'SELECT to_jsonb(t)::text FROM "{schema}"."{name}" t LIMIT {MOST + 1}'
                    found[name] = [json.loads(row[0]) for row in await connection.fetch(sql)]
            return found
        finally:
            await connection.close()

    return asyncio.run(look())


def _mysql(where: Mapping[str, Any], words: frozenset[str]) -> Rows:
    options = {name: value for name, value in where.items() if value is not None}
    options["database"] = _text(options.pop("db", b""))
    options["user"], options["password"] = _text(options.get("user", "")), _text(options.get("password", ""))
    with closing(
        lazy.pymysql.connect(**options, cursorclass=lazy.pymysql.cursors.DictCursor, autocommit=True)
    ) as connection:
        cursor = connection.cursor()
        cursor.execute("SHOW TABLES")
        found: Rows = {}
        for name in [next(iter(row.values())) for row in cursor.fetchall()]:
            if _is_wanted(name, words):
                cursor.execute(f"SELECT * FROM `{name}` LIMIT {MOST + 1}")
                found[name] = list(cursor.fetchall())
        return found


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")


_KINDS: dict[str, Callable[[Mapping[str, Any], frozenset[str]], Rows]] = {
    "sqlite": _sqlite,
    "postgresql": _postgresql,
    "asyncpg": _asyncpg,
    "mysql": _mysql,
}


def volatile(one: Rows, other: Rows) -> frozenset[tuple[str, str]]:
    """The columns in which two uncrashed runs differ: clocks, random ids, numbers from a sequence."""
    columns = {(table, column) for rows in (one, other) for table in rows for row in rows[table] for column in row}
    return frozenset(
        (table, column) for table, column in columns if _column(one, table, column) != _column(other, table, column)
    )


def _column(rows: Rows, table: str, column: str) -> Counter[str]:
    return Counter(_write(row.get(column)) for row in rows.get(table, ()))


def _write(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def differences(expected: Rows, found: Rows, ignored: frozenset[tuple[str, str]]) -> list[str]:
    """List the superfluous and the missing rows, table by table."""
    lines = []
    for table in sorted({*expected, *found}):
        before, after = _comparable(expected, table, ignored), _comparable(found, table, ignored)
        if before == after:
            continue
        counts = f"{sum(after.values())} rows instead of {sum(before.values())}"
        lines.append(f"table {table}: {counts}" if sum(after.values()) != sum(before.values()) else f"table {table}:")
        lines += [f"  + {row}" for row in (after - before).elements()]
        lines += [f"  - {row}" for row in (before - after).elements()]
    return lines


def _comparable(rows: Rows, table: str, ignored: frozenset[tuple[str, str]]) -> Counter[str]:
    return Counter(
        _write(
            {name: value for name, value in row.items() if (table, name) not in ignored and not _is_number(name, value)}
        )
        for row in rows.get(table, ())
    )


def _is_number(name: str, value: Any) -> bool:
    """A number that the database counts up, or a reference to one: a rolled back attempt leaves a gap."""
    return isinstance(value, int) and (name.lower() in ("id", "rowid") or name.lower().endswith("_id"))
