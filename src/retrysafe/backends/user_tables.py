"""Tables of the user's in statements of ours: named by text, a SQLAlchemy table or a Django model.

A table renders its own name and its columns, and converts values as its library does in its own statements.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from retrysafe.errors import ConfigurationError

_NAME = re.compile(r"\w+")


class UserTable:
    """A table that is known by its name; values go to the driver as they are."""

    def __init__(self, name: str, kind: str) -> None:
        # SQLite takes a "name" that it does not know for text
        self._quotes = {"postgresql": '""', "mssql": "[]"}.get(kind, "``")
        self.name = ".".join(map(self.quoted, name.split(".")))

    def quoted(self, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise ConfigurationError(
                f"{name!r} is no name of a table or column: names are letters, digits and _, with a point behind a "
                "schema. Nothing was sent."
            )
        return f"{self._quotes[0]}{name}{self._quotes[1]}"

    def column(self, name: str) -> str:
        return self.quoted(name)

    def complete(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """A new row with the defaults that its library gives."""
        return row

    def store(self, name: str, value: Any) -> Any:
        """A value of a column as the driver takes it."""
        return value

    def load(self, name: str, value: Any) -> Any:
        """A value of a column as the user knows it."""
        return value


class SqlalchemyTable(UserTable):
    """A ``Table`` or a mapped class: by the names of its columns, with their types and defaults in Python."""

    def __init__(self, table: Any, kind: str, tx: Any) -> None:
        super().__init__(table.name if table.schema is None else f"{table.schema}.{table.name}", kind)
        self._columns = table.columns
        self._dialect = getattr(tx, "dialect", None) or tx.get_bind().dialect

    def column(self, name: str) -> str:
        return self.quoted(_member(self._columns, name).name)

    def complete(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        missing = [one for one in self._columns if one.default is not None and one.key not in row]
        return {**row, **{one.key: _default(one) for one in missing}}

    def store(self, name: str, value: Any) -> Any:
        convert = self._type(name).bind_processor(self._dialect)
        return value if convert is None else convert(value)

    def load(self, name: str, value: Any) -> Any:
        number = 701 if isinstance(value, float) else 1700  # PostgreSQL's numbers are read by the type in a reply
        convert = self._type(name).result_processor(self._dialect, number)
        return value if convert is None else convert(value)

    def _type(self, name: str) -> Any:
        return _member(self._columns, name).type.dialect_impl(self._dialect)


def _default(column: Any) -> Any:
    if column.default.is_scalar:
        return column.default.arg
    if not column.default.is_callable:
        raise ConfigurationError(
            f"The default of column {column.key!r} is made in SQL: give the column a value, or a server_default."
        )
    return column.default.arg(None)


class DjangoTable(UserTable):
    """A model: by the names of its fields, with their conversions and defaults."""

    def __init__(self, model: Any, kind: str, connection: Any) -> None:
        super().__init__(model._meta.db_table, kind)
        self._model, self._connection = model, connection
        fields = model._meta.local_concrete_fields
        self._fields = {name: field for field in fields for name in (field.attname, field.name)}

    def column(self, name: str) -> str:
        return self.quoted(_member(self._fields, name).column)

    def complete(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        given = {_member(self._fields, name).attname: getattr(value, "pk", value) for name, value in row.items()}
        made, complete = self._model(**given), dict(row)
        for field in dict.fromkeys(self._fields.values()):
            if field.attname not in given and not getattr(field, "generated", False):
                value = field.pre_save(made, add=True)
                if not hasattr(value, "resolve_expression") and not (value is None and field.primary_key):
                    complete[field.name] = value
        return complete

    def store(self, name: str, value: Any) -> Any:
        return _member(self._fields, name).get_db_prep_save(getattr(value, "pk", value), self._connection)

    def load(self, name: str, value: Any) -> Any:
        column = _member(self._fields, name).get_col(self._model._meta.db_table)
        for convert in (*self._connection.ops.get_db_converters(column), *column.get_db_converters(self._connection)):
            value = convert(value, column, self._connection)
        return value


def _member(found: Any, name: str) -> Any:
    if name not in found:
        raise ConfigurationError(
            f"The table has no column {name!r}, but {', '.join(sorted(found.keys()))}. Nothing was sent."
        )
    return found[name]


def user_table(table: Any, kind: str, tx: Any) -> UserTable:
    """The table that a caller names, in statements on the transaction ``tx`` of a ``kind`` of database."""
    if isinstance(table, str):
        return UserTable(table, kind)
    if hasattr(table, "_meta") and hasattr(tx, "ops"):
        return DjangoTable(table, kind, tx)
    mapped = getattr(table, "__table__", table)
    if hasattr(mapped, "columns") and (hasattr(tx, "dialect") or hasattr(tx, "get_bind")):
        return SqlalchemyTable(mapped, kind, tx)
    raise ConfigurationError(
        f"table= is {table!r:.80}: give the name of the table, a SQLAlchemy table or mapped class with a connection or "
        "session of SQLAlchemy, or a Django model with an alias or connection of Django's. Nothing was sent."
    )


def refuse_text(argument: str, names: object) -> None:
    """Refuse the name of one column for a tuple of such: its letters would be columns."""
    if isinstance(names, str):
        raise ConfigurationError(f"{argument}={names!r} has to be a tuple: ({names!r},). Nothing was sent.")
