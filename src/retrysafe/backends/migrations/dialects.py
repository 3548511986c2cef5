"""The schema's history in the SQL of each dialect."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import ClassVar

from retrysafe.backends.migrations.history import (
    AddColumn,
    Change,
    Column,
    Index,
    RenameColumn,
    RenameIndex,
    RenameTable,
    Rewrite,
    SchemaShape,
    Statements,
    Table,
    steps,
)

_BYTES = ("hash", "holder", "bytes", "body")
_TEXTS = ("text", "name", "short", "state", "effects")
_ONE_OF: Mapping[str, tuple[str, ...]] = {
    "state": ("running", "completed", "failed", "unknown", "released"),
    "effects": ("transactional", "keyed", "external"),
}


class Dialect:
    """The statements of one dialect. Those here are PostgreSQL's; others have some in their own way."""

    name: ClassVar[str] = "postgresql"
    types: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(_BYTES, "bytea"),
        **dict.fromkeys(_TEXTS, "text"),
        "big": "bigint",
        "int": "integer",
        "small": "smallint",
        "serial": "bigint GENERATED ALWAYS AS IDENTITY (CACHE 1) PRIMARY KEY",
        "stamp": "timestamptz NOT NULL DEFAULT now()",
        "xact": "xid8",
    }
    """The type of each kind; a dialect has no columns of other kinds."""
    unless_there: ClassVar[str] = "IF NOT EXISTS "
    begin: ClassVar[str] = "BEGIN"

    def up(self, version: int) -> list[str]:
        """The statements that bring the schema to a version from the one before."""
        found = [(change, before, after) for number, change, before, after in steps() if number == version]
        return [statement for change, *shapes in found for statement in self._due(change, self._up(change, *shapes))]

    def down(self, version: int) -> list[str]:
        """The statements that bring the schema back from a version to the one before."""
        found = [(change, before, after) for number, change, before, after in steps() if number == version]
        return [statement for step in reversed(found) for statement in self._down(*step)]

    def _due(self, change: Change, statements: Iterable[str]) -> Iterable[str]:
        """The statements of a change, where it may have been made before."""
        return statements

    def _up(self, change: Change, before: SchemaShape, after: SchemaShape) -> Iterable[str]:
        match change:
            case Table(only=only):
                return self._create(change) if only in (None, self.name) else []
            case Index():
                return self._add_index(change)
            case AddColumn(table):
                column = self._column(after.tables[table].columns[-1])
                return [f"ALTER TABLE {table} ADD COLUMN {self.unless_there}{column}"]
            case RenameTable(old, new):
                return [f"ALTER TABLE {old} RENAME TO {new}"]
            case RenameColumn(table, old, new):
                return [f"ALTER TABLE {table} RENAME COLUMN {old} TO {new}"]
            case RenameIndex(table, old, new):
                return self._rename_index(table, old, after.indexes[new])
            case Rewrite(table, indexes):
                return self._rewrite(before.tables[table], [before.indexes[one] for one in indexes])
            case Statements(dialect, statements):
                return statements if dialect == self.name else []

    def _down(self, change: Change, before: SchemaShape, after: SchemaShape) -> Iterable[str]:
        match change:
            case Table(name, only=only):
                return [self._drop(name)] if only in (None, self.name) else []
            case Index():
                return self._drop_index(change)
            case AddColumn(table):
                return [f"ALTER TABLE {table} DROP COLUMN {after.tables[table].columns[-1].name}"]
            case RenameTable(old, new):
                return self._up(RenameTable(new, old), after, before)
            case RenameColumn(table, old, new):
                return self._up(RenameColumn(table, new, old), after, before)
            case RenameIndex(table, old, new):
                return self._up(RenameIndex(table, new, old), after, before)
            case Rewrite():
                return []
            case Statements(dialect, _, statements):
                return statements if dialect == self.name else []

    def _create(self, table: Table) -> Iterable[str]:
        yield f"CREATE TABLE {self._definition(table)}{table.options.get(self.name, '')}"
        yield from (index.create("CREATE INDEX") for index in table.indexes)
        if table.numbers:
            yield self._fill(table.name, table.columns[0].name, table.numbers)

    def _definition(self, table: Table, *lines: str) -> str:
        known = [one for one in table.columns if one.kind in self.types]
        columns = [self._column(one, key=at == 0 and table.key == 1) for at, one in enumerate(known)]
        if table.key > 1:
            columns.append(f"PRIMARY KEY ({', '.join(one.name for one in known[: table.key])})")
        inner = ",\n".join(f"    {line}" for line in (*columns, *lines))
        return f"{table.name} (\n{inner}\n)"

    def _column(self, column: Column, *, key: bool = False) -> str:
        text = f"{column.name} {self.types[column.kind]}"
        if key:
            return text if column.kind == "serial" else f"{text} PRIMARY KEY"
        check = f" CHECK ({self._check(column.name, _ONE_OF[column.kind])})" if column.kind in _ONE_OF else ""
        return f"{text}{'' if column.null else ' NOT NULL'}{check}"

    def _check(self, name: str, values: Iterable[str]) -> str:
        return f"{name} IN ({', '.join(map(repr, values))})"

    def _fill(self, table: str, column: str, count: int) -> str:
        return f"INSERT INTO {table} ({column}) SELECT number FROM generate_series(0, {count - 1}) AS number"

    def _add_index(self, index: Index) -> Iterable[str]:
        return [index.create("CREATE INDEX IF NOT EXISTS")]

    def _rename_index(self, table: str, old: str, new: Index) -> Iterable[str]:
        return [f"ALTER INDEX {old} RENAME TO {new.name}"]

    def _rewrite(self, table: Table, indexes: Iterable[Index]) -> Iterable[str]:
        return []

    def _drop(self, table: str) -> str:
        return f"DROP TABLE {table}"

    def _drop_index(self, index: Index) -> Iterable[str]:
        return [f"DROP INDEX {index.name}"]


class Sqlite(Dialect):
    """SQLite, which renames no index, and whose migrations are one transaction."""

    name = "sqlite"
    types: ClassVar = {
        **dict.fromkeys(_BYTES, "BLOB"),
        **dict.fromkeys(_TEXTS, "TEXT"),
        **dict.fromkeys(("big", "int", "small"), "INTEGER"),
        "serial": "INTEGER PRIMARY KEY AUTOINCREMENT",
        "stamp": "TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP",
    }
    unless_there = ""

    def _fill(self, table: str, column: str, count: int) -> str:
        numbers = f"SELECT 0 UNION ALL SELECT number + 1 FROM numbers WHERE number < {count - 1}"
        with_numbers = f"WITH RECURSIVE numbers (number) AS ({numbers}) SELECT number FROM numbers"
        return f"INSERT INTO {table} ({column}) {with_numbers}"

    def _rename_index(self, table: str, old: str, new: Index) -> Iterable[str]:
        return [f"DROP INDEX IF EXISTS {old}", new.create("CREATE INDEX")]

    def _rewrite(self, table: Table, indexes: Iterable[Index]) -> Iterable[str]:
        made = f"{table.name}_rewritten"
        text = self._definition(table._replace(name=made)).replace("BLOB PRIMARY", "BLOB NOT NULL PRIMARY")
        for name, values in _ONE_OF.items():
            text = text.replace(self._check(name, values), " OR ".join(f"{name} = '{value}'" for value in values))
        names = ", ".join(one.name for one in table.columns if one.kind in self.types)
        yield f"CREATE TABLE {text}"
        yield f"INSERT INTO {made} ({names}) SELECT {names} FROM {table.name}"
        yield f"DROP TABLE {table.name}"
        yield f"ALTER TABLE {made} RENAME TO {table.name}"
        yield from (index.create("CREATE INDEX") for index in indexes)


_TABLE_OPTIONS = """ ENGINE = InnoDB ROW_FORMAT = DYNAMIC
    CHARACTER SET utf8mb4 /*!80019 COLLATE utf8mb4_0900_bin */ /*M!100600 COLLATE utf8mb4_nopad_bin */"""


class Mysql(Dialect):
    """MySQL and MariaDB, which commit at every statement: each can be repeated, and asks whether it is still due.

    Text is compared by its bytes, trailing spaces included.
    """

    name = "mysql"
    types: ClassVar = {
        "hash": "BINARY(32)",
        "holder": "BINARY(16)",
        "bytes": "BLOB",
        "body": "LONGBLOB",
        "text": "TEXT",
        "name": "VARCHAR(255)",
        "short": "VARCHAR(64)",
        "state": "VARCHAR(16)",
        "effects": "VARCHAR(16)",
        "big": "BIGINT",
        "int": "INTEGER",
        "small": "SMALLINT",
        "serial": "BIGINT AUTO_INCREMENT PRIMARY KEY",
        "stamp": "TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)",
    }
    unless_there = ""

    def _due(self, change: Change, statements: Iterable[str]) -> Iterable[str]:
        match change:
            case Index(name, table):
                view, named, is_new = "statistics", {"index_name": name}, True
            case AddColumn(table, described):
                view, named, is_new = "columns", {"column_name": described.split()[0]}, True
            case RenameTable(table):
                view, named, is_new = "tables", dict[str, str](), False
            case RenameColumn(table, old):
                view, named, is_new = "columns", {"column_name": old}, False
            case RenameIndex(table, old):
                view, named, is_new = "statistics", {"index_name": old}, False
            case _:
                return statements
        equal = "".join(f" AND {column} = '{name}'" for column, name in {"table_name": table, **named}.items())
        found = f"EXISTS (SELECT 1 FROM information_schema.{view} WHERE table_schema = DATABASE(){equal})"
        due = f"NOT {found}" if is_new else found
        performed = ("PREPARE retrysafe FROM @retrysafe", "EXECUTE retrysafe", "DEALLOCATE PREPARE retrysafe")
        return [one for text in statements for one in (f"SET @retrysafe = IF({due}, '{text}', 'DO 0')", *performed)]

    def _create(self, table: Table) -> Iterable[str]:
        whole = [index.without_condition() for index in table.indexes]
        text = self._definition(table, *(f"INDEX {one.name} ({one.columns})" for one in whole if one))
        yield f"CREATE TABLE IF NOT EXISTS {text}{table.options.get(self.name, _TABLE_OPTIONS)}"
        if table.numbers:
            yield self._fill(table.name, table.columns[0].name, table.numbers)

    def _fill(self, table: str, column: str, count: int) -> str:
        """The numbers below a power of four, by their digits."""
        places = range((count.bit_length() - 1) // 2)
        digits = ", ".join(f"(SELECT 0 AS d UNION SELECT 1 UNION SELECT 2 UNION SELECT 3) AS p{at}" for at in places)
        number = " + ".join(f"{4**at} * p{at}.d" for at in places)
        return f"INSERT IGNORE INTO {table} ({column}) SELECT {number} FROM {digits}"

    def _add_index(self, index: Index) -> Iterable[str]:
        whole = index.without_condition()
        return [f"ALTER TABLE {index.table} ADD INDEX {index.name} ({whole.columns})"] if whole else []

    def _rename_index(self, table: str, old: str, new: Index) -> Iterable[str]:
        return [f"ALTER TABLE {table} RENAME INDEX {old} TO {new.name}"]

    def _drop(self, table: str) -> str:
        return f"DROP TABLE IF EXISTS {table}"

    def _drop_index(self, index: Index) -> Iterable[str]:
        return [f"ALTER TABLE {index.table} DROP INDEX {index.name}"] if index.without_condition() else []


_BORN = 9
"""The version of the schema with which SQL Server came: its tables are made as they are there, and never renamed."""
_OURS = ("retrysafe_schema", "retrysafe_records")
_EXACT = "COLLATE Latin1_General_100_BIN2"


class Sqlserver(Dialect):
    """SQL Server, which has the table of records alone. Text is compared by its bytes, but for trailing spaces."""

    name = "mssql"
    types: ClassVar = {
        "hash": "binary(32)",
        "holder": "binary(16)",
        **dict.fromkeys(("bytes", "body"), "varbinary(max)"),
        "text": f"nvarchar(max) {_EXACT}",
        "name": f"nvarchar(255) {_EXACT}",
        "short": f"varchar(64) {_EXACT}",
        **dict.fromkeys(("state", "effects"), f"varchar(16) {_EXACT}"),
        **dict.fromkeys(("big", "xact"), "bigint"),
        "int": "integer",
        "small": "smallint",
        "stamp": "datetime2 NOT NULL DEFAULT SYSUTCDATETIME()",
    }
    begin = "BEGIN TRANSACTION"

    def up(self, version: int) -> list[str]:
        if version != 1:
            return super().up(version) if version > _BORN else []
        shape = [after for number, _, _, after in steps() if number == _BORN][-1]
        found = [f"CREATE TABLE {self._definition(shape.tables[name])}" for name in _OURS]
        return found + [self._index(one, shape) for one in shape.indexes.values() if one.table in _OURS]

    def down(self, version: int) -> list[str]:
        if version != 1:
            return super().down(version) if version > _BORN else []
        return [self._drop(name) for name in reversed(_OURS)]

    def _index(self, index: Index, shape: SchemaShape) -> str:
        """Long text cannot be a key, and a condition has no OR."""
        texts = {one.name for one in shape.tables[index.table].columns if one.kind == "text"}
        names = index.columns.split(", ")
        more = ", ".join(name for name in names if name in texts)
        states = re.findall(r"state = ('\w+')", index.where)
        where = f"state IN ({', '.join(states)})" if states else index.where
        keys = ", ".join(name for name in names if name not in texts)
        return f"CREATE INDEX {index.name} ON {index.table} ({keys}){more and f' INCLUDE ({more})'} WHERE {where}"


DIALECTS: Mapping[str, Dialect] = {one.name: one for one in (Mysql(), Dialect(), Sqlite(), Sqlserver())}
