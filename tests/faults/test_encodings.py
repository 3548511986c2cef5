"""Databases, tables and connections whose text is not UTF-8 are refused before the work, or hold every character."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from retrysafe import Boundary, ConfigurationError, StoredFailure
from retrysafe.backends.driver import run
from retrysafe.backends.registry import connect
from retrysafe.messaging import Outbox
from retrysafe.protocol.procedures import find
from retrysafe.protocol.records import Filter
from tests.faults.conftest import Making
from tests.faults.helpers import driven, run_sql, unique
from tests.stores.ageing import mysql_connection

TEXT = "Zoë 🛒 \u20ac"
"""Of two, three and four bytes a character."""


def holds_every_character(boundary: Boundary, url: str) -> None:
    """Names, a key, a result and a failure come back as they were, also to an operator."""
    for replayed in (False, True):
        with boundary.claim(TEXT, scope=TEXT, operation=TEXT) as claim:
            assert claim.replayed is replayed
            if not replayed:
                claim.result = TEXT
        assert claim.result == TEXT
    with boundary.claim("failing", operation=TEXT) as claim:
        claim.fail(ValueError(TEXT))
    with pytest.raises(StoredFailure, match=TEXT), boundary.claim("failing", operation=TEXT):
        pytest.fail("a stored failure is not run again")
    backend = connect(url)
    found = run(find(backend.store, Filter(boundary=boundary.name, scope=TEXT), 10), backend.client())
    assert [record.operation for record in found] == [TEXT]
    backend.close()


def is_refused(boundary: Boundary, match: str, **claiming: Any) -> None:
    with pytest.raises(ConfigurationError, match=match), boundary.claim("key", **claiming):
        pytest.fail("refused before the handler")


async def ais_refused(boundary: Boundary, match: str, **claiming: Any) -> None:
    with pytest.raises(ConfigurationError, match=match):
        async with boundary.claim("key", **claiming):
            pytest.fail("refused before the handler")


# ---------------------------------------------------------------- PostgreSQL


@pytest.fixture(scope="module", params=["SQL_ASCII", "LATIN1"])
def other_database(request: pytest.FixtureRequest, migrated: str) -> Iterator[tuple[str, str]]:
    """The encoding and the URL of a database that is not in UTF-8."""
    name, encoding = unique("encoded"), request.param
    with psycopg.connect(migrated, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0 LOCALE 'C'".encode())
        url = f"{migrated.rsplit('/', 1)[0]}/{name}"
        backend = connect(url)
        backend.migrate()
        backend.close()
        yield encoding, url
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.mark.parametrize("library", ["psycopg", "asyncpg", "sqlalchemy", "async sqlalchemy"])
async def test_a_postgresql_database_that_is_not_utf8_is_refused(
    library: str, other_database: tuple[str, str], make: Making
) -> None:
    encoding, url = other_database
    if library == "psycopg":
        is_refused(make(url), f"encoding {encoding}.*ENCODING 'UTF8'")
    elif library == "asyncpg":
        boundary = make(driven(url, "asyncpg"))
        await ais_refused(boundary, f"encoding {encoding}")
        await boundary.aclose()
    elif library == "sqlalchemy":
        from sqlalchemy import create_engine

        inner = {"client_encoding": "utf8"}  # without it SQLAlchemy fails on SQL_ASCII by itself
        engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"), connect_args=inner)
        is_refused(make(engine, effects="transactional"), f"encoding {encoding}")
        engine.dispose()
    else:
        from sqlalchemy.ext.asyncio import create_async_engine

        aengine = create_async_engine(url.replace("postgresql:", "postgresql+asyncpg:"))
        await ais_refused(make(aengine), f"encoding {encoding}")
        await aengine.dispose()


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1", "UTF8"])
def test_our_own_connections_to_postgresql_are_in_utf8(
    encoding: str, migrated: str, make: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", encoding)
    url = f"{migrated}?options=-c%20client_encoding%3D{encoding}"
    holds_every_character(make(url), migrated)


@pytest.mark.parametrize(
    ("store", "encoding"),
    [("url", "SQL_ASCII"), ("url", "LATIN1"), ("pool", "SQL_ASCII"), ("pool", "LATIN1"), ("engine", "LATIN1")],
)  # SQLAlchemy cannot connect in SQL_ASCII: it expects text from psycopg, which gives bytes
def test_a_store_whose_connections_are_not_is_refused(store: str, encoding: str, migrated: str, make: Making) -> None:
    url = f"{migrated}?client_encoding={encoding}"
    if store == "url":
        is_refused(make(url), f"client_encoding {encoding}.*client_encoding=utf8")
    elif store == "pool":
        from psycopg_pool import ConnectionPool

        with ConnectionPool(url, min_size=1) as pool:
            is_refused(make(pool), f"client_encoding {encoding}")
    else:
        from sqlalchemy import create_engine

        engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
        is_refused(make(engine), f"client_encoding {encoding}")
        engine.dispose()


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
async def test_a_callers_connection_to_postgresql_that_is_not_is_refused(
    encoding: str, migrated: str, make: Making
) -> None:
    import asyncpg
    from sqlalchemy import create_engine

    boundary, match = make(migrated, effects="transactional"), f"encoding {encoding}"
    with boundary.claim("checked already"):
        pass
    with psycopg.connect(migrated, client_encoding=encoding) as tx:
        is_refused(boundary, match, tx=tx)
        with pytest.raises(ConfigurationError, match=match):
            Outbox(store=migrated, source="/tests").add(tx, "topic", {"a": 1})
    async with await psycopg.AsyncConnection.connect(migrated, client_encoding=encoding) as atx:
        await ais_refused(boundary, match, tx=atx)
    connection = await asyncpg.connect(migrated)
    await connection.execute(f"SET client_encoding TO '{encoding}'")
    async with connection.transaction():
        await ais_refused(boundary, match, tx=connection)
    await connection.close()
    engine = create_engine(migrated.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as joined:
        joined.exec_driver_sql(f"SET client_encoding TO '{encoding}'")
        is_refused(boundary, match, tx=joined)
    engine.dispose()
    await boundary.aclose()


# ---------------------------------------------------------------- MySQL and MariaDB


@contextmanager
def mysql_database(url: str, charset: str) -> Iterator[str]:
    """The URL of a database whose tables have this character set if nobody says otherwise."""
    name = unique("encoded")
    run_sql(url, f"CREATE DATABASE {name} CHARACTER SET {charset}")
    made = f"{url.rsplit('/', 1)[0]}/{name}"
    backend = connect(made)
    backend.migrate()
    backend.close()
    yield made
    run_sql(url, f"DROP DATABASE {name}")


@pytest.mark.parametrize("charset", ["latin1", "utf8mb3"])
def test_our_tables_take_every_character_in_any_mysql_database(charset: str, mysql_migrated: str, make: Making) -> None:
    with mysql_database(mysql_migrated, charset) as url:
        holds_every_character(make(url), url)
        said = (
            "SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = DATABASE() AND "
            "character_set_name <> 'utf8mb4' AND table_name <> 'retrysafe_schema'"
        )
        with closing(mysql_connection(url)) as connection, connection.cursor() as cursor:
            cursor.execute(said)
            assert cursor.fetchone() == (0,)


@pytest.mark.parametrize("charset", ["latin1", "utf8mb3"])
def test_tables_that_were_converted_are_refused(charset: str, mysql_migrated: str, make: Making) -> None:
    with mysql_database(mysql_migrated, "utf8mb4") as url:
        run_sql(url, f"ALTER TABLE retrysafe_outbox CONVERT TO CHARACTER SET {charset}")
        is_refused(make(url), "Columns of retrysafe_outbox have a character set other than utf8mb4")


@pytest.mark.parametrize("charset", ["latin1", "utf8"])  # utf8: what drivers call utf8mb3
async def test_a_mysql_connection_that_is_not_utf8mb4_is_refused(
    charset: str, mysql_migrated: str, make: Making
) -> None:
    import asyncmy
    from sqlalchemy import create_engine

    boundary = make(mysql_migrated, effects="transactional")
    match = f"encoding {charset},.*utf8mb4"
    with boundary.claim("checked already"):
        pass
    with closing(mysql_connection(mysql_migrated, charset=charset)) as tx:
        is_refused(boundary, match, tx=tx)
    where = {"host": tx.host, "port": tx.port, "user": "retrysafe", "database": tx.db.decode()}
    connection = await asyncmy.connect(**where, charset=charset)
    await ais_refused(boundary, match, tx=connection)
    connection.close()
    engine = create_engine(f"{driven(mysql_migrated, 'pymysql')}?charset={charset}")
    with engine.connect() as joined:
        is_refused(boundary, match, tx=joined)
    is_refused(make(engine), f"character sets {charset}")
    engine.dispose()
    await boundary.aclose()


# ---------------------------------------------------------------- SQLite


@pytest.mark.parametrize("encoding", ["UTF-16le", "UTF-16be"])
def test_a_sqlite_file_in_utf16_takes_every_character(encoding: str, tmp_path: Path, make: Making) -> None:
    path = tmp_path / "wide.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA encoding = '{encoding}'")
        connection.execute("CREATE TABLE theirs (a TEXT)")
    url = f"sqlite:///{path}"
    holds_every_character(make(url), url)
    holds_every_character(make(url, effects="transactional"), url)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA encoding").fetchone() == (encoding,)
