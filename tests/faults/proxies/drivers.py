"""Every client library through the proxy: its boundary, a caller's own transaction, and one statement in it.

Whatever the library offers against a server that falls silent is set short, `SILENCE` seconds: by its URL where it has
an option (Redis: ``socket_timeout``, DynamoDB: ``timeout``), by the engine's ``connect_args`` where it is the user's;
the deadline of our own connections is a constant, which the tests patch.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tests.faults.helpers import driven, plain
from tests.faults.proxies.framing import Framing
from tests.faults.proxies.framing_http import HttpFraming
from tests.faults.proxies.framing_mysql import MysqlFraming
from tests.faults.proxies.framing_postgresql import PostgresqlFraming
from tests.faults.proxies.framing_redis import RedisFraming

SILENCE = 0.25
"""Seconds after which a server that does not answer counts as gone."""

FRAMINGS: dict[str, Callable[[], Framing]] = {
    "postgresql": PostgresqlFraming,
    "mysql": MysqlFraming,
    "redis": RedisFraming,
    "dynamodb": HttpFraming,
}


@dataclass
class Driver:
    """One client library.

    ``open`` makes what ``Boundary(store=…)`` takes out of a URL that leads through the proxy, ``close`` ends it;
    ``begin`` is a caller's transaction in the library's words, ``insert`` one statement in it, both with deadlines of
    the caller's own.
    """

    name: str
    store: str
    sync: bool
    open: Callable[[str], Any] = lambda url: url
    close: Callable[[Any], Any] = lambda store: None
    begin: Callable[[Any, str], Any] | None = None
    insert: Callable[[Any, str], Any] | None = None
    greets: bool = True
    """True if establishing a connection takes messages of its own."""


def through(url: str, port: int) -> str:
    """The URL with the proxy in its server's place."""
    if url.startswith("dynamodb"):
        table = urlsplit(url).netloc
        return f"dynamodb://{table}?region=us-east-1&endpoint=http://127.0.0.1:{port}&timeout={SILENCE * 1000:.0f}ms"
    moved = url.replace(f":{urlsplit(url).port}", f":{port}", 1)
    if url.startswith("redis"):
        return f"{moved}?socket_timeout={SILENCE}&socket_connect_timeout={SILENCE}"
    return moved


def server_of(url: str) -> tuple[str, int]:
    """Return the server's address."""
    parts = urlsplit(url.partition("endpoint=")[2] if url.startswith("dynamodb") else url)
    return parts.hostname or "127.0.0.1", parts.port or 0


# ---------------------------------------------------------------- PostgreSQL


def _psycopg_url(url: str) -> str:
    return plain(url)


@contextmanager
def _psycopg_begin(store: Any, url: str) -> Iterator[Any]:
    import psycopg

    from retrysafe.backends.sql.drivers import deadline

    connection = psycopg.connect(_psycopg_url(url))
    try:
        yield connection
        with deadline.timely(connection, SILENCE):
            connection.commit()
    finally:
        connection.close()


def _psycopg_insert(tx: Any, sql: str) -> None:
    from retrysafe.backends.sql.drivers import deadline

    with deadline.timely(tx, SILENCE):
        tx.execute(sql)


@asynccontextmanager
async def _apsycopg_begin(store: Any, url: str) -> AsyncIterator[Any]:
    import psycopg

    connection = await psycopg.AsyncConnection.connect(_psycopg_url(url))
    try:
        yield connection
        await _hung_up_late(connection, connection.commit())
    finally:
        await connection.close()


async def _apsycopg_insert(tx: Any, sql: str) -> None:
    await _hung_up_late(tx, tx.execute(sql))


async def _hung_up_late(connection: Any, work: Any) -> None:
    from retrysafe.backends.sql.drivers.psycopg import HangUpDeadline

    with HangUpDeadline(connection):  # its deadline is patched
        await work


@asynccontextmanager
async def _asyncpg_begin(store: Any, url: str) -> AsyncIterator[Any]:
    import asyncpg

    connection = await asyncpg.connect(plain(url), timeout=SILENCE, command_timeout=SILENCE)
    try:
        async with connection.transaction():
            yield connection
    finally:
        connection.terminate()


async def _asyncpg_insert(tx: Any, sql: str) -> None:
    await tx.execute(sql, timeout=SILENCE)


# ---------------------------------------------------------------- SQLAlchemy


def _engine(url: str) -> Any:
    """An engine that knows its server: what it asks it on its first connection, psycopg waits for without end."""
    from sqlalchemy import create_engine

    engine = create_engine(driven(url, "psycopg"))
    engine.connect().close()
    engine.dispose()
    return engine


@contextmanager
def _engine_begin(engine: Any, url: str) -> Iterator[Any]:
    from retrysafe.backends.sql.drivers import deadline

    with engine.connect() as connection:
        yield connection
        with deadline.timely(connection.connection.driver_connection, SILENCE):
            connection.commit()


def _engine_insert(tx: Any, sql: str) -> None:
    from retrysafe.backends.sql.drivers import deadline

    with deadline.timely(tx.connection.driver_connection, SILENCE):
        tx.exec_driver_sql(sql)


def _async_engine(url: str) -> Any:
    from sqlalchemy.ext.asyncio import create_async_engine

    return create_async_engine(driven(url, "asyncpg"), connect_args={"timeout": SILENCE})


@asynccontextmanager
async def _async_engine_begin(engine: Any, url: str) -> AsyncIterator[Any]:
    async with asyncio.timeout(SILENCE):
        connection = await engine.connect()
    try:
        yield connection
        async with asyncio.timeout(SILENCE):
            await connection.commit()
    finally:
        await connection.close()


async def _async_engine_insert(tx: Any, sql: str) -> None:
    async with asyncio.timeout(SILENCE):
        await tx.exec_driver_sql(sql)


# ---------------------------------------------------------------- MySQL


def _options(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    return {"host": parts.hostname, "port": parts.port, "user": parts.username, "database": parts.path[1:]}


@contextmanager
def _pymysql_begin(store: Any, url: str) -> Iterator[Any]:
    import pymysql

    from retrysafe.backends.sql.drivers import deadline

    connection = pymysql.connect(**_options(url), ssl_disabled=True, defer_connect=True)
    with deadline.timely(connection, SILENCE):
        connection.connect()
    try:
        yield connection
        with deadline.timely(connection, SILENCE):
            connection.commit()
    finally:
        if connection.open:
            connection._force_close()


def _pymysql_insert(tx: Any, sql: str) -> None:
    from retrysafe.backends.sql.drivers import deadline

    with deadline.timely(tx, SILENCE):
        tx.query(sql)


@asynccontextmanager
async def _asyncmy_begin(store: Any, url: str) -> AsyncIterator[Any]:
    import asyncmy

    async with asyncio.timeout(SILENCE):
        connection = await asyncmy.connect(**_options(url))
    try:
        yield connection
        async with asyncio.timeout(SILENCE):
            await connection.commit()
    finally:
        connection.close()


async def _asyncmy_insert(tx: Any, sql: str) -> None:
    try:
        async with asyncio.timeout(SILENCE):
            await tx.query(sql)
    except TimeoutError:
        tx.close()
        raise


DRIVERS: dict[str, Driver] = {
    one.name: one
    for one in (
        Driver("psycopg", "postgresql", True, _psycopg_url, begin=_psycopg_begin, insert=_psycopg_insert),
        Driver("psycopg async", "postgresql", False, _psycopg_url, begin=_apsycopg_begin, insert=_apsycopg_insert),
        Driver(
            "asyncpg",
            "postgresql",
            False,
            lambda url: driven(url, "asyncpg"),
            begin=_asyncpg_begin,
            insert=_asyncpg_insert,
        ),
        Driver(
            "SQLAlchemy, psycopg",
            "postgresql",
            True,
            _engine,
            lambda engine: engine.dispose(),
            begin=_engine_begin,
            insert=_engine_insert,
        ),
        Driver(
            "SQLAlchemy, asyncpg",
            "postgresql",
            False,
            _async_engine,
            lambda engine: engine.dispose(),
            begin=_async_engine_begin,
            insert=_async_engine_insert,
        ),
        Driver("PyMySQL", "mysql", True, begin=_pymysql_begin, insert=_pymysql_insert),
        Driver("asyncmy", "mysql", False, begin=_asyncmy_begin, insert=_asyncmy_insert),
        Driver("redis", "redis", True),
        Driver("redis async", "redis", False),
        Driver("boto3", "dynamodb", True, greets=False),
        Driver("aiobotocore", "dynamodb", False, greets=False),
    )
}
