"""A PostgreSQL database for one row, and the statements that a careful programmer writes by hand."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit, urlunsplit

import psycopg

from benchmarks import by_hand
from retrysafe.backends import registry

VARIABLE = "RETRYSAFE_TEST_POSTGRESQL"
CLIENTS = 16
INSERT = (
    "INSERT INTO by_hand (key, fingerprint, state, attempt, expires) "
    "VALUES ({}, {}, 'running', {}, extract(epoch FROM now()) + 86400) ON CONFLICT (key) DO NOTHING"
)
COMPLETE = "UPDATE by_hand SET state = 'completed', result = {} WHERE key = {} AND attempt = {} AND state = 'running'"
READ = "SELECT fingerprint, result FROM by_hand WHERE key = {} AND state = 'completed'"


@contextmanager
def database(partitions: int | None = None) -> Iterator[str]:
    """The URL of a fresh database with both schemas, dropped afterwards."""
    parts = urlsplit(os.environ[VARIABLE])
    name = f"retrysafe_bench_{os.getpid()}"
    url = urlunsplit(parts._replace(path=f"/{name}"))
    with psycopg.connect(os.environ[VARIABLE], autocommit=True) as admin:
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


def server_version() -> str:
    """The version of the server."""
    with psycopg.connect(os.environ[VARIABLE]) as connection:
        return str(connection.info.parameter_status("server_version"))
