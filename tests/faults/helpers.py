"""Common parts of the fault tests: deadlines, an observer to wait for, ledgers, a cutting proxy."""

from __future__ import annotations

import asyncio
import os
import random
import re
import socket
import sqlite3
import struct
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from retrysafe import Boundary, InProgress, StoreUnavailable
from retrysafe.backends.driver import run
from retrysafe.backends.redis import url as redis_url
from retrysafe.backends.redis.client import RedisClient
from retrysafe.backends.redis.store import RedisStore
from retrysafe.backends.sql.drivers.sqlite_async import AsyncSqliteClient
from retrysafe.protocol.events import Event
from retrysafe.protocol.procedures import find
from retrysafe.protocol.records import Filter, Record
from retrysafe.protocol.requests import Query
from tests import processes
from tests.processes import ROOT as ROOT
from tests.processes import environment as environment
from tests.stores.ageing import mysql_connection

DEADLINE = 60.0
"""Seconds after which a condition that should have come true fails the test."""


def unique(prefix: str = "b") -> str:
    """A name that no other test uses."""
    return f"{prefix}_{uuid.uuid4().hex[:12]}"


def until(condition: Callable[[], Any], seconds: float = DEADLINE) -> Any:
    """Poll until the condition gives something true, and return that."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.002)
    return found


async def auntil(condition: Callable[[], Any], seconds: float = DEADLINE) -> Any:
    """`until` on an event loop."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.002)
    return found


NOT_NOW = (StoreUnavailable, InProgress)
"""The errors of callers while a server is away: ask again with the same key."""


def again(operation: Callable[[], Any]) -> Any:
    """The answer, as soon as there is one; a pool may first have to find out that its connections are dead."""
    found: list[Any] = []

    def tried() -> bool:
        try:
            found.append(operation())
        except NOT_NOW:
            return False
        return True

    until(tried)
    return found[-1]


def completed_elsewhere(boundary: Boundary, key: str, result: str) -> int:
    """Claim a key and complete it in a thread, so not inside a claim of this one; the attempt's token."""
    tokens: list[int] = []

    def attempt() -> None:
        with boundary.claim(key) as claim:
            assert not claim.replayed
            tokens.append(claim.token)
            claim.result = result

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join(DEADLINE)
    assert len(tokens) == 1, "the attempt did not come to its end"
    return tokens[0]


async def forever(seconds: float = DEADLINE) -> None:
    """Hang until cancelled; past the deadline the test has failed."""
    await asyncio.wait_for(asyncio.Event().wait(), seconds)


def reached(event: threading.Event) -> None:
    """Wait for an event, at most for the deadline."""
    assert event.wait(DEADLINE), "the event did not happen in time"


class Told:
    """An observer that counts occurrences and lets tests wait for them."""

    def __init__(self) -> None:
        self.occurrences: list[Event] = []
        self._changed = threading.Condition()

    def __call__(self, occurrence: Event, /) -> None:
        with self._changed:
            self.occurrences.append(occurrence)
            self._changed.notify_all()

    @property
    def names(self) -> Counter[str]:
        with self._changed:
            return Counter(occurrence.name for occurrence in self.occurrences)

    def attempts(self, name: str) -> int:
        """Count the attempts with the event ``name``."""
        with self._changed:
            return len({o.attempt for o in self.occurrences if o.name == name})

    def wait_for(self, name: str, attempts: int = 1) -> None:
        """Wait until that many attempts were told of ``name``."""
        with self._changed:
            done = self._changed.wait_for(lambda: self._attempts(name) >= attempts, DEADLINE)
        assert done, f"{name!r} was told for {self.attempts(name)} attempts, not {attempts}: {self.names}"

    def _attempts(self, name: str) -> int:
        return len({o.attempt for o in self.occurrences if o.name == name})


# ---------------------------------------------------------------- effects that can be counted


class Bank:
    """An external party: a ledger in a file of its own, that recognises a charge by its idempotency key."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with closing(self._open()) as ledger:
            ledger.execute("CREATE TABLE IF NOT EXISTS charges (key TEXT PRIMARY KEY, receipt TEXT NOT NULL)")
            ledger.execute("CREATE TABLE IF NOT EXISTS requests (key TEXT NOT NULL)")

    def _open(self) -> sqlite3.Connection:
        ledger = sqlite3.connect(self.path, timeout=DEADLINE, isolation_level=None)
        ledger.execute("PRAGMA synchronous = OFF")
        return ledger

    def charge(self, key: str) -> str:
        """Charge once per key; the receipt of the first request answers every later one."""
        with closing(self._open()) as ledger:
            ledger.execute("BEGIN IMMEDIATE")
            ledger.execute("INSERT INTO requests VALUES (?)", (key,))
            ledger.execute("INSERT OR IGNORE INTO charges VALUES (?, ?)", (key, uuid.uuid4().hex))
            receipt: str = ledger.execute("SELECT receipt FROM charges WHERE key = ?", (key,)).fetchone()[0]
            ledger.execute("COMMIT")
        return receipt

    @property
    def charges(self) -> dict[str, str]:
        """Key → receipt."""
        with closing(self._open()) as ledger:
            return dict(ledger.execute("SELECT key, receipt FROM charges").fetchall())

    @property
    def requests(self) -> Counter[str]:
        """The number of requests by key."""
        with closing(self._open()) as ledger:
            return Counter(key for (key,) in ledger.execute("SELECT key FROM requests"))


@contextmanager
def business_table(url: str) -> Iterator[str]:
    """A table of this test's own on a server, without any uniqueness that could hide a second effect."""
    name = unique("charges")
    run_sql(url, f"CREATE TABLE {name} (`key` text NOT NULL, receipt text NOT NULL)".replace("`", _quote(url)))
    yield name
    with suppress(Exception):  # a failed test may have left a transaction open
        ask_sql(url, f"DROP TABLE IF EXISTS {name}", patience=2)


def _quote(url: str) -> str:
    return "`" if url.startswith("mysql") else '"'


def rows_of(url: str, table: str) -> list[tuple[str, str]]:
    """(key, receipt) of every row of a business table on a server."""
    return ask_sql(url, f"SELECT * FROM {table}")[0]


@lru_cache(maxsize=8)
def _dynamodb_table(url: str, pid: int) -> Any:
    """A table resource of this process; making one takes so long that a short lease would lapse meanwhile."""
    import boto3

    resource: Any = boto3.resource("dynamodb", endpoint_url=url.partition("endpoint=")[2], region_name="us-east-1")
    return resource.Table(urlsplit(url).netloc)


def items_of(url: str, attribute: str, value: str) -> list[dict[str, Any]]:
    """The items of a DynamoDB table whose attribute, say ``boundary``, has that value, as plain values."""
    table = _dynamodb_table(url, os.getpid())
    asked: dict[str, Any] = {
        "FilterExpression": "#name = :value",
        "ExpressionAttributeNames": {"#name": attribute},
        "ExpressionAttributeValues": {":value": value},
        "ConsistentRead": True,
    }
    page = table.scan(**asked)
    found: list[dict[str, Any]] = page["Items"]
    while "LastEvaluatedKey" in page:
        page = table.scan(**asked, ExclusiveStartKey=page["LastEvaluatedKey"])
        found += page["Items"]
    return found


def records_of(url: str, boundary: str) -> list[tuple[str, int]]:
    """(state, attempts) of every record of a boundary."""
    if url.startswith("redis"):
        return [(record.state.value, record.attempts) for record in redis_records(url, boundary)]
    if url.startswith("dynamodb"):
        return [(str(item["state"]), int(item["attempts"])) for item in items_of(url, "boundary", boundary)]
    return ask_sql(url, f"SELECT state, attempts FROM retrysafe_records WHERE boundary = '{boundary}'")[0]


def redis_records(url: str, boundary: str | None) -> list[Record]:
    """The records of a boundary on Redis, without results."""
    with closing(RedisClient(redis_url.sync(redis_url.parse(url)))) as client:
        found: list[Record] = run(find(RedisStore(), Filter(boundary=boundary), 1_000_000), client)
    return found


def renewals_of(url: str, attempt: str) -> int:
    """Count the renewals of a first attempt's lease: the version of a record begins at its token."""
    if url.startswith("redis"):
        return sum(record.version - record.token for record in redis_records(url, None) if record.attempt == attempt)
    if url.startswith("dynamodb"):
        return sum(int(item["version"] - item["token"]) for item in items_of(url, "attempt", attempt))
    rows = ask_sql(url, f"SELECT version - token FROM retrysafe_records WHERE attempt = '{attempt}'")[0]
    return int(rows[0][0]) if rows else 0


def run_sql(url: str, sql: str) -> int:
    """Perform one statement from outside; return how many rows it changed."""
    return ask_sql(url, sql)[1]


def ask_sql(url: str, sql: str, *, patience: float = DEADLINE) -> tuple[list[Any], int]:
    """Perform one statement from outside, waiting for no lock longer than that; its rows, and how many it changed."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=patience)) as connection, connection:
            cursor = connection.execute(sql)
            return cursor.fetchall(), cursor.rowcount
    if url.startswith("mysql"):
        with closing(mysql_connection(plain(url), autocommit=True)) as connection, connection.cursor() as cursor:
            cursor.execute(f"SET lock_wait_timeout = {patience:.0f}, innodb_lock_wait_timeout = {patience:.0f}")
            cursor.execute(sql)
            return list(cursor.fetchall()), cursor.rowcount
    import psycopg

    with psycopg.connect(plain(url), autocommit=True) as server:
        server.execute(f"SET lock_timeout = '{patience:g}s'".encode())
        done = server.execute(sql.encode())
        return done.fetchall() if done.description else [], done.rowcount


class Child(processes.Child):
    """A child process of `tests.faults.children`."""

    def __init__(self, *arguments: str) -> None:
        super().__init__(sys.executable, "-m", "tests.faults.children", *arguments)


def plain(url: str) -> str:
    """The URL without a driver's name in it; what Redis names there is no driver."""
    return url if url.startswith("redis") else re.sub(r"^(\w+)\+\w+:", r"\1:", url)


def driven(url: str, driver: str) -> str:
    """The URL with a driver's name in it."""
    return url.replace(":", f"+{driver}:", 1)


# ---------------------------------------------------------------- a proxy that cuts between messages

Moment = Literal["request lost", "reply lost"]
MOMENTS: tuple[Moment, ...] = ("request lost", "reply lost")


class Proxy:
    """A TCP proxy that knows PostgreSQL's message framing.

    Armed with k, it counts the messages of both directions (of connections that are ready, so that a
    pool which connects in the background does not disturb) and cuts the connection of the k-th:
    before it is forwarded (its request, or its reply, is lost), or just after (a request arrives and
    its reply is lost). ``hold`` delays requests; ``stall`` swallows everything: a half-open connection.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._upstream = (parts.hostname or "127.0.0.1", parts.port or 5432)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = url.replace(f":{self._upstream[1]}/", f":{self._listener.getsockname()[1]}/") + "?sslmode=disable"
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._cut_at: int | None = None
        self._moment: Moment = "request lost"
        self._count = 0
        self._stalled = False
        self._kept_back: bytes | None = None
        self._going = threading.Event()
        self.held = threading.Event()
        """That a request is kept back."""
        self._between = threading.Lock()
        self.meanwhile: Callable[[], Any] = lambda: None
        """A function that is called after the server has lost the connection and before the client has."""
        self.statements: list[str] = []
        """Every statement that was sent to be parsed."""
        self.answers = 0
        """The number of requests that were answered to their end."""
        self._text: tuple[bytes, str] | None = None
        self.cut: tuple[str, bytes] | None = None
        """The message at which the connection was cut: its direction, and its type and text."""
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def arm(self, k: int, moment: Moment) -> None:
        """Cut at the k-th message from now on."""
        with self._lock:
            self._cut_at, self._moment, self._count, self.cut = k, moment, 0, None

    def cut_on(self, text: bytes, direction: str) -> None:
        """Cut before the next message of that direction that holds ``text``."""
        with self._lock:
            self._text, self._moment, self.cut = (text, direction), "request lost", None

    def hold(self, text: bytes = b"") -> None:
        """Keep every request that holds ``text``, and all that come after it, on their way until `let_go`."""
        self._kept_back = text

    def let_go(self) -> None:
        """Deliver what was kept back, whoever is still there to be answered."""
        self._kept_back = None
        self._going.set()

    def disarm(self) -> None:
        """Let everything through."""
        with self._lock:
            self._cut_at = self._text = None

    def drop(self) -> None:
        """Cut every connection that is open."""
        for one in list(self._sockets):
            _cut(one)

    def stall(self) -> None:
        """Keep connections open and answer nothing."""
        self._stalled = True

    def refuse(self) -> None:
        """Cut every connection and accept no more."""
        _cut(self._listener)
        self._accepting.join(DEADLINE)
        self.drop()

    def close(self) -> None:
        """Cut every connection, and wait until all is closed."""
        self.let_go()
        _cut(self._listener)
        self._accepting.join(DEADLINE)
        self._listener.close()
        for one in list(self._sockets):
            _cut(one)
        until(lambda: not self._sockets)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._upstream) as server:
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sockets.add(one)
            ready = threading.Event()
            replies = threading.Thread(target=self._pump, args=(server, client, "<", ready), daemon=True)
            replies.start()
            self._pump(client, server, ">", ready)
            replies.join()
            self._sockets -= {client, server}

    def _pump(self, source: socket.socket, target: socket.socket, direction: str, ready: threading.Event) -> None:
        typed = direction == "<"  # the client's first message has no type
        buffer = b""
        with suppress(OSError):
            while chunk := source.recv(65536):
                buffer += chunk
                while (size := _size(buffer, typed)) is not None:
                    message, buffer = buffer[:size], buffer[size:]
                    typed = True
                    if not ready.is_set():
                        target.sendall(message)
                        if direction == "<" and message[:1] == b"Z":
                            ready.set()
                    elif not self._forward(message, source, target, direction):
                        return
        with self._between:
            _cut(source)
            _cut(target)

    def _forward(self, message: bytes, source: socket.socket, target: socket.socket, direction: str) -> bool:
        if self._stalled:
            return True
        if direction == ">" and self._kept_back is not None and self._kept_back in message:
            self.held.set()
            assert self._going.wait(DEADLINE)
        with self._lock:
            self._count += 1
            named = self._text is not None and self._text[1] == direction and self._text[0] in message
            cutting = self.cut is None and (named or self._count == self._cut_at)
            if cutting:
                self.cut = (direction, message)
        if cutting and self._moment == "request lost":
            with self._between:
                _cut(target)
                self.meanwhile()
            _cut(source)
            return False
        target.sendall(message)
        if direction == ">" and message[:1] in b"PQ":
            self.statements.append(message[5:].split(b"\0")[message[:1] == b"P"].decode())
        self.answers += direction == "<" and message[:1] == b"Z"
        if cutting:
            _cut(source)
            _cut(target)
        return not cutting


def _size(buffer: bytes, typed: bool) -> int | None:
    """The length of the first whole message, or None when there is none yet."""
    offset = 1 if typed else 0
    if len(buffer) < offset + 4:
        return None
    size = offset + int(struct.unpack_from("!i", buffer, offset)[0])
    return size if len(buffer) >= size else None


def _cut(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)


def seeded(name: str) -> random.Random:
    """Chance that is the same in every run, and different for every test."""
    return random.Random(f"retrysafe {name}")


# ---------------------------------------------------------------- records whose time has passed


@contextmanager
def own_database(server: str, partitions: int | None = None, *, migrated: bool = True) -> Iterator[str]:
    """The URL of a new PostgreSQL database, dropped in the end: a sweep takes whatever is forgotten."""
    from urllib.parse import urlsplit

    import psycopg

    from retrysafe.backends.registry import connect, forget

    name = unique("sweep")
    url = urlsplit(server)._replace(path=f"/{name}").geturl()
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}".encode())
        backend = connect(url)
        try:
            if migrated:
                backend.migrate(partitions)
            yield url
        finally:
            backend.close()
            forget(backend)
            until(lambda: _is_dropped(admin, name))


def _is_dropped(admin: Any, name: str) -> bool:
    """Drop a database, unless the server still makes a slot for somebody who has left meanwhile."""
    from psycopg.errors import ObjectInUse

    try:
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
    except ObjectInUse:
        return False
    return True


LONG_AGO = ", ".join(f"{name} = {name} - 1000000000000000" for name in ("lease_until", "expires", "tombstone_until"))


def age(url: str, condition: str = "true") -> int:
    """Let thirty years pass for some records."""
    return run_sql(url, f"UPDATE retrysafe_records SET {LONG_AGO} WHERE {condition}")


def fill(url: str, count: int, state: str = "completed", name: str = "filled") -> None:
    """Write so many records of a boundary in one statement: forgotten, but for their state."""
    sqlite = url.startswith("sqlite")
    key = "randomblob(32)" if sqlite else "sha256(gen_random_uuid()::text::bytea)"
    data = "x'31'" if sqlite else "'1'::bytea"
    run_sql(
        url,
        f"WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {count}) "
        f"INSERT INTO retrysafe_records (key_hash, boundary, scope, operation, fingerprint, state, attempt, token, "
        f"attempts, effects, lease_until, created, updated, expires, tombstone_until, version, result, media_type, "
        f"codec_version) SELECT {key}, '{name}', '', 'operation', {data}, '{state}', 'attempt', 1, 1, 'keyed', "
        f"n, n, n, n, n, n, CAST({data} AS {'BLOB' if sqlite else 'bytea'}), 'application/json', 1 FROM numbers",
    )


def standing(url: str, name: str = "filled") -> Counter[str]:
    """Count the records of a boundary in each state."""
    return Counter(state for state, _ in records_of(url, name))


async def begin(client: AsyncSqliteClient, behind: Callable[[], object]) -> None:
    """Begin a transaction; the thread that does so calls ``behind`` before it ends."""
    async with client.transaction() as transaction:
        inner = transaction._inner

        def begun(request: Query) -> Any:
            answer = inner(request)
            behind()
            return answer

        transaction._inner = begun  # type: ignore[assignment]
        await transaction(Query("BEGIN IMMEDIATE", {}, control="begin"))
