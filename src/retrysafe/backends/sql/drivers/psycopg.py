"""psycopg 3, sync and async: connections of our own, also made as the user's pool makes its, and the caller's."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, ClassVar, Self

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Conninfo, PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from retrysafe.backends import identity
from retrysafe.backends.sql.drivers import deadline, pool
from retrysafe.backends.sql.drivers.base import find_unreplicated, ignore_notice, lacks_pooler, pooler_query, positional
from retrysafe.backends.sql.drivers.deadline import until
from retrysafe.backends.sql.drivers.pool import Size, is_quiet, size_of
from retrysafe.backends.sql.drivers.pooled import AsyncInTransaction, AsyncPooledDriver, PooledDriver
from retrysafe.errors import ConfigurationError, StoreUnavailable
from retrysafe.protocol.requests import Copy, Query, Rows

_BLOCK = 1 << 16
_SETTINGS = {
    "client_encoding": "utf8",
    "connect_timeout": 10,
    "tcp_user_timeout": round(deadline.DEADLINE * 1000),
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
        self._seconds = deadline.DEADLINE if request is None else deadline.of(request)

    def __enter__(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._hang_up)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._timer.cancel()
        if self._over and isinstance(error, psycopg.Error):
            raise psycopg.OperationalError(f"no answer within {self._seconds:g} s") from error

    def _hang_up(self) -> None:
        self._over = True
        with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(self._connection.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)


class _Cursor(psycopg.Cursor[Any]):
    """A cursor for statements of ours on any connection: a server that does not answer is given up."""

    def perform(self, sql: bytes, args: Sequence[Any], *, seconds: float, prepare: bool | None = None) -> None:
        connection = self.connection
        with connection.lock:
            connection.wait(until(self._execute_gen(sql, args, prepare=prepare), connection, seconds))


@lru_cache(maxsize=512)
def encode(sql: str) -> tuple[bytes, tuple[str, ...]]:
    """The statement as psycopg is given it, and the names of its parameters in order."""
    text, names = positional(sql, "%s")
    return text.encode(), names


async def aperform(connection: psycopg.AsyncConnection[Any], query: Query) -> Rows:
    """Perform one statement, without a deadline."""
    if _is_untried(connection):
        asking = psycopg.AsyncCursor(connection, row_factory=tuple_row)
        await asking.execute(pooler_query(connection.info.backend_pid).encode(), prepare=False)
        _note_pooler(connection, await asking.fetchone())
    if query.control == "begin":
        await connection.set_autocommit(False)
        return Rows([], 0)
    sql, names = encode(query.sql)
    cursor = psycopg.AsyncCursor(connection, row_factory=tuple_row)
    await cursor.execute(sql, [query.params[name] for name in names])
    if query.control == "commit":
        await connection.set_autocommit(True)
    return Rows(await cursor.fetchall() if _has_rows(cursor) else [], cursor.rowcount)


_DIRECT = "_retrysafe_direct"
"""The attribute of a connection that leads to PostgreSQL itself; another one prepares nothing by name any more."""


def detect_pooler(connection: psycopg.Connection[Any]) -> None:
    """Ask once whether a connection leads through a pooler; if so it prepares nothing by name any more."""
    if _is_untried(connection):
        cursor = _Cursor(connection, row_factory=tuple_row)
        cursor.perform(pooler_query(connection.info.backend_pid).encode(), (), prepare=False, seconds=deadline.DEADLINE)
        _note_pooler(connection, cursor.fetchone())


def _is_untried(connection: Any) -> bool:
    return connection.prepare_threshold is not None and not hasattr(connection, _DIRECT)


def _note_pooler(connection: Any, answer: Any) -> None:
    if lacks_pooler(answer):
        setattr(connection, _DIRECT, True)
    else:
        connection.prepare_threshold = None


def _has_rows(cursor: psycopg.Cursor[Any] | psycopg.AsyncCursor[Any]) -> bool:
    """Tell whether the statement answers with rows; ``description`` would build an object for every column."""
    return cursor.pgresult is not None and cursor.pgresult.nfields > 0


class _OfPsycopg:
    """Common to both colours."""

    kind = "postgresql"
    failures: ClassVar[tuple[type[Exception], ...]] = (psycopg.Error,)
    connects: ClassVar[Any]
    """The class of connections."""

    def __init__(self, make: Callable[[], Any], size: Size | None = None, reset: Callable[[Any], Any] | None = None):
        super().__init__(size)  # type: ignore[call-arg]
        self.heard = ignore_notice
        self._make = make
        self._reset = reset

    @classmethod
    def to(cls, url: str, size: Size | None = None) -> Self:
        """A driver whose connections are opened when they are needed."""
        return cls(lambda: cls.connects.connect(url, **_settings(url)), size)

    @classmethod
    def beside(cls, theirs: Any, /) -> Self:
        size = size_of("max_size=", theirs.max_size)
        return cls(partial(theirs._connect, pool.CHECKOUT), size, getattr(theirs, "_reset", None))

    def _hear(self, notice: psycopg.errors.Diagnostic) -> None:
        finding = find_unreplicated(notice.source_function, notice.message_primary)
        if finding is not None:
            self.heard(finding)

    @staticmethod
    def commits_alone(connection: Any, /) -> bool:
        return bool(connection.autocommit) and _is_idle(connection)

    @classmethod
    def refuse(cls, connection: Any) -> None:
        super().refuse(connection)  # type: ignore[misc]
        if connection.pgconn.pipeline_status != PipelineStatus.OFF:
            raise ConfigurationError(
                "tx= is in pipeline mode, where a claim cannot be answered: leave the pipeline first."
            )

    @staticmethod
    def place_of(connection: Any, /) -> identity.Place | None:
        lent_by = getattr(connection, "_pool", None)
        if lent_by is not None:
            return identity.pool(lent_by)
        info = connection.info
        return identity.of_connection("postgresql", info.host, info.port, info.dbname, info.user, info.options)

    def is_idle(self, connection: Any, /) -> bool:
        return _is_idle(connection)

    def is_usable(self, connection: Any, /) -> bool:
        return is_quiet(connection.fileno())


class PsycopgDriver(_OfPsycopg, PooledDriver[psycopg.Connection[Any]]):
    """psycopg for sync code."""

    connects = psycopg.Connection

    def open(self) -> psycopg.Connection[Any]:
        connection: psycopg.Connection[Any] = self._make()
        connection.autocommit = True
        connection.add_notice_handler(self._hear)
        return connection

    def hang_up(self, connection: psycopg.Connection[Any], /) -> None:
        _leave_pool(connection)
        connection.close()

    @staticmethod
    def perform(connection: psycopg.Connection[Any], query: Query, /) -> Rows:
        detect_pooler(connection)
        if query.control == "begin":  # at its own level, by its next statement, also by one behind a handler's rollback
            connection.autocommit = False
            return Rows([], 0)
        sql, names = encode(query.sql)
        cursor = _Cursor(connection, row_factory=tuple_row)  # not the factories of the user's connection
        cursor.perform(sql, [query.params[name] for name in names], seconds=deadline.of(query))
        if query.control == "commit":
            connection.autocommit = True
        return Rows(cursor.fetchall() if _has_rows(cursor) else [], cursor.rowcount)

    @staticmethod
    def transfer(connection: psycopg.Connection[Any], copy: Copy, /) -> Rows:
        """The server ends it if it takes too long, see `RotatingStore.enter`."""
        cursor = connection.cursor()
        with cursor.copy(copy.sql.encode()) as stream:
            if copy.chosen is not None:
                for block in stream:
                    copy.spool.write(block)
            else:
                while block := copy.spool.read(_BLOCK):
                    stream.write(block)
        return Rows([], cursor.rowcount)

    def end(self, connection: psycopg.Connection[Any], /) -> None:
        if not _is_idle(connection):
            with connection.lock:
                connection.wait(until(connection._rollback_gen(), connection, deadline.DEADLINE))
        if not connection.closed:
            if self._reset is not None:
                self._reset(connection)
            connection.autocommit = True


class AsyncPsycopgDriver(_OfPsycopg, AsyncPooledDriver[psycopg.AsyncConnection[Any]]):
    """psycopg for async code."""

    connects = psycopg.AsyncConnection

    async def open(self) -> psycopg.AsyncConnection[Any]:
        connection: psycopg.AsyncConnection[Any] = await self._make()
        await connection.set_autocommit(True)
        connection.add_notice_handler(self._hear)
        return connection

    async def hang_up(self, connection: psycopg.AsyncConnection[Any], /) -> None:
        _leave_pool(connection)
        await connection.close()

    def drop(self, connection: psycopg.AsyncConnection[Any], /) -> None:
        connection.pgconn.finish()

    @staticmethod
    async def perform(connection: psycopg.AsyncConnection[Any], query: Query, /) -> Rows:
        """A deadline ends our wait only: another task may be using the connection, so the connection stays open."""
        try:
            async with asyncio.timeout(deadline.DEADLINE):
                return await aperform(connection, query)
        except TimeoutError as error:
            raise StoreUnavailable(f"no answer within {deadline.DEADLINE:g} s") from error

    @classmethod
    async def perform_on_ours(cls, connection: psycopg.AsyncConnection[Any], query: Query, /) -> Rows:
        with HangUpDeadline(connection, query):
            return await aperform(connection, query)

    @staticmethod
    async def transfer(connection: psycopg.AsyncConnection[Any], copy: Copy, /) -> Rows:
        cursor = connection.cursor()
        async with cursor.copy(copy.sql.encode()) as stream:
            if copy.chosen is not None:
                async for block in stream:
                    copy.spool.write(block)
            else:
                while block := copy.spool.read(_BLOCK):
                    await stream.write(block)
        return Rows([], cursor.rowcount)

    async def end(self, opened: AsyncInTransaction[psycopg.AsyncConnection[Any]], /) -> None:
        connection = opened.handle
        with HangUpDeadline(connection):
            if not _is_idle(connection):
                await connection.rollback()
            if not connection.closed:
                if self._reset is not None:
                    await self._reset(connection)
                await connection.set_autocommit(True)


def _is_idle(connection: Any) -> bool:
    """Tell whether a connection may be kept: in no transaction, and not closed, which would be another status."""
    return bool(connection.pgconn.transaction_status == TransactionStatus.IDLE)


def _leave_pool(connection: Any) -> None:
    """Let ``close`` close a connection that was made as a pool makes its own, and not give it to that pool."""
    connection._pool = None


@lru_cache(maxsize=1)
def _options() -> frozenset[str]:
    return frozenset(option.keyword.decode() for option in Conninfo.get_defaults())


def is_option(name: str) -> bool:
    return name in _options()


def _settings(url: str) -> dict[str, Any]:
    """Settings of our own connections; what the URL says goes first."""
    given = conninfo_to_dict(url)
    return {"autocommit": True, **{name: value for name, value in _SETTINGS.items() if name not in given}}
