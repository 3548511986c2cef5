"""SQLite files over a fork: what a child commits stays, and its parent's transaction is left alone. FAULTS 87."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy

from retrysafe import Boundary
from retrysafe.errors import ConfigurationError
from retrysafe.http.client import Journal
from retrysafe.messaging.brokers.sqlite import SqlitePublisher, declare
from retrysafe.protocol.messages import Envelope, PublishStatus

pytestmark = [pytest.mark.slow, pytest.mark.fault(87)]

REFUSED = 3
ON_A_BUSY_DISK = 10.0
"""Seconds in which a use comes to its end on a busy machine, too."""
EXITS_IN_A_TRANSACTION = """
import os, sys
from retrysafe.backends.sql.drivers.sqlite_pool import Borrowed, SqlitePool
from retrysafe.backends.sql.drivers.sqlite_connection import open_connection

def prepare(connection):
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA cache_size = 2")  # so that the transaction has written to the log before its commit

connections = SqlitePool(sys.argv[1], lambda: open_connection(sys.argv[1], 5.0, prepare))
def fill(connection):
    connection.executemany("INSERT INTO t (x) VALUES (?)", [("x" * 500,)] * 3000)

with Borrowed(connections) as connection:
    connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, x TEXT)")
    connection.execute("BEGIN IMMEDIATE")
    fill(connection)
    child = os.fork()
    if child == 0:
        del connection
    else:
        os.waitpid(child, 0)
        fill(connection)
        connection.execute("COMMIT")
        print(connection.execute("SELECT count(*) FROM t").fetchone())
"""


@contextmanager
def sqlite_connection(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection of the caller's."""
    with closing(sqlite3.connect(path)) as connection:
        yield connection


@contextmanager
def connection_with_a_row_factory(path: Path) -> Iterator[sqlite3.Connection]:
    """One whose rows are no sequences of values."""
    with sqlite_connection(path) as connection:
        connection.row_factory = lambda cursor, row: {
            name[0]: value for name, value in zip(cursor.description, row, strict=True)
        }
        yield connection


@contextmanager
def sqlalchemy_connection(path: Path) -> Iterator[sqlalchemy.Connection]:
    """One of an engine of the caller's."""
    engine = sqlalchemy.create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        yield connection
    engine.dispose()


class Claims:
    """A boundary of sync code."""

    def __init__(self, path: Path) -> None:
        self._boundary = Boundary("shop", store=f"sqlite:///{path}", observers=())

    def write(self, name: str) -> None:
        """Claim a key; an exception, if it is there already."""
        with self._boundary.claim(name) as claim:
            assert not claim.replayed
            claim.result = 1

    def has(self, name: str) -> bool:
        """Tell whether it is there."""
        with self._boundary.claim(name) as claim:
            return claim.replayed

    def close(self) -> None:
        """Close the file."""
        self._boundary.close()


class ClaimsOfTasks(Claims):
    """A boundary of async code, which each process uses in a loop of its own."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._runner, self._process = asyncio.Runner(), os.getpid()

    def write(self, name: str) -> None:
        if self._process != os.getpid():
            asyncio._set_running_loop(None)
            self._runner, self._process = asyncio.Runner(), os.getpid()
        self._runner.run(self._write(name))

    async def _write(self, name: str) -> None:
        async with self._boundary.claim(name) as claim:
            assert not claim.replayed
            claim.result = 1

    def close(self) -> None:
        self._runner.run(self._boundary.aclose())
        self._runner.close()


class Messages:
    """A publisher of the SQLite broker."""

    def __init__(self, path: Path) -> None:
        self._path = path
        declare(path, [("orders", "stock")])
        self._publisher = SqlitePublisher(path)

    def write(self, name: str) -> None:
        envelope = Envelope(name, "orders", None, "orders.v1", "/shop", 1, {}, b"{}", "application/json")
        (result,) = self._publisher.publish([envelope])
        assert result.status is PublishStatus.ACKED

    def has(self, name: str) -> bool:
        with closing(sqlite3.connect(self._path)) as connection:
            sql = "SELECT count(*) FROM deliveries WHERE attributes LIKE ?"
            return bool(connection.execute(sql, [f'%"{name}"%']).fetchone() == (1,))

    def close(self) -> None:
        self._publisher.close()


class Journalled:
    """The journal of a client."""

    def __init__(self, path: Path) -> None:
        self._journal = Journal(path)

    def write(self, name: str) -> None:
        with self._journal._transaction() as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS written (name)")
            connection.execute("INSERT INTO written VALUES (?)", [name])

    def has(self, name: str) -> bool:
        with self._journal._transaction() as connection:
            return connection.execute("SELECT count(*) FROM written WHERE name = ?", [name]).fetchone() == (1,)

    def close(self) -> None:
        self._journal.close()


@pytest.mark.parametrize("use", [Claims, ClaimsOfTasks, Messages, Journalled])
def test_commits_of_a_child_stay_when_its_parent_closes_the_file(
    use: type[Claims | Messages | Journalled], tmp_path: Path
) -> None:
    path = tmp_path / "shop.db"
    user = use(path)
    user.write("before")
    (told, tell), (waits, go_on) = os.pipe(), os.pipe()
    if (child := os.fork()) == 0:
        code = 1
        try:
            user.write("first")
            os.write(tell, b".")
            os.read(waits, 1)
            user.write("second")
            code = 0
        finally:
            os._exit(code)
    os.close(tell)
    assert os.read(told, 1)
    user.close()
    with closing(sqlite3.connect(path)) as other:  # the last to close the file removes its log
        other.execute("SELECT * FROM sqlite_master").fetchall()
    os.write(go_on, b".")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for end in (told, waits, go_on):
        os.close(end)
    later = use(path)
    assert [later.has(name) for name in ("before", "first", "second")] == [True, True, True]
    later.close()


@pytest.mark.parametrize("opened", [sqlite_connection, sqlalchemy_connection])
def test_a_child_may_use_a_connection_of_its_own_before_any_of_ours(
    opened: Callable[[Path], AbstractContextManager[Any]], tmp_path: Path
) -> None:
    """Its parent then closes the file, and so does a process that comes later."""
    path = tmp_path / "shop.db"
    boundary = Boundary("shop", store=f"sqlite:///{path}", effects="transactional", observers=())
    with boundary.claim("before") as claim:
        claim.result = 1
    (told, tell), (waits, go_on) = os.pipe(), os.pipe()
    if (child := os.fork()) == 0:
        code = 1
        try:
            with opened(path) as connection:
                _claim_in(connection, boundary, "first")
                os.write(tell, b".")
                os.read(waits, 1)
                _claim_in(connection, boundary, "second")
            code = 0
        finally:
            os._exit(code)
    os.close(tell)
    assert os.read(told, 1)
    boundary.close()
    with closing(sqlite3.connect(path)) as other:
        other.execute("SELECT * FROM sqlite_master").fetchall()
    os.write(go_on, b".")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for end in (told, waits, go_on):
        os.close(end)
    later = Boundary("shop", store=f"sqlite:///{path}", effects="transactional", observers=())
    for name in ("before", "first", "second"):
        with later.claim(name) as claim:
            assert claim.replayed, name
    later.close()


def _claim_in(connection: Any, boundary: Boundary, name: str) -> None:
    with boundary.claim(name, tx=connection) as claim:
        assert not claim.replayed
        claim.result = 1
    connection.commit()


def _in_a_child(work: Callable[[], object]) -> None:
    """Raises what it raised there, as far as it is a `ConfigurationError`."""
    told, tell = os.pipe()
    if os.fork() == 0:
        try:
            work()
        except ConfigurationError as error:
            os.write(tell, str(error).encode())
        finally:
            os._exit(0)
    os.close(tell)
    with os.fdopen(told, encoding="utf-8") as message:
        if text := message.read():
            raise ConfigurationError(text)


def refused(boundary: Boundary) -> Callable[[], int]:
    """Return a child's claim, which is refused."""

    def child() -> int:
        try:
            with boundary.claim("of the child"):
                return 0
        except ConfigurationError as error:
            return REFUSED if "forked while its parent used the file" in str(error) else 1

    return child


def refused_in(
    opened: Callable[[Path], AbstractContextManager[Any]], path: Path, boundary: Boundary
) -> Callable[[], int]:
    """Return a child's claim in a transaction of its own, which is refused."""

    def child() -> int:
        try:
            with opened(path) as connection, boundary.claim("of the child", tx=connection):
                return 0
        except ConfigurationError as error:
            return REFUSED if "forked while its parent used the file" in str(error) else 1

    return child


@pytest.mark.parametrize("opened", [sqlite_connection, connection_with_a_row_factory, sqlalchemy_connection])
def test_a_connection_of_its_own_does_not_help_a_child_that_is_refused(
    opened: Callable[[Path], AbstractContextManager[Any]], tmp_path: Path
) -> None:
    path = tmp_path / "shop.db"
    boundary = Boundary("shop", store=f"sqlite:///{path}", effects="transactional", observers=())
    with boundary.claim("of the parent") as claim:
        claim.result = 1
        assert forked(refused_in(opened, path, boundary)) == REFUSED
    boundary.close()


def test_an_engine_does_not_help_a_child_that_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    boundary = Boundary("shop", store=f"sqlite:///{path}", effects="transactional", observers=())
    leased = Boundary("leased", store=sqlalchemy.create_engine(f"sqlite:///{path}"), observers=())
    with boundary.claim("of the parent") as claim:
        claim.result = 1
        assert forked(refused(leased)) == REFUSED
    boundary.close()


def test_a_child_that_is_refused_declares_no_queues(tmp_path: Path) -> None:
    path = tmp_path / "broker.db"
    declare(path, [("orders", "stock")])
    publisher = SqlitePublisher(path)
    with (
        publisher._file.transaction(time.monotonic() + 10),
        pytest.raises(ConfigurationError, match="forked while its parent used the file"),
    ):
        _in_a_child(lambda: declare(path, [("orders", "mail")]))
    publisher.close()


def forked(work: Callable[[], int]) -> int:
    """The exit code of a child."""
    if (child := os.fork()) == 0:
        code = 1
        try:
            code = work()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("beside", [True, False], ids=["another thread", "the thread that forks"])
def test_a_child_is_refused_a_file_that_its_parent_was_using(beside: bool, tmp_path: Path) -> None:
    boundary = Boundary("shop", store=f"sqlite:///{tmp_path}/shop.db", effects="transactional", observers=())
    is_open, may_end = threading.Event(), threading.Event()
    codes: list[int] = []

    def work() -> None:
        with boundary.claim("of the parent") as claim:
            claim.result = 1
            if not beside:
                codes.append(forked(refused(boundary)))
            is_open.set()
            may_end.wait(60)

    thread = threading.Thread(target=work)
    thread.start()
    assert is_open.wait(60)
    if beside:
        codes.append(forked(refused(boundary)))
    may_end.set()
    thread.join()
    assert codes == [REFUSED]
    with boundary.claim("of the parent") as claim:
        assert claim.replayed
    boundary.close()


def test_a_child_that_ends_leaves_the_transaction_that_it_was_forked_in(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EXITS_IN_A_TRANSACTION, str(tmp_path / "shop.db")],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "(6000,)\n"), done.stderr
