"""asyncpg: connections of our own, also made as the user's pool makes its, and the caller's connection."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn, Self

import asyncpg

from retrysafe.backends import identity
from retrysafe.backends.sql.drivers import deadline
from retrysafe.backends.sql.drivers.base import (
    DIRECT_STATUS,
    ain_turn,
    arguments,
    fail,
    find_unreplicated,
    ignore_notice,
    lacks_pooler,
    not_connected,
    pooler_query,
    status_query,
)
from retrysafe.backends.sql.drivers.lane import QueryLanes
from retrysafe.backends.sql.drivers.pool import Size, size_of
from retrysafe.backends.sql.drivers.pooled import AsyncInTransaction, AsyncPooledDriver
from retrysafe.errors import ConfigurationError, StoreUnavailable
from retrysafe.protocol.requests import Copy, Query, Rows

_Failures = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)
"""The internal error of a connection that the server ended while it was idle, until it knows."""

_judged: weakref.WeakSet[Any] = weakref.WeakSet()
"""Connections of which it is known that they prepare no statements by name where a pooler does not follow."""

_ONE_AT_A_TIME = (
    "A claim was made while another statement was running on the same asyncpg connection, which performs one at a "
    "time: await the other one first, or use a connection each."
)


class InTransaction(AsyncInTransaction[Any]):
    """A transaction of ours is controlled by asyncpg's objects, so that users can nest theirs."""

    outer: Any = None
    _savepoint: Any = None

    async def __call__(self, request: Query | Copy, /) -> Rows:
        if self._borrowed is None or isinstance(request, Copy) or request.control is None:
            return await super().__call__(request)
        try:
            async with asyncio.timeout(deadline.DEADLINE):
                await self._control(request.control)
        except _Failures as error:
            _hang_up_if_unusable(self.handle, error)
            self.fail(error)
        return Rows([], 0)

    async def _control(self, control: str) -> None:
        match control:
            case "begin":
                self.outer = self.handle.transaction()
                await self.outer.start()
            case "savepoint":
                self._savepoint = self.handle.transaction()
                await self._savepoint.start()
            case "rollback_to_savepoint":
                await self._savepoint.rollback()
            case "commit":
                outer, self.outer = self.outer, None
                await outer.commit()
            case _:
                outer, self.outer = self.outer, None
                await outer.rollback()

    def fail(self, error: Exception, *, alone: bool = False) -> NoReturn:
        if isinstance(error, asyncpg.InterfaceError) and "another operation" in str(error):
            raise ConfigurationError(_ONE_AT_A_TIME) from error
        super().fail(error, alone=alone)


class AsyncpgDriver(AsyncPooledDriver[Any]):
    """asyncpg, for async code."""

    kind = "postgresql"
    failures = _Failures
    opens = InTransaction

    def __init__(self, make: Callable[[], Awaitable[Any]], size: Size | None, theirs: Any = None) -> None:
        super().__init__(size)
        self.heard = ignore_notice
        self._make = make
        self._pool = theirs
        self._setup = getattr(theirs, "_setup", None)
        self._lanes = QueryLanes(super().__call__, self.size.pool_exhausted)

    @classmethod
    def to(cls, url: str, size: Size | None = None) -> Self:
        """A driver whose connections are opened when they are needed."""
        return cls(_Connecting(url), size)

    @classmethod
    def beside(cls, theirs: Any, /) -> Self:
        return cls(theirs._get_new_connection, size_of("max_size=", theirs.get_max_size()), theirs)

    async def open(self) -> Any:
        async with asyncio.timeout(deadline.DEADLINE):
            connection = await self._make()
        connection.add_log_listener(self._hear)
        return connection

    def is_idle(self, connection: Any, /) -> bool:
        return not connection.is_closed() and not connection.is_in_transaction()

    def is_usable(self, connection: Any, /) -> bool:
        return not connection.is_closed()

    async def hang_up(self, connection: Any, /) -> None:
        await _close(connection)

    async def __call__(self, request: Query, /) -> Rows:
        if self._setup is None:
            return await self._lanes(request)
        async with self.transaction() as opened:  # a setup may depend on its caller, so no lane
            try:
                return await ain_turn(request, partial(self.perform_on_ours, opened.handle))
            except _Failures as error:
                opened.fail(error, alone=True)

    async def as_connected(self, request: Query, /) -> Rows:
        """Perform one statement on a new connection that the user's pool has not set up."""
        connection = await self.connect()
        try:
            return await ain_turn(request, partial(self.perform_on_ours, connection))
        except _Failures as error:
            fail(error, alone=True)
        finally:
            await self.hang_up(connection)

    @staticmethod
    async def perform(connection: Any, query: Query, /) -> Rows:
        real = getattr(connection, "_con", connection)  # a pool lends each in a new wrapper
        if real not in _judged:
            found = await connection.fetchrow(pooler_query(connection.get_server_pid()), timeout=deadline.DEADLINE)
            lacks_pooler(found)
            _judged.add(real)
        sql, args = arguments(query, "$")
        seconds = deadline.of(query)
        if query.control is None and ("RETURNING" in sql or sql.startswith("SELECT") or not query.writes):
            rows = [tuple(row) for row in await connection.fetch(sql, *args, timeout=seconds)]
            return Rows(rows, len(rows))
        status: str = await connection.execute(sql, *args, timeout=seconds)
        count = status.rsplit(" ", 1)[-1]
        return Rows([], int(count) if count.isdigit() else 0)

    @classmethod
    async def perform_on_ours(cls, connection: Any, query: Query, /) -> Rows:
        """A connection whose statement was cut off is closed, for asyncpg is still cancelling it."""
        try:
            return await cls.perform(connection, query)
        except asyncio.CancelledError:
            await _close(connection)
            raise
        except _Failures as error:
            _hang_up_if_unusable(connection, error)
            raise

    @staticmethod
    async def transfer(connection: Any, copy: Copy, /) -> Rows:
        """The server ends it if it takes too long, see `RotatingStore.enter`."""
        if copy.chosen is not None:
            status: str = await connection.copy_from_query(copy.chosen, output=copy.spool, format="binary")
        else:
            schema, name, _ = copy.partition
            status = await connection.copy_to_table(
                name, schema_name=schema, source=copy.spool, format="binary", freeze=True
            )
        return Rows([], int(status.rsplit(" ", 1)[-1]))

    async def begin(self, connection: Any, /) -> None:
        """Do what the user's pool does to each connection that it lends."""
        if self._setup is None:
            return
        try:
            await self._setup(connection)
        except BaseException as error:
            connection.terminate()
            if isinstance(error, _Failures):
                raise not_connected(error) from error
            raise

    async def end(self, opened: InTransaction, /) -> None:
        """Leave no transaction open; and of the user's settings what the user's pool leaves."""
        connection = opened.handle
        if not connection.is_closed() and (opened.outer is not None or connection.is_in_transaction()):
            connection.terminate()
        elif self._pool is not None and not connection.is_closed():
            reset = getattr(self._pool, "_reset", None)
            try:
                async with asyncio.timeout(deadline.DEADLINE):
                    await (connection.reset() if reset is None else reset(connection))
                connection.add_log_listener(self._hear)  # a reset has removed it
            except BaseException as error:
                connection.terminate()
                if not isinstance(error, _Failures):
                    raise

    def _hear(self, connection: Any, notice: Any) -> None:
        finding = find_unreplicated(notice.server_source_function, notice.message)
        if finding is not None:
            self.heard(finding)

    async def aclose(self) -> None:
        await self._lanes.aclose()
        await super().aclose()

    @staticmethod
    def commits_alone(connection: Any, /) -> bool:
        return not connection.is_in_transaction()

    @classmethod
    def refuse(cls, connection: Any) -> None:
        if connection.is_closed():
            raise StoreUnavailable("tx= is a connection that is closed", unsent=True)
        super().refuse(connection)

    @staticmethod
    def place_of(connection: Any, /) -> identity.Place | None:
        holder = getattr(connection, "_holder", None)
        if holder is not None:
            return identity.pool(holder._pool)
        address, wanted = connection._addr, connection._params
        host, port = address if isinstance(address, tuple) else (address, 0)
        settings = tuple(sorted((wanted.server_settings or {}).items()))
        return identity.of_connection("postgresql", host, port, wanted.database, wanted.user, settings)


class _Connecting:
    """Opens connections that cache statements, by name, unless there is a pooler: asyncpg has to know beforehand."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._cache: dict[str, Any] = {}

    async def __call__(self) -> Any:
        while True:
            options = {"timeout": deadline.DEADLINE, **self._cache}
            connection: Any = await asyncpg.connect(self._url, **options)
            if self._cache or await _leads_directly(connection):
                _judged.add(connection)
                return connection
            self._cache = {"statement_cache_size": 0}


async def _leads_directly(connection: Any) -> bool:
    """Tell whether there is no pooler; else the connection is closed."""
    try:
        status = await connection.execute(status_query(connection.get_server_pid()), timeout=deadline.DEADLINE)
        if status == DIRECT_STATUS:
            return True
        await connection.close(timeout=deadline.DEADLINE)
    except BaseException:
        connection.terminate()
        raise
    return False


async def _close(connection: Any) -> None:
    """Close, or hang up on a server that is gone."""
    with suppress(*_Failures):
        await connection.close(timeout=deadline.DEADLINE)


def _hang_up_if_unusable(connection: Any, error: BaseException) -> None:
    """The pool would wait for a silent server to confirm that the statement was cancelled.

    A connection with an internal error is in the middle of something, and would not say that it is closed.
    """
    if isinstance(error, (TimeoutError, asyncpg.InternalClientError)):
        connection.terminate()


_OPTIONS = """
    host port user password passfile database dbname sslmode sslcert sslkey sslrootcert sslcrl sslpassword
    sslnegotiation ssl_min_protocol_version ssl_max_protocol_version target_session_attrs krbsrvname gsslib
    application_name client_connection_check_interval client_encoding client_min_messages datestyle
    default_transaction_isolation default_transaction_read_only default_transaction_deferrable extra_float_digits
    idle_in_transaction_session_timeout idle_session_timeout intervalstyle jit lock_timeout options
    plan_cache_mode role search_path session_replication_role standard_conforming_strings statement_timeout
    synchronous_commit tcp_keepalives_count tcp_keepalives_idle tcp_keepalives_interval tcp_user_timeout timezone
    transaction_timeout work_mem
"""
"""Options of a URL that asyncpg reads; it sends all others to the server as settings."""


def is_option(name: str) -> bool:
    """Tell whether asyncpg, or the server, knows an option of a URL; a setting of an extension has a dot."""
    return name.lower() in _OPTIONS.split() or "." in name
