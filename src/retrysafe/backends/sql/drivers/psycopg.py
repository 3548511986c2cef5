"""psycopg 3, sync and async: connections of our own, the user's pools, and the caller's connection."""

from __future__ import annotations

import asyncio
import os
import socket
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from retrysafe.backends.sql.drivers.base import (
    AUTOCOMMIT,
    ain_turn,
    arguments,
    fail,
    in_turn,
    is_direct,
    not_connected,
    question,
    refuse_encoding,
    this_process,
    unheard,
    unreplicated,
)
from retrysafe.backends.sql.drivers.deadline import BoundedWait, timely
from retrysafe.backends.sql.drivers.own import AsyncOwn, Own, is_quiet
from retrysafe.errors import ConfigurationError, StoreUnavailable
from retrysafe.protocol.records import Finding
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


class Patience:
    """`deadline.timely` for a connection of async code: at the deadline we hang up.

    A cancellation would not do: psycopg tells the server of it, and then waits for an answer to the statement again.
    """

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection
        self._over = False

    def __enter__(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(DEADLINE, self._hang_up)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._timer.cancel()
        if self._over and isinstance(error, psycopg.Error):
            raise StoreUnavailable(f"no answer within {DEADLINE:g} s") from error

    def _hang_up(self) -> None:
        self._over = True
        with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(self._connection.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)


def perform(connection: psycopg.Connection[Any], query: Query) -> Rows:
    """Perform one statement; a server that does not answer is given up at the deadline."""
    sql, args = arguments(query, "%s")
    cursor = psycopg.Cursor(connection, row_factory=tuple_row)  # whatever factories the user's connection has
    with timely(connection, DEADLINE):
        prepare_if_direct(connection)
        cursor.execute(sql.encode(), args)
    return Rows(cursor.fetchall() if _has_rows(cursor) else [], cursor.rowcount)


async def aperform(connection: psycopg.AsyncConnection[Any], query: Query) -> Rows:
    """Perform one statement."""
    sql, args = arguments(query, "%s")
    await aprepare_if_direct(connection)
    cursor = psycopg.AsyncCursor(connection, row_factory=tuple_row)
    await cursor.execute(sql.encode(), args)
    return Rows(await cursor.fetchall() if _has_rows(cursor) else [], cursor.rowcount)


_direct: weakref.WeakSet[psycopg.BaseConnection[Any]] = weakref.WeakSet()


def prepare_if_direct(connection: psycopg.Connection[Any]) -> None:
    """Ask once whether a connection leads to PostgreSQL itself; else let it prepare nothing by name any more."""
    if connection.prepare_threshold is not None and connection not in _direct:
        cursor = psycopg.Cursor(connection, row_factory=tuple_row)
        _judge(connection, cursor.execute(_question(connection), prepare=False).fetchone())


async def aprepare_if_direct(connection: psycopg.AsyncConnection[Any]) -> None:
    """`prepare_if_direct` for async code."""
    if connection.prepare_threshold is not None and connection not in _direct:
        cursor = psycopg.AsyncCursor(connection, row_factory=tuple_row)
        await cursor.execute(_question(connection), prepare=False)
        _judge(connection, await cursor.fetchone())


def _question(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bytes:
    return question(connection.info.backend_pid).encode()


def _judge(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], answer: Any) -> None:
    if is_direct(answer):
        _direct.add(connection)
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
            with Patience(self.handle):
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


@contextmanager
def _heard_by(
    client: PsycopgClient | AsyncPsycopgClient, connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]
) -> Iterator[None]:
    """Let the client hear what the server says on a connection."""

    def hear(notice: psycopg.errors.Diagnostic) -> None:
        finding = unreplicated(notice.source_function, notice.message_primary)
        if finding is not None:
            client.heard(finding)

    connection.add_notice_handler(hear)
    try:
        yield
    finally:
        connection.remove_notice_handler(hear)


class OwnConnection(BoundedWait, psycopg.Connection[Any]):
    """A connection of our own."""


class PsycopgClient:
    """Connections of our own or of the user's pool, in autocommit mode while we use them."""

    def __init__(self, source: Own[psycopg.Connection[Any]] | Pooled) -> None:
        self._source = source
        self.heard = unheard

    @classmethod
    def connect(cls, url: str) -> PsycopgClient:
        """A client with connections of its own, opened when they are needed."""
        connecting = Connecting(url)
        client = cls(Own(connecting))
        connecting.hear = client._hear
        return client

    def _hear(self, finding: Finding) -> None:
        self.heard(finding)

    @classmethod
    def on(cls, pool: ConnectionPool[Any]) -> PsycopgClient:
        """A client on the user's pool."""
        return cls(Pooled(pool))

    def __call__(self, request: Query, /) -> Rows:
        with self._lent() as connection:
            try:
                return in_turn(request, partial(perform, connection))
            except psycopg.Error as error:
                fail(error, alone=True)

    @contextmanager
    def transaction(self) -> Iterator[InTransaction]:
        """Lend a connection for one transaction."""
        here = this_process()
        with self._lent(transaction=True) as connection:
            try:
                yield InTransaction(connection)
            finally:
                if here():
                    _end(connection)

    def _lent(self, *, transaction: bool = False) -> AbstractContextManager[psycopg.Connection[Any]]:
        if isinstance(self._source, Pooled):
            return self._lent_by_pool(self._source, transaction=transaction)
        return self._source.lent(transaction=transaction)

    @contextmanager
    def _lent_by_pool(self, pool: Pooled, *, transaction: bool) -> Iterator[psycopg.Connection[Any]]:
        with pool.lent(transaction=transaction) as connection, _heard_by(self, connection):
            yield connection

    def close(self) -> None:
        """Close the connections that are ours."""
        self._source.close()


class Connecting:
    """How the keeper of our own connections opens and closes them."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.hear = unheard
        """Called with what a server says by itself on a connection."""

    def connect(self) -> psycopg.Connection[Any]:
        try:
            connection = OwnConnection.connect(self._url, **_settings(self._url))
        except psycopg.Error as error:
            raise _not_connected(error) from error
        connection.add_notice_handler(self._notice)
        return connection

    def _notice(self, notice: psycopg.errors.Diagnostic) -> None:
        finding = unreplicated(notice.source_function, notice.message_primary)
        if finding is not None:
            self.hear(finding)

    def is_usable(self, connection: psycopg.Connection[Any]) -> bool:
        return _is_usable(connection)

    def close(self, connection: psycopg.Connection[Any]) -> None:
        connection.close()


class Pooled:
    """The connections of a pool that the user gave us."""

    def __init__(self, pool: ConnectionPool[Any]) -> None:
        self._pool = pool

    @contextmanager
    def lent(self, *, transaction: bool = False) -> Iterator[psycopg.Connection[Any]]:
        try:
            connection = self._pool.getconn()
        except psycopg.OperationalError as error:
            raise _not_lent(self._pool, error) from error
        here, before = this_process(), connection.autocommit or transaction
        try:
            if not before:
                connection.autocommit = True
            yield connection
        finally:
            if here():
                if not before and not connection.closed:
                    connection.autocommit = False
                self._pool.putconn(connection)

    def close(self) -> None:
        """The pool is the user's to close."""


class AsyncPsycopgClient:
    """`PsycopgClient` for async code; it belongs to one event loop."""

    def __init__(self, source: AsyncOwn[psycopg.AsyncConnection[Any]] | AsyncPooled) -> None:
        self._source = source
        self.heard = unheard

    @classmethod
    def connect(cls, url: str) -> AsyncPsycopgClient:
        """A client with connections of its own, opened when they are needed."""
        return cls(AsyncOwn(AsyncConnecting(url)))

    @classmethod
    def on(cls, pool: AsyncConnectionPool[Any]) -> AsyncPsycopgClient:
        """A client on the user's pool."""
        return cls(AsyncPooled(pool))

    async def __call__(self, request: Query, /) -> Rows:
        async with self._lent() as connection:
            try:
                with Patience(connection):
                    return await ain_turn(request, lambda query: aperform(connection, query))
            except psycopg.Error as error:
                fail(error, alone=True)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncInTransaction]:
        """Lend a connection for one transaction."""
        async with self._lent(transaction=True) as connection:
            try:
                yield AsyncInTransaction(connection)
            finally:
                await _aend(connection)

    @asynccontextmanager
    async def _lent(self, *, transaction: bool = False) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        async with self._source.lent(transaction=transaction) as connection:
            with _heard_by(self, connection):
                yield connection

    async def aclose(self) -> None:
        """Close the connections that are ours."""
        await self._source.aclose()

    def abandon(self) -> None:
        """Hang up without the loop, which is closed."""
        self._source.abandon()


class AsyncConnecting:
    """`Connecting` for async code."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def connect(self) -> psycopg.AsyncConnection[Any]:
        try:
            return await psycopg.AsyncConnection.connect(self._url, **_settings(self._url))
        except psycopg.Error as error:
            raise _not_connected(error) from error

    def is_usable(self, connection: psycopg.AsyncConnection[Any]) -> bool:
        return _is_usable(connection)

    async def close(self, connection: psycopg.AsyncConnection[Any]) -> None:
        await connection.close()

    def drop(self, connection: psycopg.AsyncConnection[Any]) -> None:
        connection.pgconn.finish()


class AsyncPooled:
    """The connections of a pool that the user gave us."""

    def __init__(self, pool: AsyncConnectionPool[Any]) -> None:
        self._pool = pool

    @asynccontextmanager
    async def lent(self, *, transaction: bool = False) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        try:
            connection = await self._pool.getconn()
        except psycopg.OperationalError as error:
            raise _not_lent(self._pool, error) from error
        before = connection.autocommit or transaction
        try:
            if not before:
                await connection.set_autocommit(True)
            yield connection
        finally:
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


def _is_usable(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Whether a connection may be lent again: open, in no transaction, and not hung up on by the server."""
    if connection.closed or connection.info.transaction_status != TransactionStatus.IDLE:
        return False
    return is_quiet(connection.fileno())


def _settings(url: str) -> dict[str, Any]:
    """Settings of our own connections; what the URL says goes first."""
    given = conninfo_to_dict(url)
    return {"autocommit": True, **{name: value for name, value in _SETTINGS.items() if name not in given}}


def _end(connection: psycopg.Connection[Any]) -> None:
    if connection.info.transaction_status != TransactionStatus.IDLE:
        try:
            with timely(connection, DEADLINE):
                connection.rollback()
        except psycopg.Error:
            connection.close()


async def _aend(connection: psycopg.AsyncConnection[Any]) -> None:
    if connection.info.transaction_status != TransactionStatus.IDLE:
        try:
            with Patience(connection):
                await connection.rollback()
        except (psycopg.Error, StoreUnavailable):
            await connection.close()
