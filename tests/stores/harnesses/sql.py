"""SQLite, PostgreSQL and MySQL behind every driver."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrysafe.backends.registry import connect, leave
from retrysafe.backends.sql.mysql import MysqlStore
from retrysafe.protocol.requests import Query
from retrysafe.testing.harness import AsyncHarness, SyncHarness
from tests.django.aliases import add_alias, blocking_allowed, remove_alias
from tests.laboratory.specification import Traits
from tests.stores.harnesses.base import (
    CRASH,
    FAILOVER,
    RESTORED,
    RUNS,
    TOGETHER,
    TWICE,
    Loss,
    Settings,
    StoreHarness,
    migrated,
)


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
    """Translate a statement for MySQL."""
    own = re.sub(r"/\*M!\d+ .*? \*/", "", re.sub(r"/\*!\d+ (.*?) \*/", r"\1", sql))
    return own.replace("@@transaction_isolation", "@@tx_isolation")  # the one name that MariaDB does not know


def pymysql_as_mysql(path: Path) -> SyncHarness:
    """MySQL's own statements, on MariaDB, which knows them all."""
    backend = connect(mysql_url())
    assert not backend.users, (
        "who is left from a test before would speak this dialect, too, and so would tests after it"
    )
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


HARNESS = StoreHarness(
    executors={
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
    },
    drivers=(
        "sqlite3",
        "sqlite3 async",
        "psycopg",
        "psycopg async",
        "asyncpg",
        "PyMySQL",
        "PyMySQL, as MySQL reads it",
        "asyncmy",
    ),
    urls={
        "sqlite": (None, lambda folder: migrated(f"sqlite:///{folder / 'store.db'}")),
        "postgresql": ("postgresql", lambda folder: migrated(postgresql_url())),
        "mysql": ("mysql", lambda folder: migrated(mysql_url())),
    },
    on_other_versions={
        "postgresql": ("psycopg", "psycopg async", "asyncpg"),
        "mysql": ("PyMySQL", "asyncmy", "Django, MySQL"),
    },
    proxied={
        "psycopg": (lambda: f"{postgresql_url()}?sslmode=disable", postgresql_url),
        "psycopg async": (lambda: f"{postgresql_url()}?sslmode=disable", postgresql_url),
        "asyncpg": (
            lambda: postgresql_url().replace("postgresql:", "postgresql+asyncpg:") + "?sslmode=disable",
            postgresql_url,
        ),
        "PyMySQL": (mysql_url, mysql_url),
        "asyncmy": (lambda: mysql_url().replace("mysql:", "mysql+asyncmy:"), mysql_url),
    },
    traits={
        "sqlite": Traits(skew=1_000),
        "postgresql": Traits(skew=1_000),
        "mysql": Traits(skew=1_000, reads_back=frozenset({"take", "renew"})),
    },
    settings={
        "sqlite": Settings("a `synchronous` other than FULL, NORMAL or EXTRA in the URL", "nothing"),
        "postgresql": Settings("a server in recovery", "`fsync` or `full_page_writes` off, `synchronous_commit` off"),
        "mysql": Settings(
            "a read-only server, READ UNCOMMITTED, `innodb_rollback_on_timeout`, versions that are too old",
            "`innodb_flush_log_at_trx_commit` or `sync_binlog` other than 1, a small `max_allowed_packet`",
        ),
        "mssql": Settings("a version before 2016, a read-only database", "delayed durability"),
    },
    losses={
        "sqlite": (
            Loss(
                "power fails with synchronous=NORMAL, or on a disk that lies about syncing",
                CRASH,
                RUNS,
                TWICE,
                TOGETHER,
            ),
            Loss("the disk or the file is lost", "everything", RUNS, TWICE, TOGETHER),
            Loss(
                "a network file system whose locks do not work",
                "nothing, but two machines may both win a claim",
                "runs in both, with the same derived keys",
                TWICE,
                "**rows may be written twice, or the file be damaged**",
            ),
            Loss("a backup is restored", RESTORED, RUNS, TWICE, TOGETHER),
        ),
        "postgresql": (
            Loss("a failover to an asynchronous replica", FAILOVER, RUNS, TWICE, TOGETHER),
            Loss("a crash with fsync=off or synchronous_commit=off", CRASH, RUNS, TWICE, TOGETHER),
            Loss("a backup is restored", RESTORED, RUNS, TWICE, TOGETHER),
        ),
        "mysql": (
            Loss("a failover to an asynchronous replica", FAILOVER, RUNS, TWICE, TOGETHER),
            Loss("a crash with innodb_flush_log_at_trx_commit other than 1", CRASH, RUNS, TWICE, TOGETHER),
            Loss(
                "a crash of the machine with sync_binlog other than 1, and a failover", FAILOVER, RUNS, TWICE, TOGETHER
            ),
            Loss("a backup is restored", RESTORED, RUNS, TWICE, TOGETHER),
        ),
        "mssql": (
            Loss("a failover to an asynchronous replica", FAILOVER, RUNS, TWICE, TOGETHER),
            Loss("a crash with delayed durability", CRASH, RUNS, TWICE, TOGETHER),
            Loss("a backup is restored", RESTORED, RUNS, TWICE, TOGETHER),
        ),
    },
)
