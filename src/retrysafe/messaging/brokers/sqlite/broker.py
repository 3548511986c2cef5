"""Queues in a SQLite file: a broker for the processes of one machine, with nothing to install.

A message is copied into every queue that is bound to its topic, and stays there until a consumer settles it. What a
consumer holds and does not renew, because it was killed, is handed out again. Messages of one lane are with one
consumer at a time, in their order, so any number of consumers may share a queue.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from retrysafe import runtime
from retrysafe.backends.sql.drivers.sqlite_connection import Connection, open_connection
from retrysafe.backends.sql.drivers.sqlite_pool import Borrowed, SqlitePool
from retrysafe.backends.urls import without_password
from retrysafe.cancellation import CLOSING, WorkerThread
from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers.base import Broker
from retrysafe.messaging.brokers.sessions import SessionOwner
from retrysafe.messaging.brokers.spec import declaring
from retrysafe.messaging.cloudevents import attributes, envelope_of
from retrysafe.messaging.relay.poll_schedule import Polls
from retrysafe.protocol.durations import seconds as seconds_of
from retrysafe.protocol.messages import Delivery, Envelope, PublishResult, PublishStatus
from retrysafe.protocol.ordering import lane
from retrysafe.protocol.records import Duration
from retrysafe.runtime import new_lock

T = TypeVar("T")

BUSY = 10.0
"""The longest wait for others that write, in seconds."""
POLLS = Polls(shortest=0.005, longest=0.1)
_TABLES = """
CREATE TABLE IF NOT EXISTS bindings (
    topic TEXT NOT NULL,
    queue TEXT NOT NULL,
    PRIMARY KEY (topic, queue)
);
CREATE TABLE IF NOT EXISTS deliveries (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    queue TEXT NOT NULL,
    lane INTEGER NOT NULL,
    attributes TEXT NOT NULL,
    payload BLOB NOT NULL,
    not_before REAL NOT NULL DEFAULT 0,
    giver TEXT,
    holder TEXT,
    held_until REAL NOT NULL DEFAULT 0,
    handed INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS deliveries_lane ON deliveries (queue, lane, id);
"""
_TAKEN = """
SELECT d.id, d.attributes, d.payload, d.handed FROM deliveries AS d
WHERE d.queue = :queue AND d.not_before <= :now AND (d.holder IS NULL OR d.held_until < :now)
AND NOT EXISTS (
    SELECT 1 FROM deliveries AS e
    WHERE e.queue = d.queue AND e.lane = d.lane AND e.id < d.id
    AND (e.not_before > :now OR (e.holder <> :me AND e.held_until >= :now))
)
ORDER BY d.id LIMIT :most
"""
"""Selects the messages to hand out: none behind a waiting one of its lane, or in another consumer's lane."""
_SETTLED = "DELETE FROM deliveries WHERE id = ?"
_RETURNED = "UPDATE deliveries SET not_before = ?, holder = NULL, giver = ? WHERE id = ? AND holder = ?"


class _File:
    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.path.realpath(path)
        self._connections = self._none_yet()
        self._turn = new_lock()

    @contextmanager
    def transaction(self, until: float) -> Iterator[sqlite3.Connection]:
        """A transaction that has the file to itself; it waits for others ``until`` then, by the monotonic clock."""
        with self._turn, Borrowed(self._connections) as connection:
            connection.set_busy_timeout(until - time.monotonic())
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise

    def _none_yet(self) -> SqlitePool[Connection]:
        return SqlitePool(self._path, partial(_connect, self._path))

    def close(self) -> None:
        """Close the connection, once no transaction is open; the next use opens another one."""
        connections, self._connections = self._connections, self._none_yet()
        connections.close()


def _connect(path: str) -> Connection:
    if not Path(path).exists():  # SQLite would make one, without its tables
        raise sqlite3.OperationalError(f"there is no {path}: make it with declare()")
    return open_connection(path, BUSY, lambda connection: connection.execute("PRAGMA synchronous = FULL"))


def declare(path: str | os.PathLike[str], queues: Iterable[tuple[str, str]]) -> None:
    """Make the file of a broker, if it is missing, and bind topics to queues: pairs of topic and queue."""
    made = SqlitePool(path, lambda: open_connection(path, BUSY))
    with closing(made) as connections, Borrowed(connections) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(_TABLES)
        connection.executemany("INSERT OR IGNORE INTO bindings (topic, queue) VALUES (?, ?)", list(queues))


class SqlitePublisher:
    """Copies messages into the queues that are bound to their topics; a topic without one waits for it.

    Arguments:
        path: of the file, made by `declare`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = _File(path)
        self.broker_address = f"sqlite://{os.path.realpath(path)}"

    def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
        """Publish them in one transaction."""
        return self.publish_until(time.monotonic() + BUSY, envelopes)

    def publish_until(self, until: float, envelopes: Sequence[Envelope]) -> Sequence[PublishResult]:
        """`publish`, which waits for others that write until then, by the monotonic clock."""
        try:
            with self._file.transaction(until) as file:
                published = [self._one(file, envelope) for envelope in envelopes]
        except sqlite3.DatabaseError as error:  # locked, full, not writable, no broker: whatever the message
            return [PublishResult(PublishStatus.UNAVAILABLE, str(error))] * len(envelopes)
        return published

    def _one(self, file: sqlite3.Connection, envelope: Envelope) -> PublishResult:
        queues = file.execute("SELECT queue FROM bindings WHERE topic = ?", [envelope.topic]).fetchall()
        if not queues:
            return PublishResult(PublishStatus.STALLED, f"no queue takes {envelope.topic!r}")
        of = lane(envelope.topic, envelope.key, envelope.id)
        row = (of, json.dumps(attributes(envelope)), envelope.payload)
        sql = "INSERT INTO deliveries (queue, lane, attributes, payload) VALUES (?, ?, ?, ?)"
        try:
            file.executemany(sql, [(queue, *row) for (queue,) in queues])
        except (sqlite3.DataError, OverflowError) as error:  # too large: the first of its rows is refused already
            return PublishResult(PublishStatus.REJECTED, str(error))
        return PublishResult(PublishStatus.ACKED)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class AsyncSqlitePublisher:
    """`SqlitePublisher` for async code; the file is written in a thread."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._publisher = SqlitePublisher(path)
        self.broker_address = self._publisher.broker_address
        self._thread = WorkerThread("retrysafe-sqlite-publisher")

    async def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
        """Publish them in one transaction, to its end, also when the caller is cancelled."""
        until = time.monotonic() + BUSY
        return await self._thread.run(partial(self._publisher.publish_until, until, envelopes))

    async def aclose(self) -> None:
        """Close the file."""
        try:
            await self._thread.run(self._publisher.close)
        finally:
            self._thread.end()


class SqliteConsumer(SessionOwner["_SqliteSession"]):
    """Takes the messages of a queue.

    Arguments:
        path: of the file, made by `declare`.
        queue: which one.
        hold: how long a consumer keeps its messages after its last sign of life; it gives one every third of that
            time.
    """

    def __init__(self, path: str | os.PathLike[str], queue: str, *, hold: Duration = "30s") -> None:
        file, held_for = _File(path), seconds_of(hold, "hold")
        super().__init__(lambda: _SqliteSession(file, queue, held_for))

    @property
    def redelivery_window(self) -> float | None:
        """None: a message stays until it is settled, so there is no bound."""
        return None

    async def receive(self, limit: int, wait: float, /) -> Sequence[Delivery]:
        """Up to so many messages, oldest first; waits so many seconds for the first one."""
        session = await self._enter()
        return await self._until_closed(session.receive(limit, wait), list)

    async def ack(self, deliveries: Sequence[Delivery], /) -> None:
        """Remove them; what cannot be removed now is removed before more is taken."""
        if (session := self._session_here()) is not None:
            await session.ack(deliveries)

    async def give_back(self, delivery: Delivery, delay: float, /) -> None:
        """Let it, and with it its lane, wait while this consumer is there; unless another one has it by now.

        What cannot be given back now, which raises `sqlite3.OperationalError`, is given back before more is taken, and
        before this consumer gives its next sign of life.
        """
        if (session := self._session_here()) is not None:
            await session.give_back(delivery, delay)

    async def lag(self) -> Mapping[str, int]:
        """Count the unsettled messages of the queue."""
        if (session := self._session_here()) is None:
            return {}
        return await self._until_closed(session.lag(), dict[str, int])


class _SqliteSession:
    """A consumer from one opening to the next, under a name of its own."""

    def __init__(self, file: _File, queue: str, hold: float) -> None:
        self._file, self._queue, self._hold = file, queue, hold
        self._thread = WorkerThread("retrysafe-sqlite-consumer")
        self._name = f"{runtime.pid} {secrets.token_hex(4)}"
        self._owed: set[tuple[int]] = set()
        self._returned: list[tuple[float, str, int, str]] = []
        """Messages to give back. Those of a lane are, at once: else what comes behind them could be taken before."""
        self._handing = asyncio.Lock()
        self._renewing = asyncio.create_task(self._renew(), name="retrysafe-sqlite-consumer")

    async def receive(self, limit: int, wait: float, /) -> Sequence[Delivery]:
        polls, deadline = POLLS, time.monotonic() + wait
        while True:
            async with self._handing:
                returned = self._returned[:]
                found, cancelled = await self._do(lambda file: self._take(file, limit, returned))  # noqa: B023
                del self._returned[: len(returned)]
            if cancelled is not None:  # no caller would settle them
                self._returned += [(0.0, self._name, *delivery.tag) for delivery in found]
                with suppress(sqlite3.OperationalError):
                    await self._return()
                raise cancelled
            left = deadline - time.monotonic()
            if found or left <= 0:
                return found
            polls, rest = polls.empty(0.5)
            await asyncio.sleep(min(rest, left))

    async def ack(self, deliveries: Sequence[Delivery], /) -> None:
        self._owed |= {delivery.tag[:1] for delivery in deliveries}
        owed = list(self._owed)
        with suppress(sqlite3.OperationalError):
            await self._change(_SETTLED, owed)
            self._owed.difference_update(owed)

    async def give_back(self, delivery: Delivery, delay: float, /) -> None:
        self._returned.append((time.time() + delay, self._name, *delivery.tag))
        await self._return()

    async def _return(self) -> None:
        async with self._handing:
            if returned := self._returned[:]:
                _, cancelled = await self._do(lambda file: file.executemany(_RETURNED, returned).close())
                del self._returned[: len(returned)]
                if cancelled is not None:
                    raise cancelled

    async def lag(self) -> Mapping[str, int]:
        sql = "SELECT count(*) FROM deliveries WHERE queue = ?"
        work = self._in_transaction(lambda file: int(file.execute(sql, [self._queue]).fetchone()[0]))
        return {self._queue: await self._thread.run(work)}

    async def close(self) -> None:
        self._renewing.cancel()
        try:
            await asyncio.wait([self._renewing])
        finally:
            try:
                await self._thread.run(self._leave)
            finally:
                self._thread.end()

    def _leave(self) -> None:
        sql = "UPDATE deliveries SET holder = NULL, not_before = 0 WHERE queue = ? AND ? IN (holder, giver)"
        try:
            with suppress(sqlite3.Error), self._file.transaction(time.monotonic() + CLOSING) as file:
                file.execute(sql, (self._queue, self._name)).close()
        finally:
            self._file.close()

    def _take(
        self, file: sqlite3.Connection, most: int, returned: Sequence[tuple[float, str, int, str]]
    ) -> list[Delivery]:
        file.executemany(_SETTLED, list(self._owed)).close()
        file.executemany(_RETURNED, returned).close()
        now = time.time()
        given = {"queue": self._queue, "now": now, "me": self._name, "most": most}
        rows = file.execute(_TAKEN, given).fetchall()
        sql = "UPDATE deliveries SET holder = ?, giver = NULL, held_until = ?, handed = handed + 1 WHERE id = ?"
        file.executemany(sql, [(self._name, now + self._hold, row[0]) for row in rows])
        return [
            Delivery(envelope_of(json.loads(given_as), payload), (number, self._name), self._queue, handed > 0)
            for number, given_as, payload, handed in rows
        ]

    async def _renew(self) -> None:
        sql = "UPDATE deliveries SET held_until = ? WHERE queue = ? AND holder = ?"
        while True:
            await asyncio.sleep(self._hold / 3)
            with suppress(sqlite3.OperationalError):  # in time for the next one
                await self._return()
                await self._change(sql, [(time.time() + self._hold, self._queue, self._name)])

    async def _change(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Perform a statement for each row, to the end, also when the caller is cancelled.

        Cursors do not leave the thread: one that is disposed of in another resets the statement that both share.
        """
        await self._thread.run(self._in_transaction(lambda file: file.executemany(sql, rows).close()))

    async def _do(self, work: Callable[[sqlite3.Connection], T]) -> tuple[T, asyncio.CancelledError | None]:
        """Work in a transaction, in a thread of its own, to its end; return its result, and a cancellation to raise."""
        return await self._thread.run_to_completion(self._in_transaction(work))

    def _in_transaction(self, work: Callable[[sqlite3.Connection], T]) -> Callable[[], T]:
        """Return the work in a transaction, which waits for a file that others write from now on."""
        until = time.monotonic() + BUSY

        def do() -> T:
            with self._file.transaction(until) as file:
                return work(file)

        return do


def path_of(url: str) -> str:
    """The path of the file. Raises `ConfigurationError` for a URL without one."""
    path = url.removeprefix("sqlite:///")
    if path in ("", url, ":memory:") or "?" in path:
        raise ConfigurationError(f"{without_password(url)!r}: write sqlite:///relative.db or sqlite:////absolute.db.")
    return path


def publisher(url: str) -> SqlitePublisher:
    """The publisher of `retrysafe relay`."""
    return SqlitePublisher(path_of(url))


def async_publisher(url: str) -> AsyncSqlitePublisher:
    """The publisher of `retrysafe relay` on an async store."""
    return AsyncSqlitePublisher(path_of(url))


def consumer(url: str, topics: Sequence[str], *, group: str, lease: Duration = "30s") -> SqliteConsumer:
    """The consumer of `retrysafe inbox run`: the group is a queue, which has the topics that it is bound to."""
    if topics or not group:
        raise ConfigurationError(
            "A queue of a SQLite file has the topics that it is bound to: give --group alone. Bind it first with  "
            f"{declaring('GROUP')}"
        )
    return SqliteConsumer(path_of(url), group, hold=lease)


def declaration(url: str, topics: Sequence[str], *, group: str) -> None:
    """Make the file, and bind topics to the queue of a group, for `retrysafe topics declare`."""
    declare(path_of(url), [(topic, group) for topic in topics])


def broker(url: str, *, name: str, partitions: int | None, lease: Duration) -> Broker:
    """A file of queues; its lanes are spread by themselves, so that it has no partitions."""
    path = path_of(url)

    def queue(topic: str, group: str) -> str:
        return f"{name}.{group}.{topic}"

    return Broker(
        lambda topics, group: asyncio.to_thread(declare, path, [(topic, queue(topic, group)) for topic in topics]),
        lambda: AsyncSqlitePublisher(path),
        lambda topic, group: SqliteConsumer(path, queue(topic, group), hold=lease),
    )
