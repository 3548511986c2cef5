"""Harnesses of the conformance suite: every store behind every executor, on real servers."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrysafe.backends.backend import Backend
from retrysafe.backends.memory.client import AsyncMemoryClient, MemoryClient
from retrysafe.backends.memory.store import MemoryStore
from retrysafe.backends.registry import connect, leave
from retrysafe.backends.sql.mysql import MysqlStore
from retrysafe.protocol.requests import Query
from retrysafe.testing.harness import AsyncHarness, SyncHarness
from tests.django.aliases import add_alias, blocking_allowed, remove_alias
from tests.stores.ageing import dynamodb_client
from tests.versions import and_on_other_versions


class FakeClock:
    """Time that passes only when a test says so, and by a microsecond whenever it is asked for."""

    def __init__(self) -> None:
        self.now = 1_800_000_000_000_000

    def __call__(self) -> int:
        self.now += 1
        return self.now

    def elapse(self, seconds: float) -> None:
        self.now += round(seconds * 1e6)


# ---------------------------------------------------------------- the matrix


def memory_backend(clock: FakeClock) -> Backend:
    client = MemoryClient(clock)
    return Backend(
        MemoryStore(),
        sync=lambda: client,
        asynchronous=lambda: AsyncMemoryClient(client),
        address="memory://",
    )


def memory(path: Path) -> SyncHarness:
    clock = FakeClock()
    return SyncHarness(memory_backend(clock))


def memory_async(path: Path) -> AsyncHarness:
    clock = FakeClock()
    return AsyncHarness(memory_backend(clock))


def sqlite(path: Path) -> SyncHarness:
    file = str(path / "store.db")
    return SyncHarness(connect(f"sqlite:///{file}"))


def sqlite_async(path: Path) -> AsyncHarness:
    file = str(path / "store.db")
    return AsyncHarness(connect(f"sqlite:///{file}"))


def sqlalchemy_sqlite(path: Path) -> SyncHarness:
    import sqlalchemy

    file = str(path / "store.db")
    return SyncHarness(connect(sqlalchemy.create_engine(f"sqlite:///{file}")))


def sqlalchemy_aiosqlite(path: Path) -> AsyncHarness:
    from sqlalchemy.ext.asyncio import create_async_engine

    file = str(path / "store.db")
    engine = create_async_engine(f"sqlite+aiosqlite:///{file}")
    return DisposingHarness(connect(engine), engine)


@dataclass
class DisposingHarness(AsyncHarness):
    """An async harness on an engine that must be disposed of on its loop."""

    engine: Any

    def close(self) -> None:
        self.loop.run_until_complete(self.engine.dispose())
        super().close()


def postgresql_url() -> str:
    return os.environ["RETRYSAFE_TEST_POSTGRESQL"]


def psycopg_sync(path: Path) -> SyncHarness:
    backend = connect(postgresql_url())
    backend.migrate()
    return SyncHarness(backend)


def psycopg_async(path: Path) -> AsyncHarness:
    backend = connect(postgresql_url())
    backend.migrate()
    return AsyncHarness(backend)


def asyncpg(path: Path) -> AsyncHarness:
    backend = connect(postgresql_url().replace("postgresql:", "postgresql+asyncpg:"))
    harness = AsyncHarness(backend)
    harness.loop.run_until_complete(backend.amigrate())
    return harness


def sqlalchemy_psycopg(path: Path) -> SyncHarness:
    import sqlalchemy

    engine = sqlalchemy.create_engine(postgresql_url().replace("postgresql:", "postgresql+psycopg:"), pool_size=10)
    backend = connect(engine)
    backend.migrate()
    return SyncHarness(backend)


def _async_engine(driver: str) -> AsyncHarness:
    from sqlalchemy.ext.asyncio import create_async_engine

    url = postgresql_url()
    engine = create_async_engine(url.replace("postgresql:", f"postgresql+{driver}:"), pool_size=10)
    harness = DisposingHarness(connect(engine), engine)
    harness.loop.run_until_complete(harness.backend.amigrate())
    return harness


def sqlalchemy_asyncpg(path: Path) -> AsyncHarness:
    return _async_engine("asyncpg")


def sqlalchemy_psycopg_async(path: Path) -> AsyncHarness:
    return _async_engine("psycopg")


@dataclass
class DjangoHarness(SyncHarness):
    """A sync harness on a Django alias of its own."""

    alias: str

    def close(self) -> None:
        super().close()
        remove_alias(self.alias)


def _django(kind: str, **settings: Any) -> DjangoHarness:
    alias = add_alias(kind, **settings)
    backend = connect(alias)
    with blocking_allowed():
        backend.migrate()
    return DjangoHarness(backend, alias)


def django_sqlite(path: Path) -> SyncHarness:
    file = str(path / "store.db")
    return _django("sqlite", NAME=file)


def django_mysql(path: Path) -> SyncHarness:
    return _django("mysql", CONN_MAX_AGE=None)


def django_psycopg(path: Path) -> SyncHarness:
    return _django("postgresql", CONN_MAX_AGE=None)


def mysql_url() -> str:
    return os.environ["RETRYSAFE_TEST_MYSQL"]


def pymysql(path: Path) -> SyncHarness:
    backend = connect(mysql_url())
    backend.migrate()
    return SyncHarness(backend)


class MysqlDialect(MysqlStore):
    """The statements as MySQL reads them: with its comments' text, and without MariaDB's."""

    def query(self, *args: Any, **options: Any) -> Query:
        made = super().query(*args, **options)
        return made._replace(sql=as_mysql(made.sql))


def as_mysql(sql: str) -> str:
    """What MySQL reads of a statement."""
    own = re.sub(r"/\*M!\d+ .*? \*/", "", re.sub(r"/\*!\d+ (.*?) \*/", r"\1", sql))
    return own.replace("@@transaction_isolation", "@@tx_isolation")  # the one name that MariaDB does not know


def pymysql_as_mysql(path: Path) -> SyncHarness:
    """MySQL's own statements, on MariaDB, which knows them all."""
    backend = connect(mysql_url())
    backend.migrate()
    backend.store = MysqlDialect()
    harness = SyncHarness(backend)
    backend.users += 1
    leave(backend)
    return harness


def asyncmy(path: Path) -> AsyncHarness:
    backend = connect(mysql_url().replace("mysql:", "mysql+asyncmy:"))
    harness = AsyncHarness(backend)
    harness.loop.run_until_complete(backend.amigrate())
    return harness


def sqlalchemy_pymysql(path: Path) -> SyncHarness:
    import sqlalchemy

    engine = sqlalchemy.create_engine(mysql_url().replace("mysql:", "mysql+pymysql:"), pool_size=10)
    backend = connect(engine)
    backend.migrate()
    return SyncHarness(backend)


def sqlalchemy_asyncmy(path: Path) -> AsyncHarness:
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(mysql_url().replace("mysql:", "mariadb+asyncmy:"), pool_size=10)
    harness = DisposingHarness(connect(engine), engine)
    harness.loop.run_until_complete(harness.backend.amigrate())
    return harness


def redis_url(topology: str = "") -> str:
    """The URL of the test Redis; every worker of a run has one of its databases, so that scans are short."""
    url = os.environ[f"RETRYSAFE_TEST_REDIS{topology}"]
    number = int(os.environ.get("PYTEST_XDIST_WORKER", f"gw{os.getpid()}").removeprefix("gw"))
    return url if topology else f"{url.removesuffix('/0')}/{1 + number % 15}"


def redis_sync(topology: str = "") -> Callable[[Path], SyncHarness]:
    return lambda path: SyncHarness(connect(redis_url(topology)))


def redis_async(topology: str = "") -> Callable[[Path], AsyncHarness]:
    return lambda path: AsyncHarness(connect(redis_url(topology)))


@dataclass
class ClientHarness(SyncHarness):
    """A sync harness on a client of the user's, which stays open when the backend is closed."""

    client: Any

    def close(self) -> None:
        super().close()
        assert self.client.ping()
        self.client.close()


@dataclass
class AsyncClientHarness(AsyncHarness):
    """The same for async code."""

    client: Any

    def close(self) -> None:
        self.loop.run_until_complete(self.backend.aclose())
        assert self.loop.run_until_complete(self.client.ping())
        self.loop.run_until_complete(self.client.aclose())
        self.loop.close()


def redis_client(path: Path) -> SyncHarness:
    import redis

    client = redis.Redis.from_url(redis_url(), decode_responses=True)  # which would spoil a record
    return ClientHarness(connect(client), client)


def redis_async_client(path: Path) -> AsyncHarness:
    import redis.asyncio

    client = redis.asyncio.Redis.from_url(redis_url(), decode_responses=True)
    return AsyncClientHarness(connect(client), client)


def _first_node() -> tuple[str, int]:
    host, _, port = redis_url("_CLUSTER").partition("//")[2].partition(",")[0].partition(":")
    return host, int(port)


def redis_cluster_client(path: Path) -> SyncHarness:
    import redis

    host, port = _first_node()
    client = redis.RedisCluster(host, port)
    return ClientHarness(connect(client), client)


def redis_async_cluster_client(path: Path) -> AsyncHarness:
    import redis.asyncio

    client = redis.asyncio.RedisCluster(*_first_node())
    return AsyncClientHarness(connect(client), client)


DYNAMODB_TABLE = f"retrysafe-test-{os.getpid()}"


def dynamodb_endpoint() -> str:
    return os.environ["RETRYSAFE_TEST_DYNAMODB"]


def dynamodb_url(table: str = DYNAMODB_TABLE) -> str:
    """A URL of the test service, with credentials that it takes for good."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        os.environ.setdefault(name, "local")
    return f"dynamodb://{table}?region=us-east-1&endpoint={dynamodb_endpoint()}"


def drop_dynamodb_table() -> None:
    """Drop the table of this process, if it has made one."""
    client = dynamodb_client(dynamodb_endpoint())
    with suppress(client.exceptions.ResourceNotFoundException):
        client.delete_table(TableName=DYNAMODB_TABLE)
    client.close()


def _checked(backend: Backend) -> Backend:
    """Created, and asked for its settings, as before a first claim: from then on the clock is the service's."""
    backend.migrate()
    backend.check(backend.client())
    return backend


def dynamodb_sync(path: Path) -> SyncHarness:
    return SyncHarness(_checked(connect(dynamodb_url())))


def dynamodb_async(path: Path) -> AsyncHarness:
    backend = connect(dynamodb_url())
    harness = AsyncHarness(backend)

    async def check() -> None:
        await backend.amigrate()
        await backend.acheck(backend.aclient())

    harness.loop.run_until_complete(check())
    return harness


def dynamodb_table(path: Path) -> SyncHarness:
    import boto3

    dynamodb_url()
    resource: Any = boto3.resource("dynamodb", region_name="us-east-1", endpoint_url=dynamodb_endpoint())
    backend = _checked(connect(resource.Table(DYNAMODB_TABLE)))
    return SyncHarness(backend)


AnyHarness = SyncHarness | AsyncHarness
_HARNESSES: dict[str, tuple[str | None, Callable[[Path], AnyHarness]]] = {
    "memory": (None, memory),
    "memory async": (None, memory_async),
    "sqlite3": (None, sqlite),
    "sqlite3 async": (None, sqlite_async),
    "SQLAlchemy Engine, SQLite": (None, sqlalchemy_sqlite),
    "SQLAlchemy AsyncEngine, aiosqlite": (None, sqlalchemy_aiosqlite),
    "psycopg": ("postgresql", psycopg_sync),
    "psycopg async": ("postgresql", psycopg_async),
    "asyncpg": ("postgresql", asyncpg),
    "SQLAlchemy Engine, psycopg": ("postgresql", sqlalchemy_psycopg),
    "SQLAlchemy AsyncEngine, asyncpg": ("postgresql", sqlalchemy_asyncpg),
    "SQLAlchemy AsyncEngine, psycopg": ("postgresql", sqlalchemy_psycopg_async),
    "Django, SQLite": (None, django_sqlite),
    "Django, MySQL": ("mysql", django_mysql),
    "Django, psycopg": ("postgresql", django_psycopg),
    "PyMySQL": ("mysql", pymysql),
    "PyMySQL, as MySQL reads it": ("mysql", pymysql_as_mysql),
    "asyncmy": ("mysql", asyncmy),
    "SQLAlchemy Engine, PyMySQL": ("mysql", sqlalchemy_pymysql),
    "SQLAlchemy AsyncEngine, asyncmy": ("mysql", sqlalchemy_asyncmy),
    "redis": ("redis", redis_sync()),
    "redis async": ("redis", redis_async()),
    "redis.Redis": ("redis", redis_client),
    "redis.asyncio.Redis": ("redis", redis_async_client),
    "redis cluster": ("redis-cluster", redis_sync("_CLUSTER")),
    "redis cluster async": ("redis-cluster", redis_async("_CLUSTER")),
    "redis.RedisCluster": ("redis-cluster", redis_cluster_client),
    "redis.asyncio.RedisCluster": ("redis-cluster", redis_async_cluster_client),
    "redis sentinel": ("redis-sentinel", redis_sync("_SENTINEL")),
    "redis sentinel async": ("redis-sentinel", redis_async("_SENTINEL")),
    "boto3": ("dynamodb", dynamodb_sync),
    "boto3 Table": ("dynamodb", dynamodb_table),
    "aiobotocore": ("dynamodb", dynamodb_async),
}
HARNESSES = and_on_other_versions(
    _HARNESSES,
    {
        "postgresql": ("psycopg", "psycopg async", "asyncpg"),
        "mysql": ("PyMySQL", "asyncmy", "Django, MySQL"),
        "redis": ("redis", "redis async"),
    },
)
"""Name → the service it needs, and how it is made in a directory of its own."""
DRIVERS = (
    "memory",
    "memory async",
    "sqlite3",
    "sqlite3 async",
    "psycopg",
    "psycopg async",
    "asyncpg",
    "PyMySQL",
    "PyMySQL, as MySQL reads it",
    "asyncmy",
    "redis",
    "redis async",
    "boto3",
    "aiobotocore",
)
"""The harnesses of the drivers of our own, on the usual versions. The others put the same requests to the same stores
through a user's engine or client, in another topology, or to another version of the server."""
