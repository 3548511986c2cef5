"""TaskState for handlers that are crashed: a database of its own for each run, and an account at a bank."""

from __future__ import annotations

import gc
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from retrysafe.backends.migrations import forward, load
from retrysafe.backends.registry import connect as backend_of
from retrysafe.testing.agent_tasks import TaskState, running_bank
from retrysafe.testing.agent_tasks.bank import charges
from tests.conftest import require
from tests.crashing.planted import connect
from tests.faults.helpers import unique

TABLES = ("CREATE TABLE charges (id TEXT, amount INT)", "CREATE TABLE done (id TEXT PRIMARY KEY)")


def make_database(url: str) -> None:
    """A SQLite file with the tables of the shop and of retrysafe."""
    backend = backend_of(url)
    backend.migrate()
    backend.close()
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as db, db:
        for sql in TABLES:
            db.execute(sql)


def make_schema(name: str) -> str:
    """The URL of a new PostgreSQL schema with these tables. Nobody minds if it is lost when the server crashes."""
    import psycopg

    url = os.environ["RETRYSAFE_TEST_POSTGRESQL"]
    ours = [sql for migration in load("postgresql") for sql in forward("postgresql", migration.version)]
    start = (f"CREATE SCHEMA {name}", f"SET LOCAL search_path TO {name}", "SET LOCAL synchronous_commit TO off")
    with psycopg.connect(url) as db:
        db.execute(";".join((*start, *ours, *TABLES)).encode())
    return f"{url}?options=-csearch_path%3D{name}"


_waited_for: set[threading.Thread] = set()


@pytest.fixture(autouse=True)
def alone() -> None:
    """Let threads of earlier tests end that were told to and not waited for: a process that has any is not forked."""
    if _others():
        gc.collect()  # gRPC's poller ends with the last of its objects, which hold each other
    until = time.monotonic() + 5
    for thread in _others():
        thread.join(max(0.0, until - time.monotonic()))
        _waited_for.add(thread)


def _others() -> list[threading.Thread]:
    found = set(threading.enumerate()) - _waited_for - {threading.current_thread()}
    foreign = [thread for thread in found if not isinstance(thread, threading._DummyThread)]
    return [thread for thread in foreign if not thread.name.startswith("retrysafe")]


@pytest.fixture(scope="session")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The URL and the ledger of a bank in a process of its own."""
    with running_bank(tmp_path_factory.mktemp("bank")) as running:
        yield running


class Stage:
    """Makes states, and counts what was charged there.

    A state is made for every point, so making one is cheap: a copy of a file, or one script in one transaction.
    """

    def __init__(self, kind: str, folder: Path, bank: tuple[str, str]) -> None:
        self._kind, self._folder, (self._bank, self.ledger) = kind, folder, bank
        self._prefix = unique("stage")
        if self.is_sqlite:
            make_database(self._url("template"))

    @property
    def is_sqlite(self) -> bool:
        return self._kind == "sqlite"

    def fresh(self) -> TaskState:
        """A new database with the tables of the shop and of retrysafe."""
        name = unique(self._prefix)
        if self.is_sqlite:
            shutil.copyfile(self._folder / "template.db", self._folder / f"{name}.db")
            url = self._url(name)
        else:
            url = make_schema(name)
        return TaskState(url, f"{self._bank}/charges", name)

    def drop_schemas(self) -> None:
        """Remove what was made in PostgreSQL."""
        import psycopg

        with psycopg.connect(os.environ["RETRYSAFE_TEST_POSTGRESQL"], autocommit=True) as db:
            mine = (f"{self._prefix}%",)
            found = db.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE %s", mine).fetchall()
            for (name,) in found:
                db.execute(f"DROP SCHEMA {name} CASCADE".encode())

    def _url(self, name: str) -> str:
        return f"sqlite:///{self._folder}/{name}.db"

    def check(self, state: TaskState) -> None:
        """Exactly one charge, in the database or at the bank."""
        with closing(connect(state)) as db:
            (in_database,) = db.execute("SELECT count(*) FROM charges").fetchone()
        at_bank = charges(self.ledger, state.account)
        assert in_database + at_bank == 1, f"{in_database + at_bank} charges"


@pytest.fixture(params=["sqlite", "postgresql"])
def stage(request: pytest.FixtureRequest, tmp_path: Path, bank: tuple[str, str]) -> Iterator[Stage]:
    """On SQLite, and on PostgreSQL."""
    if request.param == "postgresql":
        require("postgresql")
    made = Stage(request.param, tmp_path, bank)
    yield made
    if request.param == "postgresql":
        made.drop_schemas()
