"""Faults for a person are told from an outage, with the remedy: passwords, databases, permissions, files."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from botocore.exceptions import ClientError
from psycopg_pool import ConnectionPool
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from retrysafe import Boundary, InProgress, StoreMisconfigured, StoreUnavailable
from retrysafe.backends.dynamodb.client import _judge
from retrysafe.backends.dynamodb.requests import Call
from retrysafe.backends.registry import connect
from retrysafe.messaging.outbox import Outbox
from tests.conftest import absent, require
from tests.faults.helpers import driven, until
from tests.faults.servers import Cluster, postgresql_programs
from tests.ports import free_port
from tests.stores.ageing import mysql_connection
from tests.tables import each_row

NOBODY = 65534
PASSWORD, DATABASE, CONNECT = (
    "Correct the user and the password",
    "Create the database",
    "Grant the user of store= access",
)


def claimed(store: Any) -> None:
    """Claim a key, in the colour that the store serves."""
    boundary = Boundary("p", store=store, observers=(), shared=True)
    if boundary.entrypoint.backend.serves_sync:
        with boundary.claim("k", operation="x"):
            pass
        boundary.close()
        return

    async def go() -> None:
        try:
            async with boundary.claim("k", operation="x"):
                pass
        finally:
            await boundary.aclose()
            if isinstance(store, AsyncEngine):
                await store.dispose()

    asyncio.run(go())


def refused(store: Any) -> StoreMisconfigured:
    with pytest.raises(StoreMisconfigured) as caught:
        claimed(store)
    error = caught.value
    assert error.unsent, "the operation was not started"
    assert "once the store is back" not in str(error)
    return error


def moved(url: str, *, path: str | None = None, user: str | None = None) -> str:
    parts = urlsplit(url)
    netloc = parts.netloc if user is None else f"{user}@{parts.hostname}:{parts.port}"
    return parts._replace(netloc=netloc, path=parts.path if path is None else path).geturl()


def engine(url: str) -> Any:
    return create_engine(url.replace("postgresql:", "postgresql+psycopg:").replace("mysql:", "mysql+pymysql:"))


def async_engine(url: str) -> Any:
    return create_async_engine(driven(url, "asyncpg"))


# ------------------------------------------------------------ PostgreSQL

POSTGRESQL: dict[str, Callable[[str], Any]] = {
    "psycopg": str,
    "asyncpg": lambda url: driven(url, "asyncpg"),
    "engine": engine,
    "async engine": async_engine,
}


@pytest.fixture(scope="module")
def guarded_cluster() -> Iterator[str]:
    """The URL of a server that asks the user "shop" for a password, "right", and gives it no permission."""
    programs = postgresql_programs()
    if programs is None:
        absent("no PostgreSQL programs")
    cluster = Cluster(programs)
    try:
        rule = "host all shop 127.0.0.1/32 scram-sha-256\n"
        hba = cluster.home / "data" / "pg_hba.conf"
        hba.write_text(rule + hba.read_text())
        with cluster.admin() as admin:
            admin.execute("CREATE ROLE shop LOGIN PASSWORD 'right'")
            admin.execute("CREATE DATABASE closed")
            admin.execute("REVOKE CONNECT ON DATABASE closed FROM PUBLIC")
            admin.execute("SELECT pg_reload_conf()")
        connect(cluster.url).migrate()
        yield cluster.url
    finally:
        cluster.close()


@pytest.mark.slow
@each_row("how", POSTGRESQL)
@each_row(
    ("user", "path", "remedy"),
    [
        ("shop:wrong", None, PASSWORD),
        ("nobody9", None, PASSWORD),
        (None, "/nosuch", DATABASE),
        ("shop:right", "/closed", CONNECT),
        ("shop:right", None, "SELECT, INSERT, UPDATE and DELETE"),
    ],
    ids=["password", "role", "database", "connect", "tables"],
)
def test_postgresql(how: str, user: str | None, path: str | None, remedy: str, guarded_cluster: str) -> None:
    error = refused(POSTGRESQL[how](moved(guarded_cluster, user=user, path=path)))
    assert remedy in error.detail


@pytest.mark.slow
def test_a_store_from_a_pool_says_its_reason_itself(guarded_cluster: str) -> None:
    url = moved(guarded_cluster, path="/nosuch")
    with ConnectionPool(url, open=True, timeout=1, min_size=1) as pool, pytest.raises(StoreUnavailable) as caught:
        claimed(pool)
    assert "nosuch" in caught.value.detail


@pytest.mark.slow
@each_row("how", POSTGRESQL)
def test_a_server_that_is_down_is_an_outage(how: str) -> None:
    with pytest.raises(StoreUnavailable) as caught:
        claimed(POSTGRESQL[how](f"postgresql://shop@127.0.0.1:{free_port()}/shop"))
    assert type(caught.value) is StoreUnavailable


@pytest.mark.slow
def test_a_permission_that_is_taken_away_while_work_runs_loses_no_outcome(guarded_cluster: str) -> None:
    runs: list[int] = []
    tables = b"ON ALL TABLES IN SCHEMA public"
    with psycopg.connect(guarded_cluster, autocommit=True) as admin:
        admin.execute(b"GRANT ALL " + tables + b" TO shop")
        boundary = Boundary("p", store=moved(guarded_cluster, user="shop:right"), observers=(), shared=True)

        @boundary.once(key="key", operation="work")
        def work(key: str) -> int:
            runs.append(1)
            admin.execute(b"REVOKE ALL " + tables + b" FROM shop")
            return 7

        assert work("k2") == 7, "the work is done, and its outcome is put again while the lease lasts"
        with pytest.raises(StoreMisconfigured):
            work("k2")
        admin.execute(b"GRANT ALL " + tables + b" TO shop")
        until(lambda: tried(work))
        assert runs == [1]
        admin.execute(b"REVOKE ALL " + tables + b" FROM shop")
        boundary.close()


def tried(work: Callable[[str], int]) -> bool:
    try:
        return work("k2") == 7
    except InProgress:
        return False


# ------------------------------------------------------------ MySQL and MariaDB

MYSQL: dict[str, Callable[[str], Any]] = {
    "pymysql": lambda url: driven(url, "pymysql"),
    "asyncmy": lambda url: driven(url, "asyncmy"),
    "engine": engine,
}


@pytest.fixture(scope="module")
def mysql() -> Iterator[str]:
    """The URL of the server, which has a user "misled" with the password "right" and no permission."""
    require("mysql")
    url = os.environ["RETRYSAFE_TEST_MYSQL"]
    name = f"misled{os.getpid()}"
    with mysql_connection(url, autocommit=True) as admin:
        admin.cursor().execute(f"CREATE USER {name}@'127.0.0.1' IDENTIFIED BY 'right'")
        yield moved(url, user=name)
        admin.cursor().execute(f"DROP USER {name}@'127.0.0.1'")


@each_row("how", MYSQL)
@each_row(
    ("password", "path", "remedy"),
    [("wrong", None, PASSWORD), ("right", None, CONNECT), ("root", "/nosuch", DATABASE)],
    ids=["password", "permission", "database"],
)
def test_mysql(how: str, password: str, path: str | None, remedy: str, mysql: str) -> None:
    user = f"{urlsplit(mysql).username}:{password}"
    url = moved(mysql, user=user) if path is None else moved(os.environ["RETRYSAFE_TEST_MYSQL"], path=path)
    assert remedy in refused(MYSQL[how](url)).detail


# ------------------------------------------------------------ Redis


@each_row("colour", ["sync", "async"])
@each_row(
    ("user", "path", "remedy"),
    [
        (None, "/99", "Name a database that the server has"),
        (":bad", None, "has no password"),
        ("me:bad", None, PASSWORD),
    ],
    ids=["database", "needless password", "user"],
)
def test_redis(colour: str, user: str | None, path: str | None, remedy: str) -> None:
    require("redis")
    url = moved(os.environ["RETRYSAFE_TEST_REDIS"], user=user, path=path)

    async def asked() -> None:
        boundary = Boundary("p", store=url, observers=(), shared=True)
        try:
            await boundary.acheck()
        finally:
            await boundary.aclose()

    with pytest.raises(StoreMisconfigured) as caught:
        claimed(url) if colour == "sync" else asyncio.run(asked())
    assert remedy in caught.value.detail


# ------------------------------------------------------------ DynamoDB


@each_row("code", ["UnrecognizedClientException", "ExpiredTokenException", "AccessDeniedException"])
def test_dynamodb(code: str) -> None:
    answer = ClientError({"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {}}, "GetItem")  # type: ignore[typeddict-item]
    with pytest.raises(StoreMisconfigured, match=r"credentials|Allow the role") as caught:
        _judge(answer, Call("get_item", {}, frozenset()))
    assert caught.value.unsent


# ------------------------------------------------------------ SQLite


@contextmanager
def as_nobody() -> Iterator[None]:
    """Permissions hold: root has to be somebody else for them."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A directory that everybody can see."""
    seen = [parent for parent in tmp_path.parents if parent.stat().st_uid == os.geteuid() and str(parent) != "/"]
    modes = {parent: stat.S_IMODE(parent.stat().st_mode) for parent in (*seen, tmp_path)}
    for parent, mode in modes.items():
        parent.chmod(mode | 0o555)
    yield tmp_path
    for parent, mode in modes.items():
        parent.chmod(mode)


SQLITE: dict[str, Callable[[Path], Any]] = {
    "url": lambda path: f"sqlite:///{path}?busy=1s",
    "engine": lambda path: create_engine(f"sqlite:///{path}"),
}


@each_row("how", SQLITE)
def test_sqlite_without_its_directory(how: str, tmp_path: Path) -> None:
    error = refused(SQLITE[how](tmp_path / "nosuch" / "shop.db"))
    assert f"mkdir -p {tmp_path / 'nosuch'}" in error.detail


@each_row("how", SQLITE)
def test_sqlite_in_place_of_a_directory(how: str, tmp_path: Path) -> None:
    assert "It is a directory" in refused(SQLITE[how](tmp_path)).detail


@each_row("how", SQLITE)
def test_sqlite_on_another_kind_of_file(how: str, tmp_path: Path) -> None:
    (tmp_path / "shop.db").write_text("not a database " * 100)
    assert "The file is something else" in refused(SQLITE[how](tmp_path / "shop.db")).detail


@pytest.mark.parametrize("how", SQLITE)
def test_sqlite_in_a_directory_that_cannot_be_written(how: str, folder: Path) -> None:
    folder.chmod(0o555)
    with as_nobody():
        error = refused(SQLITE[how](folder / "shop.db"))
    assert f"may not write to {folder}" in error.detail


@pytest.mark.parametrize("how", SQLITE)
def test_sqlite_in_a_file_that_cannot_be_written(how: str, folder: Path) -> None:
    claimed(f"sqlite:///{folder / 'shop.db'}")
    for file in folder.iterdir():
        file.chmod(0o444)
    with as_nobody():
        error = refused(SQLITE[how](folder / "shop.db"))
    assert "may not read and write it" in error.detail


def test_the_tables_of_an_outbox_in_a_file_that_cannot_be_written(folder: Path) -> None:
    claimed(f"sqlite:///{folder / 'shop.db'}")
    for file in folder.iterdir():
        file.chmod(0o444)
    with as_nobody(), pytest.raises(StoreMisconfigured, match="may not read and write it"):
        Outbox(f"sqlite:///{folder / 'shop.db'}", source="/shop")


def test_sqlite_that_has_no_file_descriptor_left_is_an_outage(tmp_path: Path) -> None:
    import resource

    claimed(f"sqlite:///{tmp_path / 'shop.db'}")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = os.dup(0)
    os.close(used)
    resource.setrlimit(resource.RLIMIT_NOFILE, (used, before[1]))
    try:
        with pytest.raises(StoreUnavailable) as caught:
            claimed(f"sqlite:///{tmp_path / 'shop.db'}")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert type(caught.value) is StoreUnavailable
