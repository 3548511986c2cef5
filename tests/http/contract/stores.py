"""Stores that the conformance fixture can take away and give back, whose records it can make older."""

from __future__ import annotations

import os
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from retrysafe import Boundary
from retrysafe.backends.driver import run
from retrysafe.backends.registry import connect
from retrysafe.testing.time_travel import elapse_all
from tests.faults.helpers import ask_sql, run_sql, unique
from tests.ports import free_port
from tests.stores.ageing import do_at
from tests.stores.harnesses.redis import redis_url

STORES = ("memory", "sqlite", "postgresql", "redis")
BUSY = 0.3
"""Seconds that SQLite waits for another writer, so that a locked file is soon found to be one."""


class Doorway:
    """A TCP port that leads to a server while it is up, and refuses connections while it is down."""

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self.port = free_port()
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._accept()

    def up(self) -> None:
        """Let connections through again."""
        if self._listener.fileno() < 0:
            self._listener = socket.create_server(("127.0.0.1", self.port))
            self._accept()

    def down(self) -> None:
        """Cut all connections and take no more."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()
        with self._lock:
            for one in self._open:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        self._accepting = threading.Thread(target=self._accept_from, args=(self._listener,), daemon=True)
        self._accepting.start()

    def _accept_from(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                with self._lock:
                    server = socket.create_connection(self._server)
                    self._open |= {client, server}
                for one, other in ((client, server), (server, client)):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    threading.Thread(target=self._pump, args=(one, other), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                target.sendall(data)
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._open.discard(source)
        source.close()


@dataclass
class Place:
    """The place of the records of one cell.

    Attributes:
        url: the store's, as the server is given it.
        direct: the same past the doorway, for the test itself.
        settings: what a Django alias for the same place has over the usual one.
        table: where a handler's effects are, in transactional mode.
        down: takes the store away; None where that can't be done.
        up: gives it back.
    """

    kind: str
    transactional: bool
    url: str
    direct: str
    settings: dict[str, Any] = field(default_factory=dict)
    table: str = field(default_factory=lambda: unique("effects"))
    down: Callable[[], None] | None = None
    up: Callable[[], None] | None = None
    boundary: Boundary | None = None

    def elapse(self, seconds: float) -> None:
        """Let time pass for every record of the boundary."""
        assert self.boundary is not None
        name, micros = self.boundary.name, round(seconds * 1e6)
        if self.kind == "memory":
            backend = self.boundary._settings.backend
            run(elapse_all(backend.store, micros), backend.client())
        else:
            do_at(self.direct, lambda store: elapse_all(store, micros, [name]))

    def effects(self, id: str) -> int:
        """Count the committed effects of an id."""
        rows, _ = ask_sql(self.direct, f"SELECT count(*) FROM {self.table} WHERE id = '{id}'")
        return int(rows[0][0])

    @property
    def insert(self) -> str:
        """The statement that writes an effect, with one parameter in psycopg's style."""
        return f"INSERT INTO {self.table} (id) VALUES (%s)"


@contextmanager
def opened(kind: str, transactional: bool, folder: Path) -> Iterator[Place]:
    """A place of its own on a store."""
    with ExitStack() as stack:
        place = _OPENERS[kind](transactional, folder, stack)
        if place.kind in ("sqlite", "postgresql"):
            run_sql(place.direct, f"CREATE TABLE {place.table} (id TEXT)")
            stack.callback(run_sql, place.direct, f"DROP TABLE {place.table}")
        if place.up is not None:
            stack.callback(place.up)
        yield place


def _memory(transactional: bool, folder: Path, stack: ExitStack) -> Place:
    return Place("memory", transactional, "memory://", "memory://")


def _sqlite(transactional: bool, folder: Path, stack: ExitStack) -> Place:
    path = folder / "records.db"
    url = f"sqlite:///{path}"
    connect(url).migrate()
    lock = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    stack.callback(lock.close)

    def down() -> None:
        lock.execute("BEGIN EXCLUSIVE")

    def up() -> None:
        if lock.in_transaction:
            lock.execute("ROLLBACK")

    patient = f"{url}?busy={5 * BUSY if transactional else BUSY}s"
    settings = {"NAME": str(path), "OPTIONS": {"timeout": 5 * BUSY}}
    return Place("sqlite", transactional, patient, url, settings, down=down, up=up)


def _behind_a_doorway(kind: str, transactional: bool, url: str, stack: ExitStack) -> Place:
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    doorway = Doorway(parts.hostname, parts.port)
    stack.callback(doorway.down)
    behind = parts._replace(netloc=parts.netloc.replace(str(parts.port), str(doorway.port))).geturl()
    settings = {"HOST": "127.0.0.1", "PORT": str(doorway.port)}
    return Place(kind, transactional, behind, url, settings, down=doorway.down, up=doorway.up)


def _postgresql(transactional: bool, folder: Path, stack: ExitStack) -> Place:
    url = os.environ["RETRYSAFE_TEST_POSTGRESQL"]
    connect(url).migrate()
    return _behind_a_doorway("postgresql", transactional, url, stack)


def _redis(transactional: bool, folder: Path, stack: ExitStack) -> Place:
    return _behind_a_doorway("redis", transactional, redis_url(), stack)


_OPENERS = {"memory": _memory, "sqlite": _sqlite, "postgresql": _postgresql, "redis": _redis}
