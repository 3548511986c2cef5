"""SQLite files over a fork: what a child commits stays, and its parent's transaction is left alone. FAULTS 87."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy

from retrysafe import Boundary, forks
from retrysafe.backends.sql.drivers import sqlite_connections
from retrysafe.backends.sql.drivers.sqlite import SqliteFile
from retrysafe.backends.sql.drivers.sqlite_async import AsyncSqliteClient
from retrysafe.backends.sql.drivers.sqlite_connections import Connections
from retrysafe.backends.sql.drivers.sqlite_kept import Connection, opened
from retrysafe.errors import ConfigurationError
from retrysafe.http.client import Journal
from retrysafe.messaging.brokers.sqlite import SqlitePublisher, declare
from retrysafe.protocol.messages import Envelope, PublishStatus
from tests.faults.helpers import begin, until

pytestmark = [pytest.mark.slow, pytest.mark.fault(87)]

REFUSED = 3
ON_A_BUSY_DISK = 10.0
"""Seconds in which a use comes to its end on a busy machine, too."""
EXITS_IN_A_TRANSACTION = """
import os, sys
from retrysafe.backends.sql.drivers.sqlite_connections import Connections
from retrysafe.backends.sql.drivers.sqlite_kept import opened

def prepare(connection):
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA cache_size = 2")  # so that the transaction has written to the log before its commit

connections = Connections(sys.argv[1], lambda: opened(sys.argv[1], 5.0, prepare))
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


FORKS_BESIDE_A_LOOP = """
import asyncio, itertools, os, sys, threading
from retrysafe import Boundary, forks

boundary = Boundary("shop", store=f"sqlite:///{sys.argv[1]}", effects="transactional", observers=())
works, may_end, forks.PATIENCE = threading.Event(), threading.Event(), 10.0

async def work():
    for number in itertools.count():
        async with boundary.claim(str(number)) as claim:
            for _ in range(20):
                await asyncio.to_thread(works.set)
            claim.result = 1
        if may_end.is_set():
            return await boundary.aclose()

thread = threading.Thread(target=asyncio.run, args=[work()])
thread.start()
works.wait()
codes = []
for number in range(5):
    if (child := os.fork()) == 0:
        code = 1
        try:
            with boundary.claim("of a child"):
                code = 0
        finally:
            os._exit(code)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
may_end.set()
thread.join()
print(codes)
"""


FORKS_BESIDE_A_FIRST_USE = """
import os, signal, sys, threading, time, types
from retrysafe import Boundary, forks
from retrysafe.backends.backend import Backend

sys.path.insert(0, sys.argv[1])
check, begun, may_end = Backend.check, threading.Event(), threading.Event()
forks.PATIENCE = 10.0
forks.time = types.SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: may_end.set())  # while a fork waits

def importing(self, client):
    begun.set()
    import slowly_imported
    check(self, client)

Backend.check = importing
boundary = Boundary("shop", store=f"sqlite:///{sys.argv[1]}/shop.db", observers=())

def claim(name):
    with boundary.claim(name) as claim:
        claim.result = 1

thread = threading.Thread(target=claim, args=["of a thread"])
thread.start()
begun.wait()
while "slowly_imported" not in sys.modules:
    pass
if (child := os.fork()) == 0:
    signal.alarm(20)
    code = 1
    try:
        claim("of a child")
        code = 0
    finally:
        os._exit(code)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
may_end.set()
thread.join()
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
    os.close(tell)
    assert os.read(told, 1)
    user.close()
    with closing(sqlite3.connect(path)) as other:  # whoever closes the file last removes its log
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


def test_a_fork_finds_its_moment_beside_threads_that_claim_without_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forks, "PATIENCE", ON_A_BUSY_DISK)
    boundary = Boundary("shop", store=f"sqlite:///{tmp_path}/shop.db", observers=())
    may_end = threading.Event()

    def work(thread: int) -> None:
        for number in itertools.count():
            if may_end.is_set():
                return
            with boundary.claim(f"{thread}-{number}") as claim:
                claim.result = 1

    threads = [threading.Thread(target=work, args=[number]) for number in range(2)]
    for thread in threads:
        thread.start()
    codes = [forked(refused(boundary)) for _ in range(5)]
    may_end.set()
    for thread in threads:
        thread.join()
    assert codes == [0] * 5
    boundary.close()


def test_a_fork_finds_its_moment_beside_a_busy_event_loop(tmp_path: Path) -> None:
    """Whose executor needs a lock that concurrent.futures holds during a fork."""
    done = subprocess.run(
        [sys.executable, "-c", FORKS_BESIDE_A_LOOP, str(tmp_path / "shop.db")],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "[0, 0, 0, 0, 0]\n"), done.stderr


def test_children_of_threads_that_fork_at_once_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One closes its connections while the other forks: what is being closed is in use."""
    monkeypatch.setattr(forks, "PATIENCE", ON_A_BUSY_DISK)
    boundary = Boundary("shop", store=f"sqlite:///{tmp_path}/shop.db", observers=())
    together, codes = threading.Barrier(2), dict[str, int]()

    def claim(name: str) -> Callable[[], int]:
        def child() -> int:
            with boundary.claim(name) as claim:
                claim.result = 1
            return 0

        return child

    def work(thread: int) -> None:
        for number in range(15):
            together.wait(60)
            codes[f"{thread}-{number}"] = forked(claim(f"{thread}-{number}"))
            with boundary.claim(f"beside {thread}-{number}") as beside:
                beside.result = 1

    threads = [threading.Thread(target=work, args=[number]) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(codes.values()) == {0}, codes
    for name in codes:
        with boundary.claim(name) as claimed:
            assert claimed.replayed, name
    boundary.close()


@contextmanager
def closing_slowly(
    path: Path, close: Callable[[list[Connections[Connection]]], None]
) -> Iterator[tuple[Connections[Connection], Callable[[], None]]]:
    """While a thread closes a connection: others to the file, and what ends it."""
    is_closing, may_close = threading.Event(), threading.Event()

    class Slow(Connection):
        def close(self) -> None:
            is_closing.set()
            may_close.wait(60)
            super().close()

    def connect() -> Connection:
        return sqlite3.connect(path, factory=Slow, isolation_level=None, check_same_thread=False)

    def end() -> None:
        may_close.set()
        thread.join()

    users = [Connections[Connection](path, connect)]
    with users[0].lent() as connection:
        connection.execute("CREATE TABLE t (x)")
    del connection
    thread = threading.Thread(target=close, args=[users])
    thread.start()
    assert is_closing.wait(10)
    yield Connections(path, lambda: opened(path, 5.0)), end
    end()


def closed(users: list[Connections[Connection]]) -> None:
    """As a boundary does that is closed."""
    users[0].close()


def dropped(users: list[Connections[Connection]]) -> None:
    """As a publisher or boundary that nobody has closed."""
    del users[0]


def left_to_the_collector(users: list[Connections[Connection]]) -> None:
    """By what refers to itself."""
    users[0].itself = users[0]  # type: ignore[attr-defined]
    del users[0]
    gc.collect()


def cut_off(users: list[Connections[Connection]]) -> None:
    """In use, by an exception of a signal handler."""
    users[0].lent().__enter__()


@pytest.mark.parametrize("close", [closed, dropped, left_to_the_collector, cut_off])
def test_a_child_that_was_forked_while_a_connection_was_being_closed_is_refused(
    close: Callable[[list[Connections[Connection]]], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forks, "PATIENCE", 0.0)
    with (
        closing_slowly(tmp_path / "shop.db", close) as (others, _),
        pytest.raises(ConfigurationError, match="forked while its parent used the file"),
    ):
        _in_a_child(lambda: others.lent().__enter__())


@pytest.mark.parametrize("close", [closed, dropped, left_to_the_collector, cut_off])
def test_a_fork_waits_for_a_connection_that_is_being_closed(
    close: Callable[[list[Connections[Connection]]], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing_slowly(tmp_path / "shop.db", close) as (others, end):
        monkeypatch.setattr(forks, "time", SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: end()))
        assert forked(lambda: _opens(others)) == 0


@pytest.mark.parametrize("of", ["the same file", "another file"])
def test_a_connection_that_cannot_be_closed_leaves_no_other_open(
    of: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of them comes first."""
    fails, told = threading.Event(), list[Any]()
    monkeypatch.setattr(sys, "unraisablehook", told.append)

    class Failing(Connection):
        def close(self) -> None:
            super().close()
            if fails.is_set():
                raise sqlite3.OperationalError("cannot close")

    def on(name: str) -> Connections[Connection]:
        path = tmp_path / name
        return Connections(path, lambda: sqlite3.connect(path, factory=Failing, check_same_thread=False))

    users = [on("0.db")] if of == "the same file" else [on(f"{number}.db") for number in range(5)]
    for user in users:
        with user.lent() as one, user.lent() as another:
            assert one is not another
    fails.set()
    assert forked(lambda: sum(user.path in sqlite_connections._in_use for user in users)) == 0
    assert len(told) == 1


def test_queues_that_another_thread_declares_are_no_concern_of_a_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is closed by the thread that forks."""
    told: list[Any] = []
    has_declared, may_close, close = threading.Event(), threading.Event(), Connections.close

    def closed_later(self: Connections[Connection]) -> None:
        has_declared.set()
        may_close.wait(60)
        close(self)

    monkeypatch.setattr(Connections, "close", closed_later)
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    thread = threading.Thread(target=declare, args=[tmp_path / "broker.db", [("orders", "stock")]])
    thread.start()
    assert has_declared.wait(60)
    assert forked(lambda: len(sqlite_connections._in_use)) == 0
    may_close.set()
    thread.join()
    assert told == []


def test_a_child_waits_for_no_import_that_another_thread_had_begun(tmp_path: Path) -> None:
    """As a client of a store does, when it is used for the first time."""
    (tmp_path / "slowly_imported.py").write_text("import __main__\nbegun = True\n__main__.may_end.wait(60)\n")
    done = subprocess.run(
        [sys.executable, "-c", FORKS_BESIDE_A_FIRST_USE, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


def test_who_is_in_a_transaction_comes_to_its_end_beside_a_fork(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although it uses another connection meanwhile, as every use does that would begin then."""
    monkeypatch.setattr(forks, "PATIENCE", 60.0)
    boundary = Boundary("shop", store=f"sqlite:///{tmp_path}/shop.db", effects="transactional", observers=())
    other = Boundary("other", store=f"sqlite:///{tmp_path}/other.db", observers=())
    is_open, may_go_on, has_ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        with boundary.claim("of the parent") as claim:
            is_open.set()
            may_go_on.wait(60)
            with other.claim("inside") as inside:
                inside.result = 1
            claim.result = 1
        has_ended.set()

    def waited(_: float) -> None:
        may_go_on.set()
        assert has_ended.wait(20)

    thread = threading.Thread(target=work)
    thread.start()
    assert is_open.wait(60)
    monkeypatch.setattr(forks, "time", SimpleNamespace(monotonic=time.monotonic, sleep=waited))
    assert forked(refused(boundary)) == 0
    thread.join()
    assert has_ended.is_set()
    boundary.close()
    other.close()


def test_a_use_that_an_exception_cut_off_before_it_began_is_none(tmp_path: Path) -> None:
    """What it was told by raised in the garbage collector, which printed it."""
    connections = Connections(tmp_path / "shop.db", lambda: opened(tmp_path / "shop.db", 5.0))
    use = connections.lent()
    del use
    gc.collect()
    assert not connections.pool.lent


def test_a_use_that_an_exception_cut_off_is_none(tmp_path: Path) -> None:
    """A signal handler's exception may come between two steps, and then nobody gives the connection back."""
    path = tmp_path / "shop.db"
    connections = Connections(path, lambda: opened(path, 5.0))
    use = connections.lent()
    use.__enter__().execute("BEGIN IMMEDIATE")
    assert forks.begun() == [use]
    del use
    assert forks.begun() == []
    assert _opens(connections) == 0
    assert forked(lambda: _opens(connections)) == 0


def _opens(connections: Connections[Connection]) -> int:
    with connections.lent() as connection:
        connection.execute("BEGIN IMMEDIATE")
        return int(connection.execute("SELECT 0").fetchone()[0])


def test_a_fork_waits_no_longer_for_a_journal_that_another_process_keeps_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forks, "PATIENCE", 0.0)
    path = tmp_path / "journal.db"
    journal = Journal(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        thread = threading.Thread(target=journal.pending)
        thread.start()
        while not forks.begun():
            time.sleep(0)
        with pytest.raises(ConfigurationError, match="forked while its parent used the file"):
            _in_a_child(journal.pending)
    thread.join()
    journal.close()


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
    """What a child is told when it claims."""

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
    """What a child is told when it claims in a transaction of its own."""

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


async def test_a_fork_on_an_event_loop_waits_for_the_thread_that_works_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it does is in a use of the loop's own thread, which a fork there passed by: a child was forked while SQLite
    was at work, and waited for its locks for ever."""
    monkeypatch.setattr(forks, "PATIENCE", 60.0)
    client, working, steps = AsyncSqliteClient(SqliteFile(str(tmp_path / "shop.db"))), threading.Event(), list[str]()

    def behind() -> None:
        working.set()
        until(lambda: forks._forking)
        working.clear()
        working.wait(0.1)
        steps.append("begun")

    using = asyncio.ensure_future(begin(client, behind))
    await asyncio.to_thread(working.wait, 60)
    assert forked(lambda: 0) == 0
    steps.append("forked")
    await using
    await client.aclose()
    assert steps == ["begun", "forked"]


@pytest.mark.parametrize("beside", [True, False], ids=["another thread", "the thread that forks"])
def test_a_child_is_refused_a_file_that_its_parent_was_using(
    beside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forks, "PATIENCE", 0.0)
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
    monkeypatch.setattr(forks, "time", SimpleNamespace(monotonic=time.monotonic, sleep=waited))
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
