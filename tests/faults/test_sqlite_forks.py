"""SQLite files over a fork: what a child commits stays, and its parent's transaction is left alone. FAULTS 87."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from retrysafe import Boundary
from retrysafe.backends.sql.drivers import sqlite_connections
from retrysafe.errors import ConfigurationError
from retrysafe.http.client import Journal
from retrysafe.messaging.brokers.sqlite import SqlitePublisher, declare
from retrysafe.protocol.messages import Envelope, PublishStatus

pytestmark = pytest.mark.fault(87)

REFUSED = 3
EXITS_IN_A_TRANSACTION = """
import os, sqlite3, sys
from retrysafe.backends.sql.drivers.sqlite_connections import Connections

def connect():
    connection = sqlite3.connect(sys.argv[1], isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA cache_size = 2")  # so that the transaction has written to the log before its commit
    return connection

connections = Connections(sys.argv[1], connect)
def fill(connection):
    connection.executemany("INSERT INTO t (x) VALUES (?)", [("x" * 500,)] * 3000)

with connections.lent() as connection:
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
        """Whether it is there."""
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
def test_what_a_child_commits_stays_when_its_parent_closes_the_file(
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
    assert os.read(told, 1)
    user.close()
    with closing(sqlite3.connect(path)) as other:  # whoever closes the file last removes its log
        other.execute("SELECT * FROM sqlite_master").fetchall()
    os.write(go_on, b".")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for end in (told, tell, waits, go_on):
        os.close(end)
    later = use(path)
    assert [later.has(name) for name in ("before", "first", "second")] == [True, True, True]
    later.close()


def refused(boundary: Boundary) -> Callable[[], int]:
    """What a child is told when it claims."""

    def child() -> int:
        try:
            with boundary.claim("of the child"):
                return 0
        except ConfigurationError as error:
            return REFUSED if "forked while its parent used the file" in str(error) else 1

    return child


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
def test_a_child_is_refused_a_file_that_its_parent_was_using(
    beside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_connections, "PATIENCE", 0.0)
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


def test_a_fork_waits_for_the_transactions_of_other_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    boundary = Boundary("shop", store=f"sqlite:///{tmp_path}/shop.db", effects="transactional", observers=())
    is_open, may_end = threading.Event(), threading.Event()

    def work() -> None:
        with boundary.claim("of the parent") as claim:
            claim.result = 1
            is_open.set()
            may_end.wait(60)

    def waited(_: float) -> None:
        may_end.set()
        thread.join()

    thread = threading.Thread(target=work)
    thread.start()
    assert is_open.wait(60)
    monkeypatch.setattr(sqlite_connections, "time", SimpleNamespace(monotonic=time.monotonic, sleep=waited))
    assert forked(refused(boundary)) == 0
    assert not thread.is_alive()
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
