"""Tables as each version of the schema leaves them, on real servers: a version that is released stays as it is.

`schemas.json` has a digest of what each server tells of its tables, for each version and for the way back to it.
Its entries were made by the SQL files that 0.1 had; those of a new version are written by this file run as a program.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from retrysafe.backends import migrations
from tests.conftest import require
from tests.faults.helpers import own_database, unique
from tests.stores.ageing import mysql_connection
from tests.tables import each_row
from tests.versions import OTHER_VERSIONS, variable_of

GOLDEN = Path(__file__).with_name("schemas.json")
Ask = Callable[[str], list[Any]]

_POSTGRESQL = (
    """SELECT c.relname, c.relkind, c.reloptions FROM pg_class c
    WHERE c.relname LIKE 'retrysafe%' AND c.relkind <> 'S' ORDER BY 1""",
    """SELECT c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity,
    pg_get_expr(d.adbin, d.adrelid) FROM pg_class c
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
    WHERE c.relname LIKE 'retrysafe%' AND c.relkind IN ('r', 'p') ORDER BY c.relname, a.attnum""",
    """SELECT CAST(conrelid::regclass AS text), conname, pg_get_constraintdef(oid) FROM pg_constraint
    WHERE contype <> 'n' AND CAST(conrelid::regclass AS text) LIKE 'retrysafe%' ORDER BY 1, 2""",
    "SELECT indexname, indexdef FROM pg_indexes WHERE tablename LIKE 'retrysafe%' ORDER BY 1",
    "SELECT seqmin, seqmax, seqcache, seqincrement FROM pg_sequence ORDER BY 1",
)


def of_sqlite(ask: Ask) -> list[Any]:
    """The text of each table and index: as it was written, but for spaces and quotes."""
    rows = ask("SELECT name, tbl_name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name")
    told = [
        (name, table, re.sub(r" *([(),]) *", r"\1", " ".join(sql.replace('"', "").split())))
        for name, table, sql in rows
    ]
    return [*told, _filled(ask, [name for name, *_ in rows])]


def of_postgresql(ask: Ask) -> list[Any]:
    told = [[list(row) for row in ask(question)] for question in _POSTGRESQL]
    return [*told, _filled(ask, [name for name, *_ in told[0]])]


def of_mysql(ask: Ask) -> list[Any]:
    """Columns by their places are as they come; keys by name, as migrations make them in different orders."""
    names = sorted(name for (name,) in ask("SHOW TABLES"))
    made = {name: ask(f"SHOW CREATE TABLE {name}")[0][1] for name in names}
    keys = re.compile(r"^  (?:KEY|CONSTRAINT) .*?,?$", re.MULTILINE)
    told = [
        (name, keys.sub("", text), sorted(one.strip(" ,") for one in keys.findall(text))) for name, text in made.items()
    ]
    return [*told, _filled(ask, names)]


def _filled(ask: Ask, names: list[str]) -> list[int]:
    return [
        sum(number + 1 for (number,) in ask(f"SELECT {column} FROM {table}"))
        for table, column in (("retrysafe_outbox_buckets", "bucket"), ("retrysafe_gates", "gate"))
        if table in names
    ]


@contextmanager
def on_sqlite(_: str) -> Iterator[Ask]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        yield lambda sql: database.execute(sql).fetchall()


@contextmanager
def on_postgresql(server: str) -> Iterator[Ask]:
    import psycopg

    with own_database(server, migrated=False) as url, psycopg.connect(url, autocommit=True) as database:

        def ask(sql: str) -> list[Any]:
            cursor = database.execute(sql.encode())
            return [] if cursor.description is None else cursor.fetchall()

        yield ask


@contextmanager
def on_mysql(server: str) -> Iterator[Ask]:
    name = unique("schema")
    url = urlsplit(server)._replace(path=f"/{name}").geturl()
    with closing(mysql_connection(server, autocommit=True)) as admin, admin.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
        try:
            with closing(mysql_connection(url, autocommit=True)) as database, database.cursor() as asked:

                def ask(sql: str) -> list[Any]:
                    asked.execute(sql)
                    return list(asked.fetchall())

                yield ask
        finally:
            cursor.execute(f"DROP DATABASE {name}")


KINDS = {"sqlite": (on_sqlite, of_sqlite), "postgresql": (on_postgresql, of_postgresql), "mysql": (on_mysql, of_mysql)}


def told(dialect: str, server: str) -> Iterator[tuple[str, list[Any]]]:
    """Each version up, and back down, with what the server says of the tables."""
    opening, look = KINDS[dialect]
    with opening(server) as ask:
        versions = [migration.version for migration in migrations.load(dialect)]
        for version in versions:
            for statement in migrations.forward(dialect, version):
                ask(statement)
            yield f"{version}", look(ask)
        for version in reversed(versions):
            for statement in migrations.backward(dialect, version):
                ask(statement)
            yield f"back from {version}", look(ask)


def digests(dialect: str, server: str) -> dict[str, str]:
    return {
        version: hashlib.sha256(json.dumps(tables, default=str).encode()).hexdigest()[:16]
        for version, tables in told(dialect, server)
    }


def flavour(dialect: str, server: str) -> str:
    """MariaDB tells of its tables in words of its own."""
    if dialect != "mysql":
        return dialect
    with closing(mysql_connection(server)) as database, database.cursor() as cursor:
        cursor.execute("SELECT VERSION()")
        return "mariadb" if "mariadb" in cursor.fetchone()[0].lower() else "mysql"


SERVICES = {name: kind for name, kind in ({name: name for name in KINDS} | OTHER_VERSIONS).items() if kind in KINDS}
"""A service → the kind of its schema."""


@pytest.mark.slow
@each_row("service", SERVICES)
def test_tables_of_every_version_are_as_they_were_released(service: str) -> None:
    dialect, server = SERVICES[service], os.environ.get(variable_of(service), "")
    if dialect != "sqlite":
        require(service)
    assert digests(dialect, server) == json.loads(GOLDEN.read_text())[flavour(dialect, server)]


if __name__ == "__main__":
    known: dict[str, dict[str, str]] = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    for name, kind in SERVICES.items():
        place = os.environ.get(variable_of(name), "")
        one = known.setdefault(flavour(kind, place), {})
        for version, digest in digests(kind, place).items():
            if one.setdefault(version, digest) != digest:
                sys.exit(f"Version {version} has other tables on {name} than when it was released.")
    GOLDEN.write_text(json.dumps(known, indent=1) + "\n")
