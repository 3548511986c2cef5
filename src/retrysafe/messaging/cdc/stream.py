"""A connection to PostgreSQL that streams the log, over libpq as psycopg wraps it; for one event loop.

psycopg 3 has no interface of its own for the replication protocol. Its wrapper of libpq has all that it takes: COPY in
both directions. psycopg2 has more, and would be a second driver beside the one that reads the table.
"""

from __future__ import annotations

import asyncio
import select
import struct
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

from retrysafe import lazy
from retrysafe.backends.sql.outbox import TABLE
from retrysafe.messaging.cdc.batches import LoggedMessage, message_in
from retrysafe.messaging.cdc.pgoutput import Begin, Commit, Insert, Keepalive, Relation, parse, standby_status
from retrysafe.messaging.cdc.slot import LogUnavailable, Slot, SlotInUse
from retrysafe.messaging.relay.listener import CONNECT
from retrysafe.protocol.outbox_walk import Most
from retrysafe.stop_signal import StopSignal

_SILENT = 6
"""Heartbeats after which a server that has said nothing is taken for gone."""
_FAREWELL = 2.0
"""Seconds in which the server is to end the stream."""
_IN_USE, _NOT_THERE = b"55006", b"42704"
_SETTINGS = ("client_encoding = 'UTF8'", "bytea_output = 'hex'")
"""Settings that fix the log's notation of values, whatever the database and its users are set to."""


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, None], name: str) -> AsyncIterator[asyncio.Task[None]]:
    """Do work in a task of this name beside the block, and end it with the block."""
    task = asyncio.create_task(work, name=name)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


class LogBatch(NamedTuple):
    """Messages in the order of the log, and up to where all is in this batch or one before it; 0: nowhere new."""

    messages: list[LoggedMessage]
    end: int


class Stream:
    """The contents of a slot, from its confirmed position on."""

    def __init__(self, slot: Slot, owner: Any) -> None:
        self._slot, self._owner, self._connection = slot, owner, owner.pgconn
        self._relations: dict[int, Relation] = {}
        self._xid: int | None = None
        self._confirmed = 0
        self._beats: asyncio.Task[None] | None = None
        self._heard = time.monotonic()

    # ------------------------------------------------------------ reading

    def read(self, most: Most) -> LogBatch:
        """Return up to so many messages that have come; a transaction may be in several batches. It waits for nothing.

        Raises `LogUnavailable` when the stream has ended.
        """
        messages: list[LoggedMessage] = []
        end = size = 0
        if self._beats is not None and self._beats.done():
            self._beats.result()  # raises why it has ended
        while len(messages) < most.messages and size < most.bytes and (data := self._next()) is not None:
            try:
                change = parse(data)
                found = self._message(change) if isinstance(change, Insert) else None
            except (LookupError, ValueError, struct.error) as error:
                raise LogGone(f"The log has what cannot be read as a message: {error!r}") from error
            if found is not None:
                messages.append(found)
                size += found.queued.envelope.size
            else:
                end = max(end, self._follow(change))
        return LogBatch(messages, end)

    def _next(self) -> bytes | None:
        """Return the next message, if any. More is taken from the network only then: libpq keeps whatever it takes."""
        length, data = self._guard(self._connection.get_copy_data, 1)
        if length == 0:
            self._guard(self._connection.consume_input)
            length, data = self._guard(self._connection.get_copy_data, 1)
        if length == 0:
            self._silent()
            return None
        if length < 0:
            raise _reason(self._connection.get_result())
        self._heard = time.monotonic()
        return bytes(data)

    def _follow(self, change: Any) -> int:
        """Note what is no message; return up to where the log is read with it, or 0."""
        if isinstance(change, Relation):
            self._relations[change.number] = change
        elif isinstance(change, Begin):
            self._xid = change.xid
        elif isinstance(change, Commit):
            self._xid = None
            return change.end
        elif isinstance(change, Keepalive):
            if change.reply:
                self._tell(reply=False)
            return change.end if self._xid is None else 0
        return 0

    def _message(self, insert: Insert) -> LoggedMessage | None:
        relation = self._relations[insert.relation]
        if relation.table != TABLE or self._xid is None:
            return None
        row: Mapping[str, str | None] = dict(zip(relation.columns, insert.values, strict=True))
        return message_in(self._xid, row)

    async def wait(self, signal: StopSignal, seconds: float) -> None:
        """Wait until something has come, the relay is to stop, or so long."""
        loop, socket = asyncio.get_running_loop(), self._connection.socket
        loop.add_reader(socket, signal.nudge)
        try:
            await signal.await_for(seconds)
        finally:
            loop.remove_reader(socket)

    # ------------------------------------------------------------ telling

    def confirm(self, end: int) -> None:
        """Let the server forget what is before ``end``."""
        if end > self._confirmed:
            self._confirmed = end
            self._tell(reply=False)

    @asynccontextmanager
    async def beating(self) -> AsyncIterator[None]:
        """Tell the server at intervals how far this side is, also while messages are being published."""
        async with beside(self._beat(), "retrysafe-cdc-heartbeat") as self._beats:
            yield

    async def _beat(self) -> None:
        while True:
            self._tell(reply=True)
            await asyncio.sleep(self._slot.heartbeat)

    def _silent(self) -> None:
        """Raise `LogUnavailable` when the server has said nothing for too long."""
        if time.monotonic() - self._heard > _SILENT * self._slot.heartbeat:
            raise LogUnavailable("The server that streams the log has said nothing for too long.")

    def _tell(self, *, reply: bool) -> None:
        told = standby_status(self._confirmed, time.time_ns() // 1000, reply=reply)
        self._guard(self._connection.put_copy_data, told)
        self._guard(self._connection.flush)

    def _guard(self, call: Any, *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except lazy.psycopg.Error as error:
            raise LogUnavailable(f"The stream of the log has ended: {error}") from error

    def close(self) -> None:
        """End the stream, so that another relay can have the slot, and hang up."""
        with suppress(lazy.psycopg.Error):
            self._connection.put_copy_end()
            self._connection.flush()
            self._drain(time.monotonic() + _FAREWELL)
        self._connection.finish()

    def _drain(self, deadline: float) -> None:
        """Read to the end of the stream: to hang up on what was sent would lose what was told last."""
        while time.monotonic() < deadline:
            length, _ = self._connection.get_copy_data(1)
            if length < 0 and not self._connection.is_busy() and self._connection.get_result() is None:
                return
            if length <= 0:
                select.select([self._connection.socket], [], [], 0.05)
                self._connection.consume_input()


def open_stream(slot: Slot) -> Stream:
    """Begin to stream. Raises `SlotInUse`, or `LogUnavailable`; it blocks, and nothing but its own thread.

    libpq's own way to connect, as psycopg's binary wrapper calls it, keeps every thread of the process waiting.
    """
    more: dict[str, Any] = {"replication": "database", "connect_timeout": CONNECT, "keepalives_idle": 30}
    try:
        owner = lazy.psycopg.connect(slot.url, autocommit=True, **more)
    except lazy.psycopg.Error as error:
        raise LogUnavailable(f"The log cannot be read: {error}") from error
    connection = owner.pgconn
    try:
        connection.nonblocking = 0
        for setting in _SETTINGS:
            result = connection.exec_(f"SET {setting}".encode())
            if result.status != lazy.psycopg.pq.ExecStatus.COMMAND_OK:
                raise _reason(result)
        options = f"proto_version '1', publication_names '\"{slot.publication}\"'"
        result = connection.exec_(f'START_REPLICATION SLOT "{slot.name}" LOGICAL 0/0 ({options})'.encode())
        if result.status != lazy.psycopg.pq.ExecStatus.COPY_BOTH:
            raise _reason(result)
        connection.nonblocking = 1
    except BaseException:
        connection.finish()
        raise
    return Stream(slot, owner)


class LogGone(LogUnavailable):
    """The slot cannot be read from any more: it has to be made anew."""


def _reason(result: Any) -> LogUnavailable:
    """Why a stream has ended, or did not begin."""
    if result is None or result.status == lazy.psycopg.pq.ExecStatus.COMMAND_OK:
        return LogUnavailable("The server has ended the stream of the log.")
    said = bytes(result.error_field(lazy.psycopg.pq.DiagnosticField.MESSAGE_PRIMARY) or b"").decode(errors="replace")
    code = result.error_field(lazy.psycopg.pq.DiagnosticField.SQLSTATE)
    if code == _IN_USE:
        return SlotInUse(f"Another relay reads from the slot: {said}")
    kind = LogGone if code == _NOT_THERE else LogUnavailable
    return kind(f"The log cannot be read: {said}")
