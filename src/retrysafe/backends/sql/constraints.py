"""Statements that meet rows by a key, and the unique constraint without which they would not."""

from __future__ import annotations

from collections.abc import Sequence

from retrysafe.backends.sql.drivers.base import NO_CONSTRAINT, sqlstate
from retrysafe.backends.user_tables import UserTable
from retrysafe.errors import ConfigurationError
from retrysafe.protocol.requests import Ask, Program, Query, Rows, ask

_UNQUOTED = str.maketrans({'"': "", "`": "", ".": "_"})
_constrained: set[tuple[str, frozenset[str]]] = set()
"""Tables of MySQL, each with the columns of a constraint that it was seen to have."""


def by_constraint(query: Query, table: UserTable, kind: str, key: Sequence[str]) -> Program[Rows]:
    """Perform a statement that meets rows by their key, which a constraint of the table must have.

    Without one MySQL would insert a second row; it is asked once for each table and key.
    """
    columns = tuple(map(table.column, key))
    known = kind != "mysql" or (table.name, frozenset(columns)) in _constrained
    if not known:
        show = Query(f"SHOW INDEX FROM {table.name} WHERE Non_unique = 0", {}, writes=False)
        found = yield from ask(Ask(show, lambda rows: rows))
        if frozenset(columns) not in _unique_keys(table, found):
            raise _constraint_error(table, columns)
        _constrained.add((table.name, frozenset(columns)))
    try:
        done: Rows = yield from ask(Ask(query, lambda rows: rows))
    except Exception as error:
        if sqlstate(error) != NO_CONSTRAINT:
            raise
        raise _constraint_error(table, columns) from error
    return done


def _unique_keys(table: UserTable, found: Rows) -> list[set[str]]:
    """The columns of each index, as SHOW INDEX lists them; one of a prefix or an expression is of none."""
    indexes: dict[str, set[str]] = {}
    for _, _, index, _, column, _, _, prefix, *_ in found.rows:
        indexes.setdefault(index, set()).add(table.quoted(column) if column and prefix is None else "")
    return list(indexes.values())


def _constraint_error(table: UserTable, columns: tuple[str, ...]) -> ConfigurationError:
    index = table.quoted("_".join([table.name, *columns]).translate(_UNQUOTED))
    return ConfigurationError(
        f"{table.name} has no primary key or unique constraint of the columns of the key, and of no others, so that it "
        "would take a row twice. Nothing was written. Add one: "
        f"CREATE UNIQUE INDEX {index} ON {table.name} ({', '.join(columns)})"
    )
