"""Set-ups that break a promise, on real servers, are found by name; sound ones give no finding."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from retrysafe.backends.registry import connect, forget
from retrysafe.doctor import Diagnosis, Severity, diagnose
from retrysafe.doctor.stores import examine
from tests.conftest import absent
from tests.faults.redis_servers import Server
from tests.faults.servers import (
    Cluster,
    MariaDB,
    PgBouncer,
    mariadb_program,
    pgbouncer_program,
    postgresql_programs,
)
from tests.ports import free_port
from tests.stores.ageing import mysql_connection


def found(*stores: str) -> dict[str, Diagnosis]:
    return {one.id: one for one in diagnose(stores=stores, within=20)}


def migrated(url: str) -> str:
    backend = connect(url)
    backend.migrate()
    backend.close()
    forget(backend)
    return url


# ------------------------------------------------------------ PostgreSQL


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    programs = postgresql_programs()
    if programs is None:
        absent("no PostgreSQL programs")
    made = Cluster(programs)
    yield made
    made.close()


@pytest.fixture
def database(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    """A migrated database of the test's own."""
    name = f"d{abs(hash(request.node.name)) % 10**12}"
    with cluster.admin() as admin:
        admin.execute(f"CREATE DATABASE {name}".encode())
    return migrated(urlsplit(cluster.url)._replace(path=f"/{name}").geturl())


def perform(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


POSTGRESQL = {
    "postgresql-synchronous-commit": "ALTER DATABASE {} SET synchronous_commit = off",
    "postgresql-read-only": "ALTER DATABASE {} SET default_transaction_read_only = on",
    "postgresql-isolation": "ALTER DATABASE {} SET default_transaction_isolation = 'serializable'",
    "postgresql-statement-timeout": "ALTER DATABASE {} SET statement_timeout = '300ms'",
    "postgresql-unique-key": "ALTER TABLE retrysafe_records DROP CONSTRAINT retrysafe_records_pkey",
    "postgresql-unlogged": "ALTER TABLE retrysafe_records SET UNLOGGED",
    "postgresql-indexes": "DROP INDEX retrysafe_records_tombstone",
    "store-schema": "DELETE FROM retrysafe_schema WHERE version > 3",
}


@pytest.mark.parametrize("check", POSTGRESQL)
def test_a_setting_of_postgresql_is_found_alone(check: str, database: str) -> None:
    name = urlsplit(database).path.strip("/")
    perform(database, POSTGRESQL[check].format(name))
    assert list(found(database)) == [check]


def test_a_commit_that_is_not_on_disk(cluster: Cluster, database: str) -> None:
    cluster.set(full_page_writes="off")
    try:
        said = found(database)
    finally:
        cluster.set(full_page_writes="on")
    assert list(said) == ["postgresql-fsync"]
    assert said["postgresql-fsync"].severity is Severity.ERROR
    assert "ALTER SYSTEM SET full_page_writes = on" in said["postgresql-fsync"].fix


def test_a_transaction_that_ends_before_its_lease(database: str) -> None:
    name = urlsplit(database).path.strip("/")
    perform(database, f"ALTER DATABASE {name} SET idle_in_transaction_session_timeout = '10s'")
    assert [one.id for one in examine(database, 20, [30.0])] == ["postgresql-idle-transaction-timeout"]
    assert examine(database, 20, [5.0]) == []


def test_replicas_that_lag_and_a_standby(cluster: Cluster, database: str) -> None:
    replica = cluster.replica("one")
    try:
        assert list(found(database)) == ["postgresql-asynchronous-replica"]
        assert "postgresql-standby" in found(urlsplit(replica.url)._replace(path=urlsplit(database).path).geturl())
    finally:
        replica.close()


def test_a_pooler_in_transaction_mode(cluster: Cluster, database: str) -> None:
    program = pgbouncer_program()
    if program is None:
        absent("no pgbouncer")
    pooler = PgBouncer(program, cluster.url)
    try:
        assert list(found(pooler.before(database))) == ["postgresql-pooler"]
    finally:
        pooler.close()


def test_an_index_that_is_gone_is_made_again(database: str, command: Any) -> None:
    perform(database, "DROP INDEX retrysafe_records_tombstone", "DROP INDEX retrysafe_outbox_lane")
    done = command("doctor", "--store", database, "--fix")
    assert done.code == 0, done.out
    assert "fixed  postgresql-indexes" in done.out
    assert found(database) == {}


# ------------------------------------------------------------ MySQL


@pytest.fixture(scope="module")
def mariadb() -> Iterator[str]:
    program = mariadb_program()
    if program is None:
        absent("no mariadbd")
    server = MariaDB(program)
    yield migrated(server.url)
    server.close()


MYSQL = {
    "mysql-flush-log": (
        "SET GLOBAL innodb_flush_log_at_trx_commit = 2",
        "SET GLOBAL innodb_flush_log_at_trx_commit = 1",
    ),
    "mysql-isolation": (
        "SET GLOBAL tx_isolation = 'READ-UNCOMMITTED'",
        "SET GLOBAL tx_isolation = 'REPEATABLE-READ'",
    ),
    "mysql-sql-mode": ("SET GLOBAL sql_mode = ''", "SET GLOBAL sql_mode = DEFAULT"),
    "mysql-engine": (
        "ALTER TABLE retrysafe_outbox_buckets ENGINE = MyISAM",
        "ALTER TABLE retrysafe_outbox_buckets ENGINE = InnoDB",
    ),
    "mysql-indexes": (
        "DROP INDEX retrysafe_records_tombstone ON retrysafe_records",
        "CREATE INDEX retrysafe_records_tombstone ON retrysafe_records (state, tombstone_until)",
    ),
}


@pytest.mark.parametrize("check", MYSQL)
def test_a_setting_of_mysql_is_found_alone(check: str, mariadb: str) -> None:
    breaking, mending = MYSQL[check]
    with closing(mysql_connection(mariadb, autocommit=True)) as connection:
        connection.cursor().execute(breaking)
        try:
            assert list(found(mariadb)) == [check]
        finally:
            connection.cursor().execute(mending)


# ------------------------------------------------------------ Redis


SOUND_REDIS = ("--appendonly", "yes")


@pytest.fixture
def redis_server() -> Iterator[Callable[..., Server]]:
    made: list[Server] = []

    def server(*settings: str) -> Server:
        made.append(Server(*settings))
        return made[-1]

    yield server
    for one in made:
        one.close()


@pytest.mark.parametrize(
    ("check", "settings"),
    [
        ("redis-eviction", (*SOUND_REDIS, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")),
        ("redis-persistence", ()),
    ],
)
def test_a_setting_of_redis_is_found_alone(
    check: str, settings: tuple[str, ...], redis_server: Callable[..., Server]
) -> None:
    assert list(found(redis_server(*settings).url)) == [check]


def test_a_frozen_server_is_a_finding_in_time(redis_server: Callable[..., Server]) -> None:
    server = redis_server(*SOUND_REDIS)
    server.freeze()
    try:
        said = diagnose(stores=[server.url], within=1)
    finally:
        server.thaw()
    assert [(one.id, one.evidence) for one in said] == [("store-unreachable", "It did not answer within 1 s.")]


# ------------------------------------------------------------ SQLite


def test_a_file_without_an_index_and_one_without_its_key(tmp_path: Path) -> None:
    url = migrated(f"sqlite:///{tmp_path}/shop.db")
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.execute("DROP INDEX retrysafe_records_tombstone")
        assert list(found(url)) == ["sqlite-indexes"]
        connection.execute("DROP TABLE retrysafe_outbox_paused")
        connection.execute("CREATE TABLE retrysafe_outbox_paused (topic TEXT, paused_at INTEGER)")
        connection.commit()
    assert set(found(url)) == {"sqlite-indexes", "sqlite-unique-key"}


# ------------------------------------------------------------ whatever the store


def test_a_dead_store_is_a_finding_without_its_password() -> None:
    said = diagnose(stores=[f"postgresql://u:s3cr3t-word@127.0.0.1:{free_port()}/shop"])
    assert [one.id for one in said] == ["store-unreachable"]
    assert "s3cr3t-word" not in repr(said)


# ------------------------------------------------------------ sound ones


def test_sound_set_ups_give_no_finding(
    database: str, mariadb: str, redis_server: Callable[..., Server], tmp_path: Path
) -> None:
    sqlite = migrated(f"sqlite:///{tmp_path}/shop.db")
    assert found(database, mariadb, redis_server(*SOUND_REDIS).url, sqlite) == {}
