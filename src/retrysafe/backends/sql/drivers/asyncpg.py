"""asyncpg: a pool of our own, the user's pool, and the caller's connection."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg

from retrysafe.backends.sql.drivers.base import (
    AUTOCOMMIT,
    DIRECT_STATUS,
    ain_turn,
    arguments,
    fail,
    is_direct,
    not_connected,
    question,
    refuse_encoding,
    status_question,
    unheard,
    unreplicated,
)
from retrysafe.errors import ConfigurationError
from retrysafe.protocol.requests import Copy, Query, Rows

CHECKOUT = 10.0
"""Seconds to wait for a connection of the pool before the claim fails."""

DEADLINE = 10.0
"""Seconds after which a server that does not answer counts as gone."""

_Failures = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError)


async def perform(connection: Any, query: Query) -> Rows:
    """Perform one statement."""
    sql, args = arguments(query, "$")
    await _refuse_names_behind_pooler(connection)
    if query.control is None and ("RETURNING" in sql or sql.startswith("SELECT") or not query.writes):
        rows = [tuple(row) for row in await connection.fetch(sql, *args, timeout=DEADLINE)]
        return Rows(rows, len(rows))
    status: str = await connection.execute(sql, *args, timeout=DEADLINE)
    count = status.rsplit(" ", 1)[-1]
    return Rows([], int(count) if count.isdigit() else 0)


_judged: weakref.WeakSet[Any] = weakref.WeakSet()


async def _refuse_names_behind_pooler(connection: Any) -> None:
    """Refuse a connection of the user's that goes on preparing by name where a pooler does not follow. Asked once."""
    real = getattr(connection, "_con", connection)  # a pool lends each in a new wrapper
    if real not in _judged:
        is_direct(await connection.fetchrow(question(connection.get_server_pid()), timeout=DEADLINE))
        _judged.add(real)


async def transfer(connection: Any, copy: Copy) -> Rows:
    """Copy rows to the spool or back. The server ends it if it takes too long, see `RotatingStore.enter`."""
    if copy.chosen is not None:
        status: str = await connection.copy_from_query(copy.chosen, output=copy.spool, format="binary")
    else:
        schema, name, _ = copy.partition
        status = await connection.copy_to_table(
            name, schema_name=schema, source=copy.spool, format="binary", freeze=True
        )
    return Rows([], int(status.rsplit(" ", 1)[-1]))


_ONE_AT_A_TIME = (
    "A claim was made while another statement was running on the same asyncpg connection, which performs one at a "
    "time: await the other one first, or use a connection each."
)


class InTransaction:
    """An executor on one connection, inside a transaction."""

    def __init__(self, connection: Any) -> None:
        self.handle = connection
        self.execute = self

    async def __call__(self, request: Query | Copy, /) -> Rows:
        try:
            if isinstance(request, Copy):
                return await transfer(self.handle, request)
            return await ain_turn(request, lambda query: perform(self.handle, query))
        except _Failures as error:
            if isinstance(error, asyncpg.InterfaceError) and "another operation" in str(error):
                raise ConfigurationError(_ONE_AT_A_TIME) from error
            fail(error)


class InOwnTransaction(InTransaction):
    """A transaction on a connection of ours, controlled by asyncpg's objects, so that users can nest theirs."""

    _outer: Any = None
    _savepoint: Any = None

    async def __call__(self, request: Query | Copy, /) -> Rows:
        if isinstance(request, Copy) or request.control is None:
            return await super().__call__(request)
        try:
            async with asyncio.timeout(DEADLINE):
                await self._control(request.control)
        except _Failures as error:
            _hang_up_on_silence(self.handle, error)
            fail(error)
        return Rows([], 0)

    async def _control(self, control: str) -> None:
        match control:
            case "begin":
                self._outer = self.handle.transaction()
                await self._outer.start()
            case "savepoint":
                self._savepoint = self.handle.transaction()
                await self._savepoint.start()
            case "rollback_to_savepoint":
                await self._savepoint.rollback()
            case "commit":
                outer, self._outer = self._outer, None
                await outer.commit()
            case _:
                outer, self._outer = self._outer, None
                await outer.rollback()

    async def end(self) -> None:
        """Leave no transaction open. A connection that broke has been taken back by its pool already."""
        with suppress(*_Failures):
            if self._outer is not None or self.handle.is_in_transaction():
                self.handle.terminate()


def ajoin(connection: Any) -> InTransaction:
    """An executor on the caller's connection."""
    if not connection.is_in_transaction():
        raise ConfigurationError(AUTOCOMMIT)
    refuse_encoding(connection)
    return InTransaction(connection)


class AsyncpgClient:
    """A pool of connections; a pool of our own is opened at first use, on the loop that uses it."""

    def __init__(self, pool: Any, url: str | None = None) -> None:
        self._pool = pool
        self._url = url
        self._cache: dict[str, int] = {}
        self.heard = unheard
        self._opening = asyncio.Lock()

    @classmethod
    def connect(cls, url: str) -> AsyncpgClient:
        """A client with a pool of its own."""
        return cls(None, url)

    async def __call__(self, request: Query, /) -> Rows:
        async with self._lent() as connection:
            try:
                return await ain_turn(request, lambda query: perform(connection, query))
            except _Failures as error:
                _hang_up_on_silence(connection, error)
                fail(error, alone=True)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[InOwnTransaction]:
        """Lend a connection for one transaction."""
        async with self._lent() as connection:
            opened = InOwnTransaction(connection)
            try:
                yield opened
            finally:
                await opened.end()

    @asynccontextmanager
    async def _lent(self) -> AsyncIterator[Any]:
        try:
            pool = await self._opened()
            connection = await pool.acquire(timeout=CHECKOUT)
        except _Failures as error:
            raise not_connected(error) from error
        try:
            with suppress(*_Failures):  # of a connection that breaks just now, which its first statement will tell
                connection.add_log_listener(self._hear)
            yield connection
        finally:
            with suppress(*_Failures):
                connection.remove_log_listener(self._hear)
            # A connection that broke has been taken back by its pool already, which then refuses to take it again.
            with suppress(asyncpg.InternalClientError, *_Failures):
                await pool.release(connection)

    def _hear(self, connection: Any, notice: Any) -> None:
        finding = unreplicated(notice.server_source_function, notice.message)
        if finding is not None:
            self.heard(finding)

    async def _opened(self) -> Any:
        if self._pool is None:
            async with self._opening:
                if self._pool is None:
                    self._pool = await asyncpg.create_pool(
                        self._url,
                        min_size=0,
                        max_size=10,
                        timeout=CHECKOUT,
                        reset=_no_reset,
                        connect=self._connected,
                    )
        return self._pool

    async def _connected(self, *args: Any, **settings: Any) -> Any:
        """A connection that caches statements, by name, unless there is a pooler: asyncpg has to know beforehand."""
        while True:
            connection = await asyncpg.connect(*args, **settings | self._cache)
            _judged.add(connection)
            if self._cache:
                return connection
            try:
                status = await connection.execute(status_question(connection.get_server_pid()), timeout=DEADLINE)
                if status == DIRECT_STATUS:
                    return connection
                await connection.close(timeout=DEADLINE)
            except BaseException:
                connection.terminate()
                raise
            self._cache = {"statement_cache_size": 0}

    async def aclose(self) -> None:
        """Close the pool if it is ours."""
        if self._url is not None and self._pool is not None:
            await self._pool.close()
            self._pool = None

    def abandon(self) -> None:
        """Hang up without the loop, which is closed."""
        if self._url is not None and self._pool is not None:
            with suppress(RuntimeError, *_Failures):
                self._pool.terminate()
            self._pool = None


def _hang_up_on_silence(connection: Any, error: BaseException) -> None:
    """The pool would wait for a silent server to confirm that the statement was cancelled."""
    if isinstance(error, TimeoutError):
        connection.terminate()


async def _no_reset(connection: Any) -> None:
    """Nothing of a session is ever changed by us, so nothing needs the extra round trip of a reset."""
