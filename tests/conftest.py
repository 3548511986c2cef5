"""Services: a test that needs one is skipped with the reason when it is absent, and fails in CI."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from retrysafe.stores.dynamodb import DynamodbStore
from retrysafe.stores.memory import MemoryStore
from retrysafe.stores.postgresql import PostgresqlStore
from retrysafe.stores.redis import RedisStore
from retrysafe.stores.sqlite import SqliteStore
from tests.stores.harnesses import HARNESSES, AnyHarness, drop_dynamodb_table

POSTGRESQL = "RETRYSAFE_TEST_POSTGRESQL"
OWN_DATABASE = pytest.StashKey[tuple[str, str]]()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Give every run, and every worker of a run, a PostgreSQL database of its own."""
    server = os.environ.get(POSTGRESQL)
    if server is None:
        return
    import psycopg

    name = f"retrysafe_test_{os.getpid()}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)".encode())
        connection.execute(f"CREATE DATABASE {name}".encode())
    session.config.stash[OWN_DATABASE] = (server, name)
    os.environ[POSTGRESQL] = urlsplit(server)._replace(path=f"/{name}").geturl()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Drop it."""
    server, name = session.config.stash.get(OWN_DATABASE, ("", ""))
    if server:
        import psycopg

        os.environ[POSTGRESQL] = server
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
    if "boto3" in sys.modules and "RETRYSAFE_TEST_DYNAMODB" in os.environ:
        drop_dynamodb_table()


def require(service: str) -> None:
    """Skip the test when the service is absent; in CI an absent service is a failure."""
    variable = f"RETRYSAFE_TEST_{service.upper()}"
    if variable in os.environ:
        return
    reason = f"no {service}: {variable} is not set; run scripts/services start {service}"
    if os.environ.get("RETRYSAFE_REQUIRE_SERVICES"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture
def postgresql() -> str:
    """The URL of the test PostgreSQL."""
    require("postgresql")
    return os.environ["RETRYSAFE_TEST_POSTGRESQL"]


@pytest.fixture(params=HARNESSES)
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AnyHarness]:
    """Every store behind every executor."""
    service, make = HARNESSES[request.param]
    if service is not None:
        require(service)
    made = make(tmp_path)
    yield made
    made.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say at the end what each store promises, and how much was skipped and why, so that no skip goes unseen."""
    for store in (MemoryStore, SqliteStore, PostgresqlStore, RedisStore, DynamodbStore):
        known = store.capabilities
        terminalreporter.write_line(
            f"{known.name}: transactions={known.transactions} waits_in_transaction={known.waits_in_transaction}"
        )
    reasons: dict[str, int] = {}
    for report in terminalreporter.stats.get("skipped", []):
        reason = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reasons[reason] = reasons.get(reason, 0) + 1
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(f"{count} skipped: {reason}")
