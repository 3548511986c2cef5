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

from retrysafe import Boundary, Claim
from retrysafe.connect import connect
from tests.django.aliases import add_alias, blocking_allowed, remove_alias


@dataclass
class Shop:
    """One database with a table of goods, one colour, one client library.

    ``store`` is what Boundary takes, ``begin`` opens a transaction as a user of that library would,
    ``execute`` performs a statement in it.
    """

    sync: bool
    store: Any
    begin: Callable[[], Any]
    execute: Callable[[Any, str], Any]
    goods: str
    path: str | None
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
        """What is committed, seen from a connection of its own."""
        sql = f"SELECT value FROM {self.goods} ORDER BY value"
        if self.path is not None:
            with closing(sqlite3.connect(self.path)) as connection:
                return [row[0] for row in connection.execute(sql)]
        import psycopg

        with psycopg.connect(os.environ["RETRYSAFE_TEST_POSTGRESQL"]) as connection:
            return [row[0] for row in connection.execute(sql.encode())]

    def state(self, boundary: Boundary) -> list[str]:
        """The states of the boundary's committed records."""
        sql = f"SELECT state FROM retrysafe_records WHERE boundary = '{boundary.name}'"
        if self.path is not None:
            with closing(sqlite3.connect(self.path)) as connection:
                return [row[0] for row in connection.execute(sql)]
        import psycopg

        with psycopg.connect(os.environ["RETRYSAFE_TEST_POSTGRESQL"]) as connection:
            return [row[0] for row in connection.execute(sql.encode())]

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


def _plain(tx: Any, sql: str) -> Any:
    return tx.execute(sql)


def _text(tx: Any, sql: str) -> Any:
    import sqlalchemy

    return tx.execute(sqlalchemy.text(sql))


def sqlite3_shop(path: Path) -> Shop:
    file, goods = _sqlite(path)
    connection = sqlite3.connect(file)
    shop = Shop(True, f"sqlite:///{file}", lambda: connection, _plain, goods, file)
    shop.cleanups.append(connection.close)
    return shop


def sqlite3_async_shop(path: Path) -> Shop:
    shop = sqlite3_shop(path)
    shop.sync = False
    return shop


def _sqlalchemy(path: Path | None, *, orm: bool) -> Shop:
    import sqlalchemy
    from sqlalchemy.orm import sessionmaker

    if path is not None:
        file, goods = _sqlite(path)
        engine, cleanups = sqlalchemy.create_engine(f"sqlite:///{file}"), []
    else:
        file = None
        url, goods, drop = _postgresql()
        engine, cleanups = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:")), [drop]
    sessions = sessionmaker(engine)
    store, begin = (sessions, sessions.begin) if orm else (engine, engine.begin)
    return Shop(True, store, begin, _text, goods, file, cleanups=[engine.dispose, *cleanups])


def _sqlalchemy_async(path: Path | None, *, orm: bool, driver: str) -> Shop:
    from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

    if path is not None:
        file, goods = _sqlite(path)
        engine, cleanups = create_async_engine(f"sqlite+{driver}:///{file}"), []
    else:
        file = None
        url, goods, drop = _postgresql()
        engine, cleanups = create_async_engine(url.replace("postgresql:", f"postgresql+{driver}:")), [drop]
    sessions = async_sessionmaker(engine)
    store, begin = (sessions, sessions.begin) if orm else (engine, engine.begin)
    return Shop(False, store, begin, _text, goods, file, cleanups=[engine.dispose, *cleanups])


def _django(path: Path | None) -> Shop:
    """Sync claims in tests that run on a loop, which Django has to be told to allow."""
    if path is not None:
        file, goods = _sqlite(path)
        drop, alias = _nothing, add_alias("sqlite", NAME=file)
    else:
        file = None
        _, goods, drop = _postgresql()
        alias = add_alias("postgresql")
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

    return Shop(True, alias, begin, _cursor, goods, file, cleanups=[close, drop])


def _cursor(tx: Any, sql: str) -> None:
    with tx.cursor() as cursor:
        cursor.execute(sql)


def _nothing() -> None: ...


def psycopg_shop(path: Path) -> Shop:
    import psycopg

    url, goods, drop = _postgresql()
    return Shop(True, url, lambda: psycopg.connect(url), _plain, goods, None, cleanups=[drop])


def psycopg_async_shop(path: Path) -> Shop:
    import psycopg

    url, goods, drop = _postgresql()

    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        async with await psycopg.AsyncConnection.connect(url) as connection:
            yield connection

    return Shop(False, url, begin, _plain, goods, None, cleanups=[drop])


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

    return Shop(False, url.replace("postgresql:", "postgresql+asyncpg:"), begin, _plain, goods, None, cleanups=[drop])


SHOPS: dict[str, tuple[str | None, Callable[[Path], Shop]]] = {
    "sqlite3": (None, sqlite3_shop),
    "sqlite3 async": (None, sqlite3_async_shop),
    "SQLAlchemy Connection, SQLite": (None, lambda path: _sqlalchemy(path, orm=False)),
    "SQLAlchemy Session, SQLite": (None, lambda path: _sqlalchemy(path, orm=True)),
    "SQLAlchemy AsyncConnection, aiosqlite": (
        None,
        lambda path: _sqlalchemy_async(path, orm=False, driver="aiosqlite"),
    ),
    "SQLAlchemy AsyncSession, aiosqlite": (
        None,
        lambda path: _sqlalchemy_async(path, orm=True, driver="aiosqlite"),
    ),
    "Django, SQLite": (None, _django),
    "Django, psycopg": ("postgresql", lambda path: _django(None)),
    "psycopg": ("postgresql", psycopg_shop),
    "psycopg async": ("postgresql", psycopg_async_shop),
    "asyncpg": ("postgresql", asyncpg_shop),
    "SQLAlchemy Connection, psycopg": ("postgresql", lambda path: _sqlalchemy(None, orm=False)),
    "SQLAlchemy Session, psycopg": ("postgresql", lambda path: _sqlalchemy(None, orm=True)),
    "SQLAlchemy AsyncConnection, asyncpg": (
        "postgresql",
        lambda path: _sqlalchemy_async(None, orm=False, driver="asyncpg"),
    ),
    "SQLAlchemy AsyncSession, asyncpg": (
        "postgresql",
        lambda path: _sqlalchemy_async(None, orm=True, driver="asyncpg"),
    ),
    "SQLAlchemy AsyncSession, psycopg": (
        "postgresql",
        lambda path: _sqlalchemy_async(None, orm=True, driver="psycopg"),
    ),
}
"""Name → the service it needs, and how it is opened in a directory of its own."""
