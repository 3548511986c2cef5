"""The indexes that the migrations create, so that one that is gone can be named and made again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from retrysafe.backends.migrations.history import Index, present
from retrysafe.protocol.checks import Facts
from retrysafe.protocol.requests import Ask, Program, Query, Rows, ask

PARTIAL = tuple(present().indexes.values())
"""Those of PostgreSQL and SQLite."""
WHOLE = tuple(filter(None, (index.without_condition() for index in PARTIAL)))
"""Those of MySQL, which has no partial indexes."""


def rows_of(sql: str) -> Ask[list[tuple[Any, ...]]]:
    """Ask for the rows of a query, with text that a driver gives as bytes decoded."""
    return Ask(Query(sql, {}, writes=False), _decode)


def _decode(answer: Rows) -> list[tuple[Any, ...]]:
    return [tuple(cell.decode() if isinstance(cell, bytes) else cell for cell in row) for row in answer.rows]


def missing(expected: Iterable[Index], tables: Iterable[str], names: Iterable[str]) -> list[Index]:
    """The expected indexes of these tables that are not among these names.

    A table that is not there has no index to miss: a SQLite file gets the tables of a feature when it is first used.
    """
    made, there = set(tables), set(names)
    return [index for index in expected if index.table in made and index.name not in there]


_THERE = (
    "SELECT CAST(c.relname AS text), format('%I.%I', n.nspname, c.relname), CAST(c.relkind AS text), i.indisvalid, "
    "EXISTS (SELECT 1 FROM pg_stat_progress_create_index AS p WHERE p.index_relid = c.oid) FROM pg_index AS i "
    "JOIN pg_class AS c ON c.oid = i.indexrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace "
    "WHERE starts_with(CAST(c.relname AS text), 'retrysafe_') AND pg_table_is_visible(c.oid)"
)


class Lost(NamedTuple):
    """Indexes of PostgreSQL that are missing or invalid, and the statements that make them beside the traffic."""

    indexes: list[Index]
    statements: list[str]


def find_lost_on_postgresql(store: Any, tables: Iterable[str]) -> Program[Lost]:
    """Find the indexes that are missing among those of these tables.

    One that a killed CREATE INDEX CONCURRENTLY has left invalid is dropped first; one that is just being made counts as
    there. Of a partitioned table, which takes no CONCURRENTLY, each partition gets its own; the table's then consists
    of those, without another look at a row.
    """
    rows = yield from ask(rows_of(_THERE))
    invalid = {name: (quoted, kind) for name, quoted, kind, valid, made in rows if not valid and not made}
    lost = missing(PARTIAL, tables, [name for name, *_ in rows if name not in invalid])
    partitions = (yield from ask(store.partitions())) if lost else []
    statements: list[str] = []
    for index in lost:
        made = [index]
        if index.table == "retrysafe_records" and partitions:
            suffix = index.name.removeprefix(index.table)
            made = [index._replace(name=f"{part.name}{suffix}", table=part.quoted) for part in partitions]
        for one in made:
            quoted, kind = invalid.get(one.name, ("", ""))
            statements += [f"DROP INDEX CONCURRENTLY IF EXISTS {quoted}"] if kind == "i" else []
            statements.append(one.create("CREATE INDEX CONCURRENTLY IF NOT EXISTS"))
        if made != [index]:
            quoted, kind = invalid.get(index.name, ("", ""))
            statements += [f"DROP INDEX IF EXISTS {quoted}"] if kind == "I" else []
            statements.append(index.create("CREATE INDEX IF NOT EXISTS"))
    return Lost(lost, statements)


def find_lost(facts: Facts) -> str | None:
    return f"Missing: {', '.join(index.name for index in facts['lost'])}." if facts.get("lost") else None


def repair_by(how: str) -> Callable[[Facts], list[str]]:
    """The statements that make those indexes, which begin so."""
    return lambda facts: [index.create(how) for index in facts["lost"]]
