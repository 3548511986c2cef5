"""psycopg 3, sync and async: connections of our own, the user's pools, and the caller's connection."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import PipelineStatus, TransactionStatus
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
from retrysafe.backends.sql.drivers.own import AsyncOwn, Own, is_quiet
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
    """A cursor for statements of ours on whoever's connection: a server that does not answer is given up."""

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
    cursor = _Cursor(connection, row_factory=tuple_row)  # whatever factories the user's connection has
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
    """Whether the statement answers with rows; ``description`` would build an object for every column."""
    return cursor.pgresult is not None and cursor.pgresult.nfields > 0


class InTransaction:
    """An executor on one connection, inside a transaction."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.handle = connection
        self.execute = self

    def __call__(self, request: Query | Copy, /) -> Rows:
        if isinstance(request, Query) and _begins_itself(self.handle, request):
            return Rows([], 0)
        try:
            if isinstance(request, Copy):
                return transfer(self.handle, request)
            return in_turn(request, lambda query: perform(self.handle, query))
        except psycopg.Error as error:
            fail(error)


class AsyncInTransaction:
    """`InTransaction` for async code.

    On the caller's connection a deadline ends our wait only: another task may be using it, so nobody hangs up.
    """

    def __init__(self, connection: psycopg.AsyncConnection[Any], *, joined: bool = False) -> None:
        self.handle = connection
        self.execute = self
        self._joined = joined

    async def __call__(self, request: Query | Copy, /) -> Rows:
        if isinstance(request, Query) and _begins_itself(self.handle, request):
            return Rows([], 0)
        try:
            if isinstance(request, Copy):
                return await atransfer(self.handle, request)
            if self._joined:
                async with asyncio.timeout(DEADLINE):
                    return await ain_turn(request, lambda query: aperform(self.handle, query))
            with HangUpDeadline(self.handle, request):
                return await ain_turn(request, lambda query: aperform(self.handle, query))
        except TimeoutError as error:
            raise StoreUnavailable(f"no answer within {DEADLINE:g} s") from error
        except psycopg.Error as error:
            fail(error)


def join(connection: psycopg.Connection[Any]) -> InTransaction:
    """An executor on the caller's connection."""
    _refuse(connection)
    return InTransaction(connection)


def ajoin(connection: psycopg.AsyncConnection[Any]) -> AsyncInTransaction:
    """An executor on the caller's connection."""
    _refuse(connection)
    return AsyncInTransaction(connection, joined=True)


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
    """Connections of our own or of the user's pool, in autocommit mode while we use them."""

    def __init__(self, source: Callable[[Hear], Own[psycopg.Connection[Any]] | Pooled]) -> None:
        super().__init__()
        self._source = source(self._hear)

    @classmethod
    def connect(cls, url: str) -> PsycopgClient:
        """A client with connections of its own, opened when they are needed."""
        return cls(lambda hear: Own(Connecting(url, hear)))

    @classmethod
    def on(cls, pool: ConnectionPool[Any]) -> PsycopgClient:
        """A client on the user's pool."""
        return cls(lambda hear: Pooled(pool, hear))

    def __call__(self, request: Query, /) -> Rows:
        with self._source.lent() as connection:
            try:
                return in_turn(request, partial(perform, connection))
            except psycopg.Error as error:
                fail(error, alone=True)

    @contextmanager
    def transaction(self) -> Iterator[InTransaction]:
        """Lend a connection for one transaction."""
        here = this_process()
        with self._source.lent(transaction=True) as connection:
            try:
                yield InTransaction(connection)
            finally:
                if here():
                    _end(connection)

    def close(self) -> None:
        """Close the connections that are ours."""
        self._source.close()


class Connecting:
    """How the keeper of our own connections opens and closes them."""

    def __init__(self, url: str, hear: Hear) -> None:
        self._url = url
        self._hear = hear

    def connect(self) -> psycopg.Connection[Any]:
        try:
            connection = psycopg.Connection.connect(self._url, **_settings(self._url))
        except psycopg.Error as error:
            raise _not_connected(error) from error
        connection.add_notice_handler(self._hear)
        return connection

    def is_idle(self, connection: psycopg.Connection[Any]) -> bool:
        return _is_idle(connection)

    def is_usable(self, connection: psycopg.Connection[Any]) -> bool:
        return is_quiet(connection.fileno())

    def close(self, connection: psycopg.Connection[Any]) -> None:
        connection.close()


class Pooled:
    """The connections of a pool that the user gave us."""

    def __init__(self, pool: ConnectionPool[Any], hear: Hear) -> None:
        self._pool = pool
        self._hear = hear

    @contextmanager
    def lent(self, *, transaction: bool = False) -> Iterator[psycopg.Connection[Any]]:
        try:
            connection = self._pool.getconn()
        except psycopg.OperationalError as error:
            raise _not_lent(self._pool, error) from error
        here, before = this_process(), connection.autocommit or transaction
        connection.add_notice_handler(self._hear)
        try:
            if not before:
                connection.autocommit = True
            yield connection
        finally:
            connection.remove_notice_handler(self._hear)
            if here():
                if not before and not connection.closed:
                    connection.autocommit = False
                self._pool.putconn(connection)

    def close(self) -> None:
        """The pool is the user's to close."""


class AsyncPsycopgClient(_Hearing):
    """`PsycopgClient` for async code; it belongs to one event loop."""

    def __init__(self, source: Callable[[Hear], AsyncOwn[psycopg.AsyncConnection[Any]] | AsyncPooled]) -> None:
        super().__init__()
        self._source = source(self._hear)

    @classmethod
    def connect(cls, url: str) -> AsyncPsycopgClient:
        """A client with connections of its own, opened when they are needed."""
        return cls(lambda hear: AsyncOwn(AsyncConnecting(url, hear)))

    @classmethod
    def on(cls, pool: AsyncConnectionPool[Any]) -> AsyncPsycopgClient:
        """A client on the user's pool."""
        return cls(lambda hear: AsyncPooled(pool, hear))

    async def __call__(self, request: Query, /) -> Rows:
        async with self._source.lent() as connection:
            try:
                with HangUpDeadline(connection, request):
                    return await ain_turn(request, lambda query: aperform(connection, query))
            except psycopg.Error as error:
                fail(error, alone=True)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncInTransaction]:
        """Lend a connection for one transaction."""
        async with self._source.lent(transaction=True) as connection:
            try:
                yield AsyncInTransaction(connection)
            finally:
                await _aend(connection)

    async def aclose(self) -> None:
        """Close the connections that are ours."""
        await self._source.aclose()

    def abandon(self) -> None:
        """Hang up without the loop, which is closed."""
        self._source.abandon()


class AsyncConnecting:
    """`Connecting` for async code."""

    def __init__(self, url: str, hear: Hear) -> None:
        self._url = url
        self._hear = hear

    async def connect(self) -> psycopg.AsyncConnection[Any]:
        try:
            connection = await psycopg.AsyncConnection.connect(self._url, **_settings(self._url))
        except psycopg.Error as error:
            raise _not_connected(error) from error
        connection.add_notice_handler(self._hear)
        return connection

    def is_idle(self, connection: psycopg.AsyncConnection[Any]) -> bool:
        return _is_idle(connection)

    def is_usable(self, connection: psycopg.AsyncConnection[Any]) -> bool:
        return is_quiet(connection.fileno())

    async def close(self, connection: psycopg.AsyncConnection[Any]) -> None:
        await connection.close()

    def drop(self, connection: psycopg.AsyncConnection[Any]) -> None:
        connection.pgconn.finish()


class AsyncPooled:
    """The connections of a pool that the user gave us."""

    def __init__(self, pool: AsyncConnectionPool[Any], hear: Hear) -> None:
        self._pool = pool
        self._hear = hear

    @asynccontextmanager
    async def lent(self, *, transaction: bool = False) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        try:
            connection = await self._pool.getconn()
        except psycopg.OperationalError as error:
            raise _not_lent(self._pool, error) from error
        before = connection.autocommit or transaction
        connection.add_notice_handler(self._hear)
        try:
            if not before:
                await connection.set_autocommit(True)
            yield connection
        finally:
            connection.remove_notice_handler(self._hear)
            if not before and not connection.closed:
                await connection.set_autocommit(False)
            await self._pool.putconn(connection)

    async def aclose(self) -> None:
        """The pool is the user's to close."""

    def abandon(self) -> None:
        """So it is without a loop."""


def _not_connected(error: psycopg.Error) -> Exception:
    """Say so without the frames of the attempt, which form a cycle with the error: they would keep its socket open."""
    return not_connected(error.with_traceback(None))


def _not_lent(
    pool: ConnectionPool[Any] | AsyncConnectionPool[Any], error: psycopg.OperationalError
) -> StoreUnavailable:
    """The error for a pool that lends no connection in time: why it cannot connect is in its log alone."""
    failing = pool.get_stats().get("connections_errors", 0)
    why = f". It failed to connect {failing} times: the log of psycopg.pool says why" if failing else ""
    return StoreUnavailable(f"{error}{why}", unsent=True)


def _is_idle(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Whether a connection may be kept: in no transaction, and not closed, which would be another status."""
    return connection.pgconn.transaction_status == TransactionStatus.IDLE


def _settings(url: str) -> dict[str, Any]:
    """Settings of our own connections; what the URL says goes first."""
    given = conninfo_to_dict(url)
    return {"autocommit": True, **{name: value for name, value in _SETTINGS.items() if name not in given}}


def _end(connection: psycopg.Connection[Any]) -> None:
    if connection.info.transaction_status != TransactionStatus.IDLE:
        try:
            with connection.lock:
                connection.wait(until(connection._rollback_gen(), connection, DEADLINE))
        except psycopg.Error:
            connection.close()


async def _aend(connection: psycopg.AsyncConnection[Any]) -> None:
    if connection.info.transaction_status != TransactionStatus.IDLE:
        try:
            with HangUpDeadline(connection):
                await connection.rollback()
        except (psycopg.Error, StoreUnavailable):
            await connection.close()
