"""asyncmy: connections of our own, also made as the user's pool makes its, and the caller's connection."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Self

import asyncmy
from asyncmy.cursors import Cursor
from asyncmy.errors import MySQLError

from retrysafe.backends import identity
from retrysafe.backends.sql.drivers import deadline
from retrysafe.backends.sql.drivers.base import arguments
from retrysafe.backends.sql.drivers.pool import Size, is_quiet, size_of
from retrysafe.backends.sql.drivers.pooled import AsyncInTransaction, AsyncPooledDriver
from retrysafe.protocol.requests import Query, Rows


class AsyncmyDriver(AsyncPooledDriver[Any]):
    """asyncmy, for async code."""

    kind = "mysql"
    failures = (MySQLError, OSError, EOFError, RuntimeError)

    def __init__(self, options: Mapping[str, Any], size: Size | None = None) -> None:
        super().__init__(size)
        self._options = {**options, "autocommit": True}

    @classmethod
    def beside(cls, theirs: Any, /) -> Self:
        return cls(theirs._conn_kwargs, size_of("maxsize=", theirs.maxsize))

    async def open(self) -> Any:
        async with asyncio.timeout(deadline.DEADLINE):
            return await asyncmy.connect(**self._options)

    def is_idle(self, connection: Any, /) -> bool:
        is_busy = not connection.get_autocommit() or connection.get_transaction_status()
        return bool(connection.connected) and not is_busy and not connection._stream_broken

    def is_usable(self, connection: Any, /) -> bool:
        return self.is_idle(connection) and is_quiet(connection._transport.get_extra_info("socket").fileno())

    async def hang_up(self, connection: Any, /) -> None:
        """Close without a goodbye, which would have to be waited for."""
        connection.close()

    @staticmethod
    async def perform(connection: Any, query: Query, /) -> Rows:
        """A connection whose statement was cut off is closed: its answer would be the next one's."""
        sql, args = arguments(query, "%s")
        seconds = deadline.of(query)
        try:
            async with asyncio.timeout(seconds), connection.cursor(Cursor) as cursor:
                await cursor.execute(sql, tuple(args))
                rows = [tuple(row) for row in await cursor.fetchall()] if cursor.description else []
                return Rows(rows, cursor.rowcount)
        except TimeoutError as error:
            connection.close()
            raise TimeoutError(f"no answer within {seconds:g} s") from error
        except asyncio.CancelledError:
            connection.close()
            raise

    async def end(self, opened: AsyncInTransaction[Any], /) -> None:
        async with asyncio.timeout(deadline.DEADLINE):
            if opened.handle.connected and opened.handle.get_transaction_status():
                await opened.handle.rollback()

    @staticmethod
    def commits_alone(connection: Any, /) -> bool:
        return bool(connection.get_autocommit()) and not connection.get_transaction_status()

    @staticmethod
    def place_of(connection: Any, /) -> identity.Place | None:
        of = connection
        return identity.of_connection("mysql", of._host, of._port, of._db, of._user, of._unix_socket)
