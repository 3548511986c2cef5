"""Each client library that is watched: its calls are boundaries, and a charge that a retry repeats is found."""

from __future__ import annotations

import os
import smtplib
import socketserver
import sqlite3
import threading
import urllib.request
from collections.abc import Callable
from contextlib import closing
from email.message import EmailMessage
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from retrysafe.testing.agent_tasks.bank import charges
from retrysafe.testing.crashing import Report, crash_points
from tests.conftest import require
from tests.faults.helpers import unique

pytestmark = [pytest.mark.slow, pytest.mark.one_of("libraries that the kit for crashes watches", of=3)]


class On(NamedTuple):
    """The target of a library's work."""

    url: str
    table: str


def charge_of(on: On) -> str:
    return f"INSERT INTO {on.table} VALUES ('A')"


def with_sqlite3(on: On) -> None:
    with closing(sqlite3.connect(on.url)) as db, db:
        db.cursor().execute(charge_of(on))


async def with_aiosqlite(on: On) -> None:
    import aiosqlite

    async with aiosqlite.connect(on.url) as db:
        await db.execute(charge_of(on))
        await db.commit()


def with_psycopg(on: On) -> None:
    import psycopg

    with psycopg.connect(on.url) as db:
        db.execute(charge_of(on).encode())


async def with_async_psycopg(on: On) -> None:
    import psycopg

    async with await psycopg.AsyncConnection.connect(on.url) as db, db.transaction():
        await db.execute(charge_of(on).encode())


async def with_asyncpg(on: On) -> None:
    import asyncpg

    db = await asyncpg.connect(on.url)
    async with db.transaction():
        await db.execute(charge_of(on).replace("'A'", "$1"), "A")
    await db.close()


def with_sqlalchemy(on: On) -> None:
    import sqlalchemy

    engine = sqlalchemy.create_engine(on.url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as db:
        db.execute(sqlalchemy.text(charge_of(on)))
    engine.dispose()


async def with_async_sqlalchemy(on: On) -> None:
    import sqlalchemy
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(on.url.replace("postgresql://", "postgresql+asyncpg://"))
    async with engine.begin() as db:
        await db.execute(sqlalchemy.text(charge_of(on)))
    await engine.dispose()


def _mysql(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    return {"host": parts.hostname, "port": parts.port, "user": parts.username, "database": parts.path[1:]}


def with_pymysql(on: On) -> None:
    import pymysql

    with closing(pymysql.connect(**_mysql(on.url), ssl_disabled=True)) as db:
        db.cursor().execute(charge_of(on))
        db.commit()


async def with_asyncmy(on: On) -> None:
    import asyncmy

    db = await asyncmy.connect(**_mysql(on.url))
    async with db.cursor() as cursor:
        await cursor.execute(charge_of(on))
    await db.commit()
    db.close()


SERVERS = {
    with_sqlite3: "",
    with_aiosqlite: "",
    with_psycopg: "postgresql",
    with_async_psycopg: "postgresql",
    with_asyncpg: "postgresql",
    with_sqlalchemy: "postgresql",
    with_async_sqlalchemy: "postgresql",
    with_pymysql: "mysql",
    with_asyncmy: "mysql",
}


def _fresh_on(server: str, folder: Path) -> On:
    if not server:
        on = On(str(folder / f"{unique()}.db"), "charges")
        with closing(sqlite3.connect(on.url)) as db:
            db.execute("CREATE TABLE charges (id TEXT)")
        return on
    on = On(os.environ[f"RETRYSAFE_TEST_{server.upper()}"], unique("charges"))
    execute(on, f"CREATE TABLE {on.table} (id VARCHAR(9))")
    return on


class Fresh(NamedTuple):
    """Makes state, also in a new process."""

    server: str
    folder: Path
    on: On

    def __call__(self) -> On:
        if not self.server:
            return _fresh_on(self.server, self.folder)
        execute(self.on, f"DELETE FROM {self.on.table}")
        return self.on


def execute(on: On, sql: str) -> None:
    if on.url.startswith("mysql"):
        import pymysql

        with closing(pymysql.connect(**_mysql(on.url), ssl_disabled=True, autocommit=True)) as db:
            db.cursor().execute(sql)
        return
    import psycopg

    with psycopg.connect(on.url, autocommit=True) as db:
        db.execute(sql.encode())


@pytest.mark.parametrize("run", SERVERS, ids=lambda run: run.__name__)
def test_a_charge_that_a_retry_repeats_is_found(run: Callable[[On], Any], tmp_path: Path) -> None:
    server = SERVERS[run]
    if server:
        require(server)
    # the table is named in the statement, and differs from state to state: one for all
    on = _fresh_on(server, tmp_path)
    report = crash_points(run, fresh=Fresh(server, tmp_path, on), check=nothing, pairs=0)
    labels = [call.label for call in report.boundaries]
    assert any(label.startswith("INSERT INTO charges") for label in labels), labels
    assert "COMMIT" in [label.rstrip(";") for label in labels]
    assert f"table {on.table}: 2 rows instead of 1" in str(report)
    assert not report.unseen
    assert all(call.place.file.endswith("test_instruments.py") for call in report.boundaries), str(report)


# ---------------------------------------------------------------- requests


def by_urllib(url: str) -> None:
    urllib.request.urlopen(urllib.request.Request(url, data=b"A"), timeout=60).close()


def by_httpx(url: str) -> None:
    import httpx

    with httpx.Client() as client:
        client.post(url, content=b"A")


async def by_async_httpx(url: str) -> None:
    import httpx

    async with httpx.AsyncClient() as client:
        await client.post(url, content=b"A")


def by_requests(url: str) -> None:
    import requests

    requests.post(url, data=b"A", timeout=60)


async def by_aiohttp(url: str) -> None:
    import aiohttp

    async with aiohttp.ClientSession() as session, session.post(url, data=b"A") as response:
        await response.read()


@pytest.mark.parametrize(
    "run", [by_urllib, by_httpx, by_async_httpx, by_requests, by_aiohttp], ids=lambda run: run.__name__
)
def test_a_request_without_a_key_that_is_sent_twice_is_found(run: Callable[[str], Any], bank: tuple[str, str]) -> None:
    report = crash_points(run, fresh=lambda: f"{bank[0]}/charges", check=lambda url: None, pairs=0)
    assert [call.label for call in report.boundaries] == ["POST http://127.0.0.1/charges"]
    assert "POST http://127.0.0.1/charges: 2 effects asked for instead of 1" in str(report)
    assert "without a key from tests/crashing/test_instruments.py" in str(report)
    assert not report.unseen


def _with_the_same_key(url: str) -> None:
    request = urllib.request.Request(url, data=b"A", headers={"Idempotency-Key": "order-A"})
    urllib.request.urlopen(request, timeout=60).close()


@pytest.mark.one_of("slow tests")
def test_a_request_that_is_repeated_with_its_key_is_fine(bank: tuple[str, str]) -> None:
    report = crash_points(_with_the_same_key, fresh=lambda: f"{bank[0]}/charges", check=lambda url: None)
    assert report.ok, str(report)


def _with_a_payload_of_the_moment(url: str) -> None:
    headers = {"Idempotency-Key": "order-A"}
    request = urllib.request.Request(url, data=str(os.getpid()).encode(), headers=headers)
    urllib.request.urlopen(request, timeout=60).close()


@pytest.mark.one_of("slow tests")
def test_one_key_with_different_payloads_is_found(bank: tuple[str, str]) -> None:
    report = crash_points(_with_a_payload_of_the_moment, fresh=lambda: f"{bank[0]}/charges", check=lambda url: None)
    assert "one key with different payloads" in str(report)


# ---------------------------------------------------------------- mail, Redis, DynamoDB


class _Mailbox(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        self.wfile.write(b"220 ready\r\n")
        body = False
        for line in self.rfile:
            if body and line != b".\r\n":
                continue
            body = line.upper().startswith(b"DATA")
            self.wfile.write(
                b"354 go on\r\n" if body else b"221 bye\r\n" if line.upper().startswith(b"QUIT") else b"250 ok\r\n"
            )


def send_mail(port: int) -> None:
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "shop@example.com", "a@example.com", "Charged"
    with smtplib.SMTP("127.0.0.1", port) as server:
        server.send_message(message)


def test_a_mail_that_is_sent_twice_is_found() -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Mailbox) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            report = crash_points(send_mail, fresh=Port(server.server_address[1]), check=nothing, pairs=0)
        finally:
            server.shutdown()
            thread.join()
    assert "2 effects asked for instead of 1" in str(report)


class Port(NamedTuple):
    """Gives the port of a server that stays, also to a new process."""

    port: int

    def __call__(self) -> int:
        return self.port


def nothing(state: object) -> None:
    """All is well."""


def in_redis(url: str) -> None:
    import redis

    with closing(redis.Redis.from_url(url)) as client:
        client.incr("retrysafe-tests:charges")
        with client.pipeline() as pipe:
            pipe.incr("retrysafe-tests:charges").expire("retrysafe-tests:charges", 60).execute()


async def in_async_redis(url: str) -> None:
    import redis.asyncio

    async with redis.asyncio.Redis.from_url(url) as client:
        await client.incr("retrysafe-tests:charges")
        async with client.pipeline() as pipe:
            await pipe.incr("retrysafe-tests:charges").expire("retrysafe-tests:charges", 60).execute()


@pytest.mark.parametrize("run", [in_redis, in_async_redis], ids=lambda run: run.__name__)
def test_commands_of_redis_are_boundaries(run: Callable[[str], Any]) -> None:
    require("redis")
    report = crash_points(run, fresh=lambda: os.environ["RETRYSAFE_TEST_REDIS"], check=nothing, pairs=0)
    assert [call.label for call in report.boundaries] == [
        "INCRBY retrysafe-tests:charges",
        "pipeline of INCRBY, EXPIRE",
    ]
    assert not report.unseen


def in_dynamodb(endpoint: str) -> None:
    import boto3

    client = boto3.client(
        "dynamodb", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b"
    )
    client.list_tables(Limit=1)


def test_calls_of_botocore_are_boundaries() -> None:
    require("dynamodb")
    endpoint = os.environ["RETRYSAFE_TEST_DYNAMODB"]
    report = crash_points(in_dynamodb, fresh=lambda: endpoint, check=nothing, pairs=0)
    assert [call.label for call in report.boundaries] == ["dynamodb ListTables"]
    assert report.ok, str(report)


def test_the_report_can_be_read_by_a_person(bank: tuple[str, str]) -> None:
    account = unique("A")

    def run(url: str) -> None:
        urllib.request.urlopen(urllib.request.Request(url, data=account.encode()), timeout=60).close()

    def check(url: str) -> None:
        assert charges(bank[1], account) >= 1

    report: Report = crash_points(run, fresh=lambda: f"{bank[0]}/charges", check=check, pairs=0)
    lines = str(report).splitlines()
    assert lines[0].startswith("VIOLATED at ")
    assert "exhaustive for single crashes at 1 boundaries (6 points)" in lines[0]
    assert "urllib.request.urlopen(" in str(report)
    assert "<- a second time" in str(report)
