"""Fixtures of the fault tests."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from retrysafe import Boundary
from retrysafe.backends.registry import connect
from tests.conftest import absent, require
from tests.faults.helpers import (
    Bank,
    Proxy,
    Told,
    business_table,
    driven,
    unique,
)
from tests.faults.http_proxy import HttpProxy
from tests.faults.servers import (
    Cluster,
    MariaDB,
    PgBouncer,
    mariadb_program,
    pgbouncer_program,
    postgresql_programs,
)
from tests.stores.harnesses.dynamodb import dynamodb_endpoint, dynamodb_url
from tests.stores.harnesses.redis import redis_url

Making = Callable[..., Boundary]


@pytest.fixture(scope="session")
def migrated() -> str:
    """The URL of the shared PostgreSQL, with our tables in it."""
    require("postgresql")
    url = os.environ["RETRYSAFE_TEST_POSTGRESQL"]
    backend = connect(url)
    backend.migrate()
    backend.close()
    return url


@pytest.fixture(scope="session")
def dynamodb() -> str:
    """The URL of a table of this process in the test DynamoDB."""
    require("dynamodb")
    backend = connect(dynamodb_url())
    backend.migrate()
    backend.close()
    return dynamodb_url()


@pytest.fixture
def http_proxy(dynamodb: str) -> Iterator[HttpProxy]:
    """A proxy before the test DynamoDB that loses, delays and refuses."""
    made = HttpProxy(dynamodb_endpoint())
    yield made
    made.close()


@pytest.fixture(scope="session")
def mysql_migrated() -> str:
    """The URL of the shared MariaDB, with our tables in it."""
    require("mysql")
    url = os.environ["RETRYSAFE_TEST_MYSQL"]
    backend = connect(url)
    backend.migrate()
    backend.close()
    return url


def server_of(library: str, request: pytest.FixtureRequest) -> str:
    """The URL for a client library, on the migrated server that it is for."""
    if library == "dynamodb":
        return str(request.getfixturevalue(library))
    if library in ("pymysql", "asyncmy"):
        return driven(request.getfixturevalue("mysql_migrated"), library)
    if library.startswith("redis"):
        require(library)
        return redis_url(library.removeprefix("redis").replace("-", "_").upper())
    return driven(request.getfixturevalue("migrated"), library)


@pytest.fixture
def make(told: Told) -> Iterator[Making]:
    """Makes boundaries with names of their own, and closes them for sync code at the end."""
    made: list[Boundary] = []

    def one(store: Any, **options: Any) -> Boundary:
        boundary = Boundary(options.pop("name", None) or unique(), store=store, observers=[told], **options)
        made.append(boundary)
        return boundary

    yield one
    for boundary in made:
        boundary.close()


@pytest.fixture
def told() -> Told:
    """The observer of every boundary that `make` makes."""
    return Told()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The URL of a SQLite file of this test's own."""
    return f"sqlite:///{tmp_path}/records.db"


@pytest.fixture
def bank(tmp_path: Path) -> Bank:
    """An external ledger of this test's own."""
    return Bank(tmp_path / "bank.db")


@pytest.fixture
def table(migrated: str) -> Iterator[str]:
    """A business table of this test's own in the shared PostgreSQL."""
    with business_table(migrated) as name:
        yield name


@pytest.fixture
def proxy(migrated: str) -> Iterator[Proxy]:
    """A cutting proxy before the shared PostgreSQL."""
    made = Proxy(migrated)
    yield made
    made.close()


@pytest.fixture(scope="session")
def own_server() -> Iterator[Cluster]:
    """A PostgreSQL server that tests may kill."""
    programs = postgresql_programs()
    if programs is None or (os.geteuid() != 0 and os.environ.get("USER") == "root"):
        absent("no PostgreSQL server programs under /usr/lib/postgresql")
    server = Cluster(programs)
    yield server
    server.close()


@contextmanager
def own_primary() -> Iterator[Cluster]:
    """A PostgreSQL server with our tables in it."""
    programs = postgresql_programs()
    if programs is None or (os.geteuid() != 0 and os.environ.get("USER") == "root"):
        absent("no PostgreSQL server programs under /usr/lib/postgresql")
    server = Cluster(programs)
    try:
        backend = connect(server.url)
        backend.migrate()
        backend.close()
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def pgbouncer(migrated: str) -> Iterator[PgBouncer]:
    """A PgBouncer in transaction mode before the shared PostgreSQL."""
    program = pgbouncer_program()
    if program is None:
        absent("no PgBouncer; run scripts/services install postgresql")
    server = PgBouncer(program, migrated)
    yield server
    server.close()


@pytest.fixture(scope="session")
def own_mariadb() -> Iterator[MariaDB]:
    """A MariaDB server that tests may kill."""
    program = mariadb_program()
    if program is None:
        absent("no MariaDB server program")
    server = MariaDB(program)
    yield server
    server.close()


@pytest.fixture
def loop() -> Iterator[asyncio.Runner]:
    """An event loop for tests that drive it by hand."""
    with asyncio.Runner() as runner:
        yield runner
