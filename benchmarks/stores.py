"""Stores for one contender: new, and gone afterwards."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from benchmarks import by_hand, services
from retrysafe.backends import registry

Store = Callable[[], AbstractContextManager[str]]
"""Lends the URL of a store."""
_databases = itertools.count()


@contextmanager
def memory() -> Iterator[str]:
    """No store at all."""
    yield "memory://"


@contextmanager
def sqlite(synchronous: str) -> Iterator[str]:
    """A new file."""
    with tempfile.TemporaryDirectory() as folder:
        yield f"sqlite:///{Path(folder, 'bench.db')}?synchronous={synchronous}"


def path_of(url: str) -> str:
    """The file of a SQLite store."""
    return url.removeprefix("sqlite:///").partition("?")[0]


@contextmanager
def redis() -> Iterator[str]:
    """The server; boundaries and prefixes are a process's own."""
    yield services.url("redis")


@contextmanager
def database(partitions: int | None = None, service: str = "postgresql") -> Iterator[str]:
    """The URL of a new PostgreSQL database with our schema and the one by hand."""
    import psycopg

    parts = urlsplit(services.url(service))
    name = f"retrysafe_bench_{os.getpid()}_{next(_databases)}"
    url = urlunsplit(parts._replace(path=f"/{name}"))
    with psycopg.connect(services.url(service), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}".encode())
        try:
            with psycopg.connect(url) as connection:
                connection.execute(by_hand.TABLE.format(text="text", bytes="bytea", number="bigint").encode())
            backend = registry.connect(url)
            backend.migrate(partitions)
            backend.close()
            registry.forget(backend)
            yield url
        finally:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@contextmanager
def postgresql(driver: str) -> Iterator[str]:
    """A new database, by the driver "psycopg" or "asyncpg"."""
    with database() as url:
        yield url if driver == "psycopg" else url.replace("postgresql", f"postgresql+{driver}", 1)


FULL, NORMAL = partial(sqlite, "FULL"), partial(sqlite, "NORMAL")
