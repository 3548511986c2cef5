"""asyncmy: connections of our own, the user's pool, and the caller's connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncmy
from asyncmy.cursors import Cursor
from asyncmy.errors import MySQLError

from retrysafe.backends.backend import hang_up
from retrysafe.backends.sql.drivers.base import AUTOCOMMIT, ain_turn, arguments, fail, not_connected, refuse_encoding
from retrysafe.backends.sql.drivers.deadline import PATIENCE
from retrysafe.backends.sql.drivers.own import AsyncOwn, is_quiet
from retrysafe.errors import ConfigurationError, StoreUnavailable
from retrysafe.protocol.requests import Query, Rows

CHECKOUT = 10.0
"""Seconds to wait for a connection of the user's pool before the claim fails."""

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

    def __init__(self, connection: Any) -> None:
        self.handle = connection
        self.execute = self

    async def __call__(self, request: Query, /) -> Rows:
        try:
            return await ain_turn(request, lambda query: perform(self.handle, query))
        except _Failures as error:
            fail(error)


def ajoin(connection: Any) -> InTransaction:
    """An executor on the caller's connection."""
    if connection.get_autocommit() and not connection.get_transaction_status():
        raise ConfigurationError(AUTOCOMMIT)
    refuse_encoding(connection)
    return InTransaction(connection)


class AsyncmyClient:
    """Connections of our own or of the user's pool, in autocommit mode while we use them."""

    def __init__(self, source: AsyncOwn[Any] | Pooled) -> None:
        self._source = source

    @classmethod
    def connect(cls, options: Mapping[str, Any]) -> AsyncmyClient:
        """A client with connections of its own, opened when they are needed."""
        return cls(AsyncOwn(Connecting(options)))

    @classmethod
    def on(cls, pool: Any) -> AsyncmyClient:
        """A client on the user's pool."""
        return cls(Pooled(pool))

    async def __call__(self, request: Query, /) -> Rows:
        async with self._source.lent() as connection:
            try:
                return await ain_turn(request, lambda query: perform(connection, query))
            except _Failures as error:
                fail(error, alone=True)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[InTransaction]:
        """Lend a connection for one transaction."""
        async with self._source.lent(transaction=True) as connection:
            try:
                yield InTransaction(connection)
            finally:
                await _end(connection)

    async def aclose(self) -> None:
        """Close the connections that are ours."""
        await self._source.aclose()

    def abandon(self) -> None:
        """Hang up without the loop, which is closed."""
        self._source.abandon()


class Connecting:
    """How the keeper of our own connections opens and closes them."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options

    async def connect(self) -> Any:
        try:
            async with asyncio.timeout(DEADLINE):
                return await asyncmy.connect(**self._options, autocommit=True)
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


class Pooled:
    """The connections of a pool that the user gave us."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    @asynccontextmanager
    async def lent(self, *, transaction: bool = False) -> AsyncIterator[Any]:
        """Lend a connection, and give it back in the mode it had."""
        try:
            async with asyncio.timeout(CHECKOUT):
                connection = await self._pool.acquire()
        except _Failures as error:
            raise StoreUnavailable(str(error) or "The pool lent no connection in time.", unsent=True) from error
        before = connection.get_autocommit()
        try:
            if not before and not transaction:
                await _set_autocommit(connection, True)
            yield connection
        finally:
            try:
                with suppress(StoreUnavailable):
                    if not before and connection.connected and connection.get_autocommit():
                        await _set_autocommit(connection, False)
            except BaseException:  # cancelled in between: nobody knows what mode it is in
                connection.close()
                raise
            finally:
                await self._pool.release(connection)

    async def aclose(self) -> None:
        """The pool is the user's to close."""

    def abandon(self) -> None:
        """So it is without a loop."""


async def _set_autocommit(connection: Any, on: bool) -> None:
    try:
        async with asyncio.timeout(DEADLINE):
            await connection.autocommit(on)
    except (TimeoutError, *_Failures) as error:
        connection.close()
        raise StoreUnavailable(str(error) or f"no answer within {DEADLINE:g} s") from error


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
