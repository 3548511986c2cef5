"""The rows of a business table or a CSV file, one by one: a key, and a scope if there is one."""

from __future__ import annotations

import csv
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import unquote, urlsplit

from retrysafe.backends.spec import library
from retrysafe.backends.urls import refuse_percent, without_password
from retrysafe.errors import ConfigurationError, InvalidKey
from retrysafe.protocol.keys import parse

Row = tuple[str, str]
"""Key and scope."""
_AT_ONCE = 5000


def from_csv(path: str, key: str | None = None, scope: str | None = None) -> Iterator[Row]:
    """The rows of a CSV file with a head line, or of stdin for ``-``; by default the first column is the key.

    Raises `ConfigurationError` for a file that cannot be read, a column that is missing, and a row without a key.
    """
    try:
        given: str | int = sys.stdin.fileno() if path == "-" else path
        with open(given, encoding="utf-8-sig", newline="", closefd=path != "-") as file:
            yield from _of_file(path, file, key, scope)
    except (OSError, csv.Error, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--csv {path}: {error}") from error


def _of_file(path: str, file: TextIO, key: str | None, scope: str | None) -> Iterator[Row]:
    reader = csv.reader(file)
    head = next(reader, None)
    if not head:
        raise ConfigurationError(f"--csv {path}: a line with the names of columns is expected first.")
    at = _column(path, head, key) if key else 0
    scoped = _column(path, head, scope) if scope else None
    for row in filter(None, reader):  # csv reads an empty line as a row without columns
        if len(row) <= max(at, scoped or 0) or not row[at]:
            raise ConfigurationError(f"--csv {path}: line {reader.line_num} has no key.")
        try:
            parse(row[at])
        except InvalidKey as error:
            raise ConfigurationError(f"--csv {path}: line {reader.line_num}: {error.detail}") from error
        yield row[at], "" if scoped is None else row[scoped]


def _column(path: str, head: list[str], name: str) -> int:
    if name not in head:
        raise ConfigurationError(f"--csv {path}: there is no column {name!r}; there are {', '.join(head)}.")
    return head.index(name)


def from_sql(url: str, query: str) -> Iterator[Row]:
    """The rows of a query: its first column is the key, its second, if there is one, the scope.

    The query runs in a read-only transaction, and rows are fetched in batches. Raises `ConfigurationError`.
    """
    kind = urlsplit(url).scheme.partition("+")[0]
    reading = {"sqlite": _sqlite, "postgresql": _postgresql, "postgres": _postgresql, "mysql": _mysql}.get(kind)
    if reading is None:
        raise ConfigurationError(
            f"--sql {kind or without_password(url)!r}: write sqlite:///file, postgresql://… or mysql://…."
        )
    for row in reading(url, query):
        if row[0] is None or row[0] == "":
            raise ConfigurationError("--query: a row has no key; leave such rows out of the query.")
        yield _text(row[0]), _text(row[1]) if len(row) > 1 and row[1] is not None else ""


def _text(value: Any) -> str:
    """A key or a scope as boundaries take it: text, a number or a UUID."""
    if isinstance(value, bytes | bytearray | memoryview):
        raise ConfigurationError("--query: it returns bytes, and keys and scopes are text: cast them in the query.")
    return str(value)


def _sqlite(url: str, query: str) -> Iterator[Any]:
    path = Path(unquote(urlsplit(url).path.removeprefix("/")) or ":memory:")
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            yield from _batches(connection.execute(query))
    except sqlite3.Error as error:
        raise ConfigurationError(f"--sql, --query: {error}") from error


def _postgresql(url: str, query: str) -> Iterator[Any]:
    psycopg = library("psycopg", "psycopg", "--sql")
    refuse_percent(url, "--sql")
    try:
        with psycopg.connect(f"postgresql:{url.partition(':')[2]}") as connection:
            connection.read_only = True
            with connection.cursor(name="retrysafe_audit") as cursor:
                cursor.itersize = _AT_ONCE
                yield from cursor.execute(query.encode())
    except psycopg.Error as error:
        raise ConfigurationError(f"--sql, --query: {error}") from error


def _mysql(url: str, query: str) -> Iterator[Any]:
    pymysql = library("pymysql", "mysql", "--sql")
    at = urlsplit(url)
    try:
        port = at.port or 3306
    except ValueError:
        raise ConfigurationError(f"--sql {without_password(url)!r}: the port is no number.") from None
    try:
        connection = pymysql.connect(
            host=at.hostname or "localhost",
            port=port,
            user=unquote(at.username or ""),
            password=unquote(at.password or ""),
            database=at.path.removeprefix("/"),
            cursorclass=pymysql.cursors.SSCursor,
        )
        with closing(connection), connection.cursor() as cursor:
            cursor.execute("START TRANSACTION READ ONLY")
            cursor.execute(query)
            yield from _batches(cursor)
    except pymysql.Error as error:
        raise ConfigurationError(f"--sql, --query: {error}") from error


def _batches(cursor: Any) -> Iterator[Any]:
    while rows := cursor.fetchmany(_AT_ONCE):
        yield from rows
