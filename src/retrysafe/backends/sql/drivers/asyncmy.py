"""asyncmy: connections of our own, also made as the user's pool makes its, and the caller's connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import asyncmy
from asyncmy.cursors import Cursor
from asyncmy.errors import MySQLError

from retrysafe.backends.backend import hang_up
from retrysafe.backends.sql.drivers.base import AUTOCOMMIT, ain_turn, arguments, fail, not_connected, refuse_encoding
from retrysafe.backends.sql.drivers.deadline import PATIENCE
from retrysafe.backends.sql.drivers.own import AsyncLent, AsyncOwn, Size, is_quiet, size_of
from retrysafe.errors import ConfigurationError, StoreUnavailable
from retrysafe.protocol.requests import Query, Rows

DEADLINE = 10.0
"""Seconds after which a server that does not answer counts as gone."""

_Failures = (MySQLError, OSError, EOFError, RuntimeError)


async def perform(connection: Any, query: Query) -> Rows:
    """Perform one statement. A connection whose statement was cut off is closed: its answer would be the next one's."""
    sql, args = arguments(query, "%s")
    deadline = PATIENCE if query.patient else DEADLINE
    try:
        async with asyncio.timeout(deadline), connection.cursor(Cursor) as cursor:
            await cursor.execute(sql, tuple(args))
            rows = [tuple(row) for row in await cursor.fetchall()] if cursor.description else []
            return Rows(rows, cursor.rowcount)
    except TimeoutError as error:
        connection.close()
        raise StoreUnavailable(f"no answer within {deadline:g} s") from error
    except asyncio.CancelledError:
        connection.close()
        raise


class InTransaction:
    """An executor on one connection, inside a transaction."""

    def __init__(self, connection: Any, lent: AsyncLent[Any] | None = None) -> None:
        self.handle = connection
        self.execute = self
        self._lent = lent

    async def __call__(self, request: Query, /) -> Rows:
        try:
            return await ain_turn(request, lambda query: perform(self.handle, query))
        except _Failures as error:
            fail(error, passes=self._lent is not None and self._lent.passes_by_another(error))


def ajoin(connection: Any) -> InTransaction:
    """An executor on the caller's connection."""
    if connection.get_autocommit() and not connection.get_transaction_status():
        raise ConfigurationError(AUTOCOMMIT)
    refuse_encoding(connection)
    return InTransaction(connection)


class AsyncmyClient:
    """Connections of our own, in autocommit mode while no transaction is lent."""

    def __init__(self, options: Mapping[str, Any], size: Size | None = None) -> None:
        self._source = AsyncOwn(Connecting({**options, "autocommit": True}), size)

    @classmethod
    def beside(cls, pool: Any) -> AsyncmyClient:
        """A client whose connections are made as the user's pool makes its own."""
        return cls(pool._conn_kwargs, size_of("maxsize=", pool.maxsize))

    async def __call__(self, request: Query, /) -> Rows:
        lent = self._source.lent()
        async with lent as connection:
            try:
                return await ain_turn(request, lambda query: perform(connection, query))
            except _Failures as error:
                fail(error, alone=True, passes=lent.passes_by_another(error))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[InTransaction]:
        """Lend a connection for one transaction."""
        lent = self._source.lent()
        async with lent as connection:
            try:
                yield InTransaction(connection, lent)
            finally:
                await _end(connection)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._source.aclose()

    def abandon(self) -> None:
        """Hang up without the loop, which is closed."""
        self._source.abandon()


class Connecting:
    """Opens and closes our own connections for their keeper."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options

    async def connect(self) -> Any:
        try:
            async with asyncio.timeout(DEADLINE):
                return await asyncmy.connect(**self._options)
        except _Failures as error:
            raise not_connected(error) from error

    def is_idle(self, connection: Any) -> bool:
        idle = connection.connected and connection.get_autocommit() and not connection.get_transaction_status()
        return bool(idle) and not connection._stream_broken

    def is_usable(self, connection: Any) -> bool:
        return self.is_idle(connection) and is_quiet(_socket(connection))

    async def close(self, connection: Any) -> None:
        """Hang up; a goodbye to a server that is gone would have to be waited for."""
        connection.close()

    def drop(self, connection: Any) -> None:
        hang_up(connection._transport)


def _socket(connection: Any) -> int:
    number: int = connection._transport.get_extra_info("socket").fileno()
    return number


async def _end(connection: Any) -> None:
    """Roll back what is left open."""
    try:
        async with asyncio.timeout(DEADLINE):
            if connection.connected and connection.get_transaction_status():
                await connection.rollback()
    except _Failures:
        connection.close()
    except asyncio.CancelledError:
        connection.close()
        raise
