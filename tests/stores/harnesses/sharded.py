"""Stores that are made of two: files of SQLite, and databases of one PostgreSQL server."""

from __future__ import annotations

from pathlib import Path

from retrysafe.backends.registry import connect
from retrysafe.backends.sharded import sharded
from retrysafe.protocol.records import Sharded
from retrysafe.testing.harness import AsyncHarness, SyncHarness
from tests.stores.harnesses.base import StoreHarness, migrated
from tests.stores.harnesses.sql import postgresql_url

_SECONDS: dict[str, str] = {}
"""The second database of a first one."""


def files(path: Path) -> Sharded:
    return sharded(east=f"sqlite:///{path / 'east.db'}", west=f"sqlite:///{path / 'west.db'}")


def databases(path: Path) -> Sharded:
    """The database of this process's tests, and a second one beside it."""
    url = postgresql_url()
    if url not in _SECONDS:
        _perform(url, f"CREATE DATABASE {_second(url)}")
        _SECONDS[url] = f"{url.rpartition('/')[0]}/{_second(url)}"
    return sharded(east=migrated(url), west=migrated(_SECONDS[url]))


def _finish() -> None:
    for url in _SECONDS:
        _perform(postgresql_url(), f"DROP DATABASE {_second(url)} WITH (FORCE)")


def _second(url: str) -> str:
    return f"{url.rpartition('/')[2]}_shard"


def _perform(url: str, sql: str) -> None:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql.encode())


def before(path: Path) -> Sharded:
    """The map of a move's first deploy: keys are written by the old map."""
    return sharded(**files(path).shards, moving_to=sharded(north=f"sqlite:///{path / 'north.db'}"))


def after(path: Path) -> Sharded:
    """The map of its second one."""
    return sharded(north=f"sqlite:///{path / 'north.db'}", moved_from=files(path))


HARNESS = StoreHarness(
    executors={
        "sharded-sqlite": (None, lambda path: SyncHarness(connect(files(path)))),
        "sharded-sqlite async": (None, lambda path: AsyncHarness(connect(files(path)))),
        "sharded-moving": (None, lambda path: SyncHarness(connect(after(path)))),
        "sharded-moving async": (None, lambda path: AsyncHarness(connect(before(path)))),
        "sharded-postgresql": ("postgresql", lambda path: SyncHarness(connect(databases(path)))),
        "sharded-postgresql async": ("postgresql", lambda path: AsyncHarness(connect(databases(path)))),
    },
    finish=_finish,
)
