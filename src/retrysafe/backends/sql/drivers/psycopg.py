"""psycopg 3, sync and async: connections of our own, also made as the user's pool makes its, and the caller's."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Conninfo, PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from retrysafe.backends.sql.drivers.base import (
    AUTOCOMMIT,
    ain_turn,
    fail,
    in_turn,
    is_direct,
    not_connected,
    positional,
    question,
    refuse_encoding,
    this_process,
    unheard,
    unreplicated,
)
from retrysafe.backends.sql.drivers.deadline import PATIENCE, until
from retrysafe.backends.sql.drivers.own import CHECKOUT, AsyncLent, AsyncOwn, Lent, Own, Size, is_quiet, size_of
from retrysafe.errors import ConfigurationError, StoreUnavailable
from retrysafe.protocol.requests import Copy, Query, Rows

if TYPE_CHECKING:
    from psycopg_pool import AsyncConnectionPool, ConnectionPool

DEADLINE = 10.0
"""Seconds after which a server that does not answer counts as gone."""

_BLOCK = 1 << 16
_SETTINGS = {
    "client_encoding": "utf8",
    "connect_timeout": 10,
    "tcp_user_timeout": round(DEADLINE * 1000),
    "keepalives_idle": 10,
    "keepalives_interval": 3,
    "keepalives_count": 3,
}


class HangUpDeadline:
    """`deadline.timely` for a connection of async code: at the deadline we hang up.

    A cancellation would not do: psycopg tells the server of it, and then waits for an answer to the statement again.
    """

    def __init__(self, connection: psycopg.AsyncConnection[Any], request: Query | None = None) -> None:
        self._connection = connection
        self._over = False
        self._seconds = PATIENCE if request is not None and request.patient else DEADLINE

    def __enter__(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._hang_up)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._timer.cancel()
        if self._over and isinstance(error, psycopg.Error):
            raise StoreUnavailable(f"no answer within {self._seconds:g} s") from error

    def _hang_up(self) -> None:
        self._over = True
        with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(self._connection.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)


class _Cursor(psycopg.Cursor[Any]):
    """A cursor for statements of ours on any connection: a server that does not answer is given up."""

    def perform(
        self, sql: bytes, args: Sequence[Any], *, prepare: bool | None = None, seconds: float = DEADLINE
    ) -> None:
        connection = self.connection
        with connection.lock:
            connection.wait(until(self._execute_gen(sql, args, prepare=prepare), connection, seconds))


def perform(connection: psycopg.Connection[Any], query: Query) -> Rows:
    """Perform one statement; a server that does not answer is given up at the deadline."""
    sql, names = encoded(query.sql)
    params = query.params
    cursor = _Cursor(connection, row_factory=tuple_row)  # not the factories of the user's connection
    prepare_if_direct(connection)
    cursor.perform(sql, [params[name] for name in names], seconds=PATIENCE if query.patient else DEADLINE)
    return Rows(cursor.fetchall() if _has_rows(cursor) else [], cursor.rowcount)


@lru_cache(maxsize=512)
def encoded(sql: str) -> tuple[bytes, tuple[str, ...]]:
    """The statement as psycopg is given it, and the names of its parameters in order."""
    text, names = positional(sql, "%s")
    return text.encode(), names


async def aperform(connection: psycopg.AsyncConnection[Any], query: Query) -> Rows:
    """Perform one statement."""
    sql, names = encoded(query.sql)
    await aprepare_if_direct(connection)
    cursor = psycopg.AsyncCursor(connection, row_factory=tuple_row)
    await cursor.execute(sql, [query.params[name] for name in names])
    return Rows(await cursor.fetchall() if _has_rows(cursor) else [], cursor.rowcount)


_DIRECT = "_retrysafe_direct"
"""The attribute of a connection that leads to PostgreSQL itself."""


def prepare_if_direct(connection: psycopg.Connection[Any]) -> None:
    """Ask once whether a connection leads to PostgreSQL itself; else let it prepare nothing by name any more."""
    if not hasattr(connection, _DIRECT) and connection.prepare_threshold is not None:
        cursor = _Cursor(connection, row_factory=tuple_row)
        cursor.perform(_question(connection), (), prepare=False)
        _judge(connection, cursor.fetchone())


async def aprepare_if_direct(connection: psycopg.AsyncConnection[Any]) -> None:
    """`prepare_if_direct` for async code."""
    if not hasattr(connection, _DIRECT) and connection.prepare_threshold is not None:
        cursor = psycopg.AsyncCursor(connection, row_factory=tuple_row)
        await cursor.execute(_question(connection), prepare=False)
        _judge(connection, await cursor.fetchone())


def _question(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bytes:
    return question(connection.info.backend_pid).encode()


def _judge(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], answer: Any) -> None:
    if is_direct(answer):
        setattr(connection, _DIRECT, True)
    else:
        connection.prepare_threshold = None


def transfer(connection: psycopg.Connection[Any], copy: Copy) -> Rows:
    """Copy rows to the spool or back. The server ends it if it takes too long, see `RotatingStore.enter`."""
    cursor = connection.cursor()
    with cursor.copy(copy.sql.encode()) as stream:
        if copy.chosen is not None:
            for block in stream:
                copy.spool.write(block)
        else:
            while block := copy.spool.read(_BLOCK):
                stream.write(block)
    return Rows([], cursor.rowcount)


async def atransfer(connection: psycopg.AsyncConnection[Any], copy: Copy) -> Rows:
    """`transfer` for async code."""
    cursor = connection.cursor()
    async with cursor.copy(copy.sql.encode()) as stream:
        if copy.chosen is not None:
            async for block in stream:
                copy.spool.write(block)
        else:
            while block := copy.spool.read(_BLOCK):
                await stream.write(block)
    return Rows([], cursor.rowcount)


def _has_rows(cursor: psycopg.Cursor[Any] | psycopg.AsyncCursor[Any]) -> bool:
    """Tell whether the statement answers with rows; ``description`` would build an object for every column."""
    return cursor.pgresult is not None and cursor.pgresult.nfields > 0


class InTransaction:
    """An executor on one connection, inside a transaction; ``lent``, unless it is the caller's."""

    def __init__(self, connection: psycopg.Connection[Any], lent: Lent[Any] | None = None) -> None:
        self.handle = connection
        self.execute = self
        self._lent = lent

    def __call__(self, request: Query | Copy, /) -> Rows:
        if isinstance(request, Query) and _begins_itself(self.handle, request):
            return Rows([], 0)
        try:
            if isinstance(request, Copy):
                return transfer(self.handle, request)
            return in_turn(request, lambda query: perform(self.handle, query))
        except psycopg.Error as error:
            fail(error, passes=self._lent is not None and self._lent.passes_by_another(error))


class AsyncInTransaction:
    """`InTransaction` for async code.

    On the caller's connection a deadline ends our wait only: another task may be using it, so nobody hangs up.
    """

    def __init__(self, connection: psycopg.AsyncConnection[Any], lent: AsyncLent[Any] | None = None) -> None:
        self.handle = connection
        self.execute = self
        self._lent = lent

    async def __call__(self, request: Query | Copy, /) -> Rows:
        if isinstance(request, Query) and _begins_itself(self.handle, request):
            return Rows([], 0)
        try:
            if isinstance(request, Copy):
                return await atransfer(self.handle, request)
            if self._lent is None:
                async with asyncio.timeout(DEADLINE):
                    return await ain_turn(request, lambda query: aperform(self.handle, query))
            with HangUpDeadline(self.handle, request):
                return await ain_turn(request, lambda query: aperform(self.handle, query))
        except TimeoutError as error:
            raise StoreUnavailable(f"no answer within {DEADLINE:g} s") from error
        except psycopg.Error as error:
            fail(error, passes=self._lent is not None and self._lent.passes_by_another(error))


def join(connection: psycopg.Connection[Any]) -> InTransaction:
    """An executor on the caller's connection."""
    _refuse(connection)
    return InTransaction(connection)


def ajoin(connection: psycopg.AsyncConnection[Any]) -> AsyncInTransaction:
    """An executor on the caller's connection."""
    _refuse(connection)
    return AsyncInTransaction(connection)


def _begins_itself(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], request: Query) -> bool:
    """A connection of the user's pool begins by itself, with the isolation level that the user gave it."""
    return request.control == "begin" and not connection.autocommit


def _refuse(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    if connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE:
        raise ConfigurationError(AUTOCOMMIT)
    if connection.pgconn.pipeline_status != PipelineStatus.OFF:
        raise ConfigurationError("tx= is in pipeline mode, where a claim cannot be answered: leave the pipeline first.")
    refuse_encoding(connection)


Hear = Callable[[psycopg.errors.Diagnostic], None]
"""Is called with what the server says by itself on a connection."""


class _Hearing:
    """A client that passes on what its server says."""

    def __init__(self) -> None:
        self.heard = unheard

    def _hear(self, notice: psycopg.errors.Diagnostic) -> None:
        finding = unreplicated(notice.source_function, notice.message_primary)
        if finding is not None:
            self.heard(finding)


class PsycopgClient(_Hearing):
    """Connections of our own, in autocommit mode while no transaction is lent."""

    def __init__(self, make: Callable[[], psycopg.Connection[Any]], size: Size | None = None, pool: Any = None) -> None:
        super().__init__()
        self._source: Own[psycopg.Connection[Any]] = Own(Connecting(make, self._hear), size)
        self._reset = getattr(pool, "_reset", None)

    @classmethod
    def connect(cls, url: str, size: Size | None = None) -> PsycopgClient:
        """A client whose connections are opened when they are needed."""
        return cls(lambda: psycopg.Connection.connect(url, **_settings(url)), size)

    @classmethod
    def beside(cls, pool: ConnectionPool[Any]) -> PsycopgClient:
        """A client whose connections are made as the user's pool makes its own."""
        return cls(partial(pool._connect, CHECKOUT), size_of("max_size=", pool.max_size), pool)

    def __call__(self, request: Query, /) -> Rows:
        lent = self._source.lent()
        with lent as connection:
            try:
                return in_turn(request, partial(perform, connection))
            except psycopg.Error as error:
                fail(error, alone=True, passes=lent.passes_by_another(error))

    @contextmanager
    def transaction(self) -> Iterator[InTransaction]:
        """Lend a connection for one transaction."""
        here = this_process()
        lent = self._source.lent()
        with lent as connection:
            connection.autocommit = getattr(connection, _AUTOCOMMIT)
            try:
                yield InTransaction(connection, lent)
            finally:
                if here():
                    _end(connection, self._reset)

    def close(self) -> None:
        """Close the connections."""
        self._source.close()


class Connecting:
    """Opens and closes our own connections for their keeper."""

    def __init__(self, make: Callable[[], psycopg.Connection[Any]], hear: Hear) -> None:
        self._make = make
        self._hear = hear

    def connect(self) -> psycopg.Connection[Any]:
        try:
            connection = self._make()
        except psycopg.Error as error:
            raise _not_connected(error) from error
        setattr(connection, _AUTOCOMMIT, connection.autocommit)
        connection.autocommit = True
        connection.add_notice_handler(self._hear)
        return connection

    def is_idle(self, connection: psycopg.Connection[Any]) -> bool:
        return _is_idle(connection)

    def is_usable(self, connection: psycopg.Connection[Any]) -> bool:
        return is_quiet(connection.fileno())

    def close(self, connection: psycopg.Connection[Any]) -> None:
        _leave_pool(connection)
        connection.close()


class AsyncPsycopgClient(_Hearing):
    """`PsycopgClient` for async code; it belongs to one event loop."""

    def __init__(
        self, make: Callable[[], Awaitable[psycopg.AsyncConnection[Any]]], size: Size | None = None, pool: Any = None
    ) -> None:
        super().__init__()
        self._source: AsyncOwn[psycopg.AsyncConnection[Any]] = AsyncOwn(AsyncConnecting(make, self._hear), size)
        self._reset = getattr(pool, "_reset", None)

    @classmethod
    def connect(cls, url: str, size: Size | None = None) -> AsyncPsycopgClient:
        """A client whose connections are opened when they are needed."""
        return cls(lambda: psycopg.AsyncConnection.connect(url, **_settings(url)), size)

    @classmethod
    def beside(cls, pool: AsyncConnectionPool[Any]) -> AsyncPsycopgClient:
        """A client whose connections are made as the user's pool makes its own."""
        return cls(partial(pool._connect, CHECKOUT), size_of("max_size=", pool.max_size), pool)

    async def __call__(self, request: Query, /) -> Rows:
        lent = self._source.lent()
        async with lent as connection:
            try:
                with HangUpDeadline(connection, request):
                    return await ain_turn(request, lambda query: aperform(connection, query))
            except psycopg.Error as error:
                fail(error, alone=True, passes=lent.passes_by_another(error))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncInTransaction]:
        """Lend a connection for one transaction."""
        lent = self._source.lent()
        async with lent as connection:
            try:
                await connection.set_autocommit(getattr(connection, _AUTOCOMMIT))
                yield AsyncInTransaction(connection, lent)
            finally:
                await _aend(connection, self._reset)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._source.aclose()

    def abandon(self) -> None:
        """Hang up without the loop, which is closed."""
        self._source.abandon()


class AsyncConnecting:
    """`Connecting` for async code."""

    def __init__(self, make: Callable[[], Awaitable[psycopg.AsyncConnection[Any]]], hear: Hear) -> None:
        self._make = make
        self._hear = hear

    async def connect(self) -> psycopg.AsyncConnection[Any]:
        try:
            connection = await self._make()
        except psycopg.Error as error:
            raise _not_connected(error) from error
        setattr(connection, _AUTOCOMMIT, connection.autocommit)
        await connection.set_autocommit(True)
        connection.add_notice_handler(self._hear)
        return connection

    def is_idle(self, connection: psycopg.AsyncConnection[Any]) -> bool:
        return _is_idle(connection)

    def is_usable(self, connection: psycopg.AsyncConnection[Any]) -> bool:
        return is_quiet(connection.fileno())

    async def close(self, connection: psycopg.AsyncConnection[Any]) -> None:
        _leave_pool(connection)
        await connection.close()

    def drop(self, connection: psycopg.AsyncConnection[Any]) -> None:
        connection.pgconn.finish()


def _not_connected(error: psycopg.Error) -> Exception:
    """Say so without the frames of the attempt, which form a cycle with the error: they would keep its socket open."""
    return not_connected(error.with_traceback(None))


def _is_idle(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Tell whether a connection may be kept: in no transaction, and not closed, which would be another status."""
    return connection.pgconn.transaction_status == TransactionStatus.IDLE


@lru_cache(maxsize=1)
def _options() -> frozenset[str]:
    return frozenset(option.keyword.decode() for option in Conninfo.get_defaults())


def is_option(name: str) -> bool:
    """Tell whether libpq knows an option of a URL."""
    return name in _options()


def _settings(url: str) -> dict[str, Any]:
    """Settings of our own connections; what the URL says goes first."""
    given = conninfo_to_dict(url)
    return {"autocommit": True, **{name: value for name, value in _SETTINGS.items() if name not in given}}


_AUTOCOMMIT = "_retrysafe_autocommit"
"""The attribute for the mode in which a connection was made: the user's work in a transaction is done in it."""


def _leave_pool(connection: Any) -> None:
    """Let ``close`` close a connection that was made as a pool makes its own, and not give it to that pool."""
    connection._pool = None


def _end(connection: psycopg.Connection[Any], reset: Callable[[Any], None] | None) -> None:
    """Roll back what is left open, and put the connection back into the mode in which it is kept."""
    try:
        if connection.info.transaction_status != TransactionStatus.IDLE:
            with connection.lock:
                connection.wait(until(connection._rollback_gen(), connection, DEADLINE))
        if not connection.closed:
            if reset is not None:
                reset(connection)
            connection.autocommit = True
    except psycopg.Error:
        _leave_pool(connection)
        connection.close()


async def _aend(connection: psycopg.AsyncConnection[Any], reset: Callable[[Any], Awaitable[None]] | None) -> None:
    try:
        with HangUpDeadline(connection):
            if connection.info.transaction_status != TransactionStatus.IDLE:
                await connection.rollback()
            if not connection.closed:
                if reset is not None:
                    await reset(connection)
                await connection.set_autocommit(True)
    except (psycopg.Error, StoreUnavailable):
        _leave_pool(connection)
        await connection.close()
