"""Shops: business tables beside retrysafe's, reached through every kind of store= and tx=."""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from retrysafe import Boundary, Claim
from retrysafe.backends.registry import connect
from tests.django.aliases import add_alias, blocking_allowed, remove_alias
from tests.stores.ageing import mysql_connection
from tests.stores.harnesses.sql import MysqlDialect
from tests.versions import and_on_other_versions


@dataclass
class Shop:
    """One database with a table of goods, one colour, one client library.

    ``store`` is what Boundary takes, ``begin`` opens a transaction as a user of that library would,
    ``execute`` performs a statement in it, ``look`` reads what is committed.
    """

    sync: bool
    store: Any
    begin: Callable[[], Any]
    execute: Callable[[Any, str], Any]
    goods: str
    look: Callable[[str], list[str]]
    boundaries: list[Boundary] = field(default_factory=list)
    cleanups: list[Callable[[], Any]] = field(default_factory=list)

    def boundary(self, **terms: Any) -> Boundary:
        made = Boundary(terms.pop("name", f"shop-{secrets.token_hex(8)}"), store=self.store, **terms)
        self.boundaries.append(made)
        return made

    @asynccontextmanager
    async def entered(self, claim: Claim) -> AsyncIterator[Claim]:
        """Enter a claim in the shop's colour."""
        if self.sync:
            with claim:
                yield claim
        else:
            async with claim:
                yield claim

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """The user's own transaction: committed at the end, rolled back on an error."""
        manager = self.begin()
        if hasattr(manager, "__aenter__"):
            async with manager as tx:
                yield tx
        else:
            with manager as tx:
                yield tx

    async def insert(self, tx: Any, value: str) -> None:
        answer = self.execute(tx, f"INSERT INTO {self.goods} VALUES ('{value}')")
        if hasattr(answer, "__await__"):
            await answer

    def rows(self) -> list[str]:
        """Read the committed rows, by a connection of its own."""
        return self.look(f"SELECT value FROM {self.goods} ORDER BY value")

    def state(self, boundary: Boundary) -> list[str]:
        """The states of the boundary's committed records."""
        return self.look(f"SELECT state FROM retrysafe_records WHERE boundary = '{boundary.name}'")

    async def close(self) -> None:
        for boundary in self.boundaries:
            await boundary.aclose()
        for cleanup in self.cleanups:
            answer = cleanup()
            if hasattr(answer, "__await__"):
                await answer


def _sqlite(path: Path) -> tuple[str, str]:
    file, goods = str(path / "shop.db"), "goods"
    connect(f"sqlite:///{file}")  # makes retrysafe's tables
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(f"CREATE TABLE {goods} (value TEXT PRIMARY KEY)")
    return file, goods


def _postgresql() -> tuple[str, str, Callable[[], None]]:
    import psycopg

    url, goods = os.environ["RETRYSAFE_TEST_POSTGRESQL"], f"goods_{secrets.token_hex(6)}"
    connect(url).migrate()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {goods} (value text PRIMARY KEY)".encode())

    def drop() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"DROP TABLE {goods}".encode())

    return url, goods, drop


def _mysql() -> tuple[str, str, Callable[[], None]]:
    url, goods = os.environ["RETRYSAFE_TEST_MYSQL"], f"goods_{secrets.token_hex(6)}"
    connect(url).migrate()
    with closing(mysql_connection(url, autocommit=True)) as connection:
        connection.query(f"CREATE TABLE {goods} (value VARCHAR(255) PRIMARY KEY)")

    def drop() -> None:
        with closing(mysql_connection(url, autocommit=True)) as connection:
            connection.query(f"DROP TABLE {goods}")

    return url, goods, drop


def _look_sqlite(file: str) -> Callable[[str], list[str]]:
    def look(sql: str) -> list[str]:
        with closing(sqlite3.connect(file)) as connection:
            return [row[0] for row in connection.execute(sql)]

    return look


def _look_postgresql(sql: str) -> list[str]:
    import psycopg

    with psycopg.connect(os.environ["RETRYSAFE_TEST_POSTGRESQL"]) as connection:
        return [row[0] for row in connection.execute(sql.encode())]


def _look_mysql(sql: str) -> list[str]:
    with closing(mysql_connection(os.environ["RETRYSAFE_TEST_MYSQL"])) as connection, connection.cursor() as cursor:
        cursor.execute(sql)
        return [row[0] for row in cursor.fetchall()]


def _query(tx: Any, sql: str) -> Any:
    return tx.query(sql)


def _plain(tx: Any, sql: str) -> Any:
    return tx.execute(sql)


def _text(tx: Any, sql: str) -> Any:
    import sqlalchemy

    return tx.execute(sqlalchemy.text(sql))


def sqlite3_shop(path: Path) -> Shop:
    file, goods = _sqlite(path)
    connection = sqlite3.connect(file)
    shop = Shop(True, f"sqlite:///{file}", lambda: connection, _plain, goods, _look_sqlite(file))
    shop.cleanups.append(connection.close)
    return shop


def sqlite3_async_shop(path: Path) -> Shop:
    shop = sqlite3_shop(path)
    shop.sync = False
    return shop


def _database(path: Path | None, scheme: str) -> tuple[str, str, Callable[[str], list[str]], list[Callable[[], Any]]]:
    """A database with goods, by the scheme of SQLAlchemy's URL: that URL, the table, a look, the cleanups."""
    if path is not None:
        file, goods = _sqlite(path)
        return f"{scheme}:///{file}", goods, _look_sqlite(file), []
    kind = "postgresql" if scheme.startswith("postgresql") else "mysql"
    url, goods, drop = _postgresql() if kind == "postgresql" else _mysql()
    return (
        url.replace(f"{kind}:", f"{scheme}:"),
        goods,
        _look_postgresql if kind == "postgresql" else _look_mysql,
        [drop],
    )


def _sqlalchemy(path: Path | None, scheme: str, *, orm: bool) -> Shop:
    import sqlalchemy
    from sqlalchemy.orm import sessionmaker

    url, goods, look, cleanups = _database(path, scheme)
    engine = sqlalchemy.create_engine(url)
    sessions = sessionmaker(engine)
    store, begin = (sessions, sessions.begin) if orm else (engine, engine.begin)
    return Shop(True, store, begin, _text, goods, look, cleanups=[engine.dispose, *cleanups])


def _sqlalchemy_async(path: Path | None, scheme: str, *, orm: bool) -> Shop:
    from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

    url, goods, look, cleanups = _database(path, scheme)
    engine = create_async_engine(url)
    sessions = async_sessionmaker(engine)
    store, begin = (sessions, sessions.begin) if orm else (engine, engine.begin)
    return Shop(False, store, begin, _text, goods, look, cleanups=[engine.dispose, *cleanups])


def _django(path: Path | None, kind: str) -> Shop:
    """Sync claims in tests that run on a loop, which Django has to be told to allow."""
    url, goods, look, cleanups = _database(path, kind)
    if path is not None:
        connect(url).migrate()  # a file that a boundary made has the tables of records alone; Django migrates all
    alias = add_alias(kind, **({} if path is None else {"NAME": str(path / "shop.db")}))
    allowing = blocking_allowed()
    allowing.__enter__()

    @contextmanager
    def begin() -> Iterator[Any]:
        from django.db import connections, transaction

        with transaction.atomic(using=alias):
            yield connections[alias]

    def close() -> None:
        remove_alias(alias)
        allowing.__exit__(None, None, None)

    return Shop(True, alias, begin, _cursor, goods, look, cleanups=[close, *cleanups])


def _cursor(tx: Any, sql: str) -> None:
    with tx.cursor() as cursor:
        cursor.execute(sql)


def psycopg_shop(path: Path) -> Shop:
    import psycopg

    url, goods, drop = _postgresql()
    return Shop(True, url, lambda: psycopg.connect(url), _plain, goods, _look_postgresql, cleanups=[drop])


def psycopg_async_shop(path: Path) -> Shop:
    import psycopg

    url, goods, drop = _postgresql()

    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        async with await psycopg.AsyncConnection.connect(url) as connection:
            yield connection

    return Shop(False, url, begin, _plain, goods, _look_postgresql, cleanups=[drop])


def asyncpg_shop(path: Path) -> Shop:
    import asyncpg

    url, goods, drop = _postgresql()

    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        connection = await asyncpg.connect(url)
        try:
            async with connection.transaction():
                yield connection
        finally:
            await connection.close()

    return Shop(
        False,
        url.replace("postgresql:", "postgresql+asyncpg:"),
        begin,
        _plain,
        goods,
        _look_postgresql,
        cleanups=[drop],
    )


def pymysql_shop(path: Path) -> Shop:
    url, goods, drop = _mysql()

    @contextmanager
    def begin() -> Iterator[Any]:
        with closing(mysql_connection(url)) as connection:
            yield connection
            connection.commit()

    return Shop(True, url, begin, _query, goods, _look_mysql, cleanups=[drop])


def pymysql_as_mysql_shop(path: Path) -> Shop:
    """MySQL's own statements, on MariaDB, which knows them all."""
    shop = pymysql_shop(path)
    backend = connect(shop.store)
    before, backend.store = backend.store, MysqlDialect()
    shop.cleanups.append(lambda: setattr(backend, "store", before))
    return shop


def asyncmy_shop(path: Path) -> Shop:
    import asyncmy

    url, goods, drop = _mysql()
    parts = urlsplit(url)

    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        connection = await asyncmy.connect(
            host=parts.hostname, port=parts.port, user=parts.username, database=parts.path[1:]
        )
        try:
            yield connection
            await connection.commit()
        finally:
            await connection.rollback()  # a server ends what was merely closed a moment later
            await connection.ensure_closed()

    return Shop(False, url, begin, _query, goods, _look_mysql, cleanups=[drop])


_SHOPS: dict[str, tuple[str | None, Callable[[Path], Shop]]] = {
    "sqlite3": (None, sqlite3_shop),
    "sqlite3 async": (None, sqlite3_async_shop),
    "SQLAlchemy Connection, SQLite": (None, lambda path: _sqlalchemy(path, "sqlite", orm=False)),
    "SQLAlchemy Session, SQLite": (None, lambda path: _sqlalchemy(path, "sqlite", orm=True)),
    "SQLAlchemy AsyncConnection, aiosqlite": (
        None,
        lambda path: _sqlalchemy_async(path, "sqlite+aiosqlite", orm=False),
    ),
    "SQLAlchemy AsyncSession, aiosqlite": (
        None,
        lambda path: _sqlalchemy_async(path, "sqlite+aiosqlite", orm=True),
    ),
    "Django, SQLite": (None, lambda path: _django(path, "sqlite")),
    "Django, psycopg": ("postgresql", lambda path: _django(None, "postgresql")),
    "Django, MySQL": ("mysql", lambda path: _django(None, "mysql")),
    "psycopg": ("postgresql", psycopg_shop),
    "psycopg async": ("postgresql", psycopg_async_shop),
    "asyncpg": ("postgresql", asyncpg_shop),
    "SQLAlchemy Connection, psycopg": ("postgresql", lambda path: _sqlalchemy(None, "postgresql+psycopg", orm=False)),
    "SQLAlchemy Session, psycopg": ("postgresql", lambda path: _sqlalchemy(None, "postgresql+psycopg", orm=True)),
    "SQLAlchemy AsyncConnection, asyncpg": (
        "postgresql",
        lambda path: _sqlalchemy_async(None, "postgresql+asyncpg", orm=False),
    ),
    "SQLAlchemy AsyncSession, asyncpg": (
        "postgresql",
        lambda path: _sqlalchemy_async(None, "postgresql+asyncpg", orm=True),
    ),
    "SQLAlchemy AsyncSession, psycopg": (
        "postgresql",
        lambda path: _sqlalchemy_async(None, "postgresql+psycopg", orm=True),
    ),
    "PyMySQL": ("mysql", pymysql_shop),
    "PyMySQL, as MySQL reads it": ("mysql", pymysql_as_mysql_shop),
    "asyncmy": ("mysql", asyncmy_shop),
    "SQLAlchemy Connection, PyMySQL": ("mysql", lambda path: _sqlalchemy(None, "mysql+pymysql", orm=False)),
    "SQLAlchemy Session, PyMySQL": ("mysql", lambda path: _sqlalchemy(None, "mariadb+pymysql", orm=True)),
    "SQLAlchemy AsyncConnection, asyncmy": (
        "mysql",
        lambda path: _sqlalchemy_async(None, "mariadb+asyncmy", orm=False),
    ),
    "SQLAlchemy AsyncSession, asyncmy": ("mysql", lambda path: _sqlalchemy_async(None, "mysql+asyncmy", orm=True)),
}
SHOPS = and_on_other_versions(_SHOPS, {"postgresql": ("psycopg", "asyncpg"), "mysql": ("PyMySQL", "asyncmy")})
"""Name → the service it needs, and how it is opened in a directory of its own."""
