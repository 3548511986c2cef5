"""The place of the documentation's examples: a folder of their own, and a database of their own."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import pytest

from tests.conftest import require
from tests.docs.pages import ROOT, write_commands
from tests.messaging.harnesses.base import Harness, Page
from tests.messaging.harnesses.sqs import options_of
from tests.stores.ageing import mysql_connection
from tests.stores.harnesses import EXAMPLES
from tests.versions import variable_of


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory, with the commands that a reader has."""
    commands = tmp_path / "bin"
    commands.mkdir()
    write_commands(commands)
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), str(ROOT / "demo"), str(ROOT)]))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    monkeypatch.setenv("UVICORN_PORT", str(free_port()))
    monkeypatch.syspath_prepend(folder)
    before, environment = set(sys.modules), dict(os.environ)
    yield folder
    os.environ.clear()
    os.environ.update(environment)
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]


def free_port() -> int:
    """A port that nothing listens on."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a new, empty PostgreSQL database, also as DATABASE_URL; dropped in the end."""
    require("postgresql")
    import psycopg

    server = os.environ["RETRYSAFE_TEST_POSTGRESQL"]
    name = f"docs_{uuid4().hex}"
    url = urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
        monkeypatch.setenv("DATABASE_URL", url)
        yield url
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@contextmanager
def alone_with(service: str) -> Iterator[None]:
    """Names of streams, queues and tables stand in the pages: only one worker of a run at a time runs one."""
    with (Path(tempfile.gettempdir()) / f"retrysafe-docs-{service}.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def broker_of(harness: Harness) -> Iterator[None]:
    """The test broker in the variable that pages name; nothing of them is there, before and after."""
    assert harness.page is not None
    assert harness.service is not None
    require(harness.service)
    url = os.environ[variable_of(harness.service)]
    os.environ[harness.page.variable] = harness.page.value(url)
    with alone_with(harness.service):
        asyncio.run(_clean(harness.page, url))
        yield
        asyncio.run(_clean(harness.page, url))


async def _clean(page: Page, url: str) -> None:
    await page.clean(url)


@pytest.fixture
def s3_endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The endpoint of the stand-in for S3, which boto3 finds in the environment."""
    require("sns")
    endpoint: str = options_of(os.environ["RETRYSAFE_TEST_SNS"])["endpoint"]
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "local")
    with alone_with("s3"):
        yield endpoint


@pytest.fixture
def mysql_database(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a new, empty MariaDB database, as MYSQL_URL; dropped in the end."""
    require("mysql")
    server, name = os.environ["RETRYSAFE_TEST_MYSQL"], f"docs_{uuid4().hex}"
    url = urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
    with closing(mysql_connection(server, autocommit=True)) as connection:
        connection.query(f"CREATE DATABASE {name}")
        monkeypatch.setenv("MYSQL_URL", url)
        yield url
        connection.query(f"DROP DATABASE {name}")


@pytest.fixture
def store_servers(page: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The servers of the stores whose variables the page names, as their harnesses tell."""
    with ExitStack() as stack:
        for variable, (service, serve) in EXAMPLES.items():
            if variable in page.read_text(encoding="utf-8"):
                require(service)
                stack.enter_context(alone_with(service))
                monkeypatch.setenv(variable, stack.enter_context(serve()))
        yield


@pytest.fixture
def dynamodb(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of tables that are not there yet, as DYNAMODB_URL; dropped in the end."""
    require("dynamodb")
    import boto3

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "local")
    endpoint = os.environ["RETRYSAFE_TEST_DYNAMODB"]
    client = boto3.client("dynamodb", endpoint_url=endpoint, region_name="us-east-1")
    url = f"dynamodb://retrysafe?region=us-east-1&timeout=10s&endpoint={endpoint}"
    monkeypatch.setenv("DYNAMODB_URL", url)
    monkeypatch.setenv("DYNAMODB_ENDPOINT", endpoint)

    def drop() -> None:
        for table in ("retrysafe", "retrysafe_steps"):
            with suppress(client.exceptions.ResourceNotFoundException):
                client.delete_table(TableName=table)

    with alone_with("dynamodb"):
        drop()
        yield url
        drop()
    client.close()
