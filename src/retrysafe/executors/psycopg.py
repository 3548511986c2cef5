"""psycopg 3, sync and async: pools of our own, the user's pools, and the caller's connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import psycopg
import psycopg_pool
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus

from retrysafe.errors import ConfigurationError, StoreUnavailable
from retrysafe.executors.sql import AUTOCOMMIT, ain_turn, arguments, fail, in_turn
from retrysafe.ports import Query, Rows

CHECKOUT = 10.0
"""Seconds to wait for a connection of the pool before the claim fails."""

DEADLINE = 10.0
"""Seconds after which a server that does not answer counts as gone."""

_NoConnection = (psycopg_pool.PoolTimeout, psycopg_pool.PoolClosed)
_SETTINGS = {
    "connect_timeout": 10,
    "tcp_user_timeout": round(DEADLINE * 1000),
    "keepalives_idle": 10,
    "keepalives_interval": 3,
    "keepalives_count": 3,
}


def perform(connection: psycopg.Connection[Any], query: Query) -> Rows:
    """Perform one statement."""
    sql, args = arguments(query, "%s")
    cursor = connection.execute(sql.encode(), args)
    return Rows(cursor.fetchall() if _has_rows(cursor) else [], cursor.rowcount)


async def aperform(connection: psycopg.AsyncConnection[Any], query: Query) -> Rows:
    """Perform one statement."""
    sql, args = arguments(query, "%s")
    cursor = await connection.execute(sql.encode(), args)
    return Rows(await cursor.fetchall() if _has_rows(cursor) else [], cursor.rowcount)


def _has_rows(cursor: psycopg.Cursor[Any] | psycopg.AsyncCursor[Any]) -> bool:
    """Whether the statement answers with rows; ``description`` would build an object for every column."""
    return cursor.pgresult is not None and cursor.pgresult.nfields > 0


class InTransaction:
    """An executor on one connection, inside a transaction."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.handle = connection
        self.execute = self

    def __call__(self, request: Query, /) -> Rows:
        try:
            return in_turn(request, lambda query: perform(self.handle, query))
        except psycopg.Error as error:
            fail(error)


class AsyncInTransaction:
    """The same for async code."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self.handle = connection
        self.execute = self

    async def __call__(self, request: Query, /) -> Rows:
        try:
            return await ain_turn(request, lambda query: aperform(self.handle, query))
        except psycopg.Error as error:
            fail(error)


def join(connection: psycopg.Connection[Any]) -> InTransaction:
    """An executor on the caller's connection."""
    _refuse_autocommit(connection)
    return InTransaction(connection)


def ajoin(connection: psycopg.AsyncConnection[Any]) -> AsyncInTransaction:
    """An executor on the caller's connection."""
    _refuse_autocommit(connection)
    return AsyncInTransaction(connection)


def _refuse_autocommit(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    if connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE:
        raise ConfigurationError(AUTOCOMMIT)


class PsycopgClient:
    """A pool of connections, in autocommit mode while we use them."""

    def __init__(self, pool: psycopg_pool.ConnectionPool[Any], *, owned: bool = False) -> None:
        self._pool = pool
        self._owned = owned

    @classmethod
    def connect(cls, url: str) -> PsycopgClient:
        """A client with a pool of its own; connections are opened when they are needed."""
        pool = psycopg_pool.ConnectionPool(
            url, min_size=0, max_size=10, timeout=CHECKOUT, kwargs=_settings(url), open=True
        )
        return cls(pool, owned=True)

    def __call__(self, request: Query, /) -> Rows:
        with self._lent() as connection:
            try:
                return in_turn(request, lambda query: perform(connection, query))
            except psycopg.Error as error:
                fail(error, alone=True)

    @contextmanager
    def transaction(self) -> Iterator[InTransaction]:
        """Lend a connection for one transaction."""
        with self._lent() as connection:
            try:
                yield InTransaction(connection)
            finally:
                _end(connection)

    @contextmanager
    def _lent(self) -> Iterator[psycopg.Connection[Any]]:
        try:
            connection = self._pool.getconn()
        except _NoConnection as error:
            raise StoreUnavailable(str(error), unsent=True) from error
        before = connection.autocommit
        try:
            if not before:
                connection.autocommit = True
            yield connection
        finally:
            if not before and not connection.closed:
                connection.autocommit = before
            self._pool.putconn(connection)

    def close(self) -> None:
        """Close the pool if it is ours."""
        if self._owned:
            self._pool.close()


class AsyncPsycopgClient:
    """The same for async code; the pool belongs to one event loop."""

    def __init__(self, pool: psycopg_pool.AsyncConnectionPool[Any], *, owned: bool = False) -> None:
        self._pool = pool
        self._owned = owned

    @classmethod
    def connect(cls, url: str) -> AsyncPsycopgClient:
        """A client with a pool of its own; connections are opened when they are needed."""
        pool = psycopg_pool.AsyncConnectionPool(
            url, min_size=0, max_size=10, timeout=CHECKOUT, kwargs=_settings(url), open=False
        )
        return cls(pool, owned=True)

    async def __call__(self, request: Query, /) -> Rows:
        async with self._lent() as connection:
            try:
                async with asyncio.timeout(DEADLINE):
                    return await ain_turn(request, lambda query: aperform(connection, query))
            except TimeoutError as error:
                await connection.close()
                raise StoreUnavailable(f"no answer within {DEADLINE:g} s") from error
            except psycopg.Error as error:
                fail(error, alone=True)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncInTransaction]:
        """Lend a connection for one transaction."""
        async with self._lent() as connection:
            try:
                yield AsyncInTransaction(connection)
            finally:
                await _aend(connection)

    @asynccontextmanager
    async def _lent(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        if self._owned and self._pool.closed:
            await self._pool.open()
        try:
            connection = await self._pool.getconn()
        except _NoConnection as error:
            raise StoreUnavailable(str(error), unsent=True) from error
        before = connection.autocommit
        try:
            if not before:
                await connection.set_autocommit(True)
            yield connection
        finally:
            if not before and not connection.closed:
                await connection.set_autocommit(before)
            await self._pool.putconn(connection)

    async def aclose(self) -> None:
        """Close the pool if it is ours."""
        if self._owned:
            await self._pool.close()


def _settings(url: str) -> dict[str, Any]:
    """Settings of our own connections; what the URL says goes first."""
    given = conninfo_to_dict(url)
    return {"autocommit": True, **{name: value for name, value in _SETTINGS.items() if name not in given}}


def _end(connection: psycopg.Connection[Any]) -> None:
    if connection.info.transaction_status != TransactionStatus.IDLE:
        try:
            connection.rollback()
        except psycopg.Error:
            connection.close()


async def _aend(connection: psycopg.AsyncConnection[Any]) -> None:
    if connection.info.transaction_status != TransactionStatus.IDLE:
        try:
            await connection.rollback()
        except psycopg.Error:
            await connection.close()
