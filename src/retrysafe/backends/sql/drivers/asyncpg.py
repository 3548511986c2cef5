"""asyncpg: connections of our own, also made as the user's pool makes its, and the caller's connection."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import asyncpg

from retrysafe.backends.backend import hang_up
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
from retrysafe.backends.sql.drivers.deadline import PATIENCE
from retrysafe.backends.sql.drivers.lane import QueryLanes
from retrysafe.backends.sql.drivers.own import AsyncDriver, AsyncLent, AsyncOwn, Size, size_of
from retrysafe.errors import ConfigurationError, StoreUnavailable
from retrysafe.protocol.requests import Copy, Query, Rows

CHECKOUT = 10.0
"""Seconds to wait for a connection of the pool before the claim fails."""

DEADLINE = 10.0
"""Seconds after which a server that does not answer counts as gone."""

_Failures = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)
"""The internal error of a connection that the server ended while it was idle, until it knows."""


async def perform(connection: Any, query: Query) -> Rows:
    """Perform one statement."""
    sql, args = arguments(query, "$")
    deadline = PATIENCE if query.patient else DEADLINE
    if query.control is None and ("RETURNING" in sql or sql.startswith("SELECT") or not query.writes):
        rows = [tuple(row) for row in await connection.fetch(sql, *args, timeout=deadline)]
        return Rows(rows, len(rows))
    status: str = await connection.execute(sql, *args, timeout=deadline)
    count = status.rsplit(" ", 1)[-1]
    return Rows([], int(count) if count.isdigit() else 0)


async def perform_on_ours(connection: Any, query: Query) -> Rows:
    """`perform`; a connection whose statement was cut off is closed, for asyncpg is still cancelling it."""
    try:
        return await perform(connection, query)
    except asyncio.CancelledError:
        await close(connection)
        raise


async def close(connection: Any) -> None:
    """Close, or hang up on a server that is gone."""
    with suppress(*_Failures):
        await connection.close(timeout=DEADLINE)


_judged: weakref.WeakSet[Any] = weakref.WeakSet()


async def perform_directly(connection: Any, query: Query) -> Rows:
    """`perform` on a connection of the user's; refuse one that prepares by name where a pooler does not follow."""
    real = getattr(connection, "_con", connection)  # a pool lends each in a new wrapper
    if real not in _judged:
        is_direct(await connection.fetchrow(question(connection.get_server_pid()), timeout=DEADLINE))
        _judged.add(real)
    return await perform(connection, query)


async def perform_on_beside(connection: Any, query: Query) -> Rows:
    """`perform_directly`; a connection whose statement was cut off is closed."""
    try:
        return await perform_directly(connection, query)
    except asyncio.CancelledError:
        await close(connection)
        raise


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
    """An executor on one connection, inside a transaction; ``lent``, unless it is the caller's."""

    _perform = staticmethod(perform_directly)

    def __init__(self, connection: Any, lent: AsyncLent[Any] | None = None) -> None:
        self.handle = connection
        self.execute = self
        self._lent = lent

    async def __call__(self, request: Query | Copy, /) -> Rows:
        try:
            if isinstance(request, Copy):
                return await transfer(self.handle, request)
            return await ain_turn(request, partial(self._perform, self.handle))
        except _Failures as error:
            if isinstance(error, asyncpg.InterfaceError) and "another operation" in str(error):
                raise ConfigurationError(_ONE_AT_A_TIME) from error
            fail(error, passes=self._lent is not None and self._lent.passes_by_another(error))


class InOwnTransaction(InTransaction):
    """A transaction that we control, by asyncpg's objects, so that users can nest theirs."""

    _outer: Any = None
    _savepoint: Any = None

    async def __call__(self, request: Query | Copy, /) -> Rows:
        if isinstance(request, Copy) or request.control is None:
            return await super().__call__(request)
        try:
            async with asyncio.timeout(DEADLINE):
                await self._control(request.control)
        except _Failures as error:
            _hang_up_if_unusable(self.handle, error)
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
            if not self.handle.is_closed() and (self._outer is not None or self.handle.is_in_transaction()):
                self.handle.terminate()


def ajoin(connection: Any) -> InTransaction:
    """An executor on the caller's connection."""
    if connection.is_closed():
        raise StoreUnavailable("tx= is a connection that is closed", unsent=True)
    if not connection.is_in_transaction():
        raise ConfigurationError(AUTOCOMMIT)
    refuse_encoding(connection)
    return InTransaction(connection)


Hear = Callable[[Any, Any], None]
"""Is called with a connection and what the server says by itself on it."""
Perform = Callable[[Any, Query], Awaitable[Rows]]


class AsyncpgClient:
    """Connections of our own."""

    def __init__(self, source: Callable[[Hear], AsyncDriver[Any]], size: Size | None, pool: Any = None) -> None:
        self.heard = unheard
        self._driver = source(self._hear)
        self._source = AsyncOwn(self._driver, size)
        self._perform = perform_on_ours if pool is None else perform_on_beside
        self._pool = pool
        self._setup = getattr(pool, "_setup", None)
        self._lanes = QueryLanes(self._single, self._source.size.all_lent)

    @classmethod
    def connect(cls, url: str, size: Size | None = None) -> AsyncpgClient:
        """A client whose connections are opened when they are needed."""
        return cls(partial(Connecting, url), size)

    @classmethod
    def beside(cls, pool: Any) -> AsyncpgClient:
        """A client whose connections are made as the user's pool makes its own."""
        return cls(partial(Copying, pool), size_of("max_size=", pool.get_max_size()), pool)

    async def __call__(self, request: Query, /) -> Rows:
        # a setup may depend on its caller: what is set up for one is not for the others
        return await (self._lanes(request) if self._setup is None else self._single(request))

    async def as_connected(self, request: Query, /) -> Rows:
        """Perform one statement on a new connection that the user's pool has not set up."""
        connection = await self._driver.connect()
        try:
            return await ain_turn(request, partial(self._perform, connection))
        except _Failures as error:
            fail(error, alone=True)
        finally:
            await self._driver.close(connection)

    async def _single(self, request: Query) -> Rows:
        """Perform one statement, on a connection that is lent for it."""
        lent = self._source.lent()
        async with lent as connection:
            set_up = await self._set_up(connection)
            try:
                return await ain_turn(request, partial(self._perform, connection))
            except _Failures as error:
                _hang_up_if_unusable(connection, error)
                fail(error, alone=True, passes=lent.passes_by_another(error))
            finally:
                if set_up:
                    await self._reset(connection)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[InOwnTransaction]:
        """Lend a connection for one transaction."""
        lent = self._source.lent()
        async with lent as connection:
            await self._set_up(connection)
            opened = InOwnTransaction(connection, lent)
            try:
                yield opened
            finally:
                await opened.end()
                if self._pool is not None:
                    await self._reset(connection)

    async def _set_up(self, connection: Any) -> bool:
        """Do what the user's pool does to each connection that it lends."""
        if self._setup is None:
            return False
        try:
            await self._setup(connection)
        except BaseException as error:
            connection.terminate()
            if isinstance(error, _Failures):
                raise not_connected(error) from error
            raise
        return True

    async def _reset(self, connection: Any) -> None:
        """Do what the user's pool does to each connection that comes back: the user's settings end."""
        reset = getattr(self._pool, "_reset", None)
        try:
            if not connection.is_closed():
                async with asyncio.timeout(DEADLINE):
                    await (connection.reset() if reset is None else reset(connection))
                connection.add_log_listener(self._hear)  # a reset has removed it
        except BaseException as error:
            connection.terminate()
            if not isinstance(error, _Failures):
                raise

    def _hear(self, connection: Any, notice: Any) -> None:
        finding = unreplicated(notice.server_source_function, notice.message)
        if finding is not None:
            self.heard(finding)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._lanes.aclose()
        await self._source.aclose()

    def abandon(self) -> None:
        """Hang up without the loop, which is closed."""
        self._source.abandon()


_OPTIONS = frozenset(
    [
        "host",
        "port",
        "user",
        "password",
        "passfile",
        "database",
        "dbname",
        "sslmode",
        "sslcert",
        "sslkey",
        "sslrootcert",
        "sslcrl",
        "sslpassword",
        "sslnegotiation",
        "ssl_min_protocol_version",
        "ssl_max_protocol_version",
        "target_session_attrs",
        "krbsrvname",
        "gsslib",
        "application_name",
        "client_connection_check_interval",
        "client_encoding",
        "client_min_messages",
        "datestyle",
        "default_transaction_isolation",
        "default_transaction_read_only",
        "default_transaction_deferrable",
        "extra_float_digits",
        "idle_in_transaction_session_timeout",
        "idle_session_timeout",
        "intervalstyle",
        "jit",
        "lock_timeout",
        "options",
        "plan_cache_mode",
        "role",
        "search_path",
        "session_replication_role",
        "standard_conforming_strings",
        "statement_timeout",
        "synchronous_commit",
        "tcp_keepalives_count",
        "tcp_keepalives_idle",
        "tcp_keepalives_interval",
        "tcp_user_timeout",
        "timezone",
        "transaction_timeout",
        "work_mem",
    ]
)
"""Options of a URL that asyncpg reads; it sends all others to the server as settings."""


def is_option(name: str) -> bool:
    """Tell whether asyncpg, or the server, knows an option of a URL; a setting of an extension has a dot."""
    return name.lower() in _OPTIONS or "." in name


class Connecting:
    """Opens and closes our own connections for their keeper."""

    def __init__(self, url: str, hear: Hear) -> None:
        self._url = url
        self._hear = hear
        self._cache: dict[str, Any] = {}

    async def connect(self) -> Any:
        """A connection that caches statements, by name, unless there is a pooler: asyncpg has to know beforehand."""
        while True:
            try:
                options = {"timeout": CHECKOUT, **self._cache}
                connection = await asyncpg.connect(self._url, **options)
            except _Failures as error:
                raise not_connected(error) from error
            connection.add_log_listener(self._hear)
            _judged.add(connection)
            if self._cache or await self._is_direct(connection):
                return connection
            self._cache = {"statement_cache_size": 0}

    async def _is_direct(self, connection: Any) -> bool:
        """Tell whether there is no pooler; else the connection is closed."""
        try:
            status = await connection.execute(status_question(connection.get_server_pid()), timeout=DEADLINE)
            if status == DIRECT_STATUS:
                return True
            await connection.close(timeout=DEADLINE)
        except _Failures as error:
            connection.terminate()
            raise not_connected(error) from error
        except BaseException:
            connection.terminate()
            raise
        return False

    def is_idle(self, connection: Any) -> bool:
        return not connection.is_closed() and not connection.is_in_transaction()

    def is_usable(self, connection: Any) -> bool:
        return not connection.is_closed()

    async def close(self, connection: Any) -> None:
        await close(connection)

    def drop(self, connection: Any) -> None:
        hang_up(connection._transport)


class Copying(Connecting):
    """`Connecting` as the user's pool connects."""

    def __init__(self, pool: Any, hear: Hear) -> None:
        super().__init__("", hear)
        self._pool = pool

    async def connect(self) -> Any:
        try:
            async with asyncio.timeout(CHECKOUT):
                connection = await self._pool._get_new_connection()
        except _Failures as error:
            raise not_connected(error) from error
        connection.add_log_listener(self._hear)
        return connection


def _hang_up_if_unusable(connection: Any, error: BaseException) -> None:
    """The pool would wait for a silent server to confirm that the statement was cancelled.

    A connection with an internal error is in the middle of something, and would not say that it is closed.
    """
    if isinstance(error, (TimeoutError, asyncpg.InternalClientError)):
        connection.terminate()
