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
from tests.messaging.harnesses import pubsub, servicebus
from tests.messaging.harnesses.mqtt import without_sessions
from tests.messaging.harnesses.nats import without_stream
from tests.messaging.harnesses.sqs import options_of, without_queue
from tests.stores.ageing import mysql_connection
from tests.stores.harnesses import EXAMPLES


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


@pytest.fixture
def redis_url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of the test Redis, also as REDIS_URL."""
    require("redis")
    import redis

    url = os.environ["RETRYSAFE_TEST_REDIS"]
    monkeypatch.setenv("REDIS_URL", url)
    with alone_with("redis"):
        with redis.Redis.from_url(url) as client:
            for name in client.scan_iter("docs:*"):
                client.delete(name)
        yield url


@pytest.fixture
def rabbitmq_url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of the test RabbitMQ, also as RABBITMQ_URL; the queues of the pages are not there."""
    require("rabbitmq")
    url = os.environ["RETRYSAFE_TEST_RABBITMQ"]
    monkeypatch.setenv("RABBITMQ_URL", url)
    with alone_with("rabbitmq"):
        asyncio.run(_without_queues(url))
        yield url


async def _without_queues(url: str) -> None:
    import aio_pika

    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        groups = ("stock.docs-placed", "mail.docs-placed")
        for queue in ("docs-mail", *groups, *(f"docs-orders.{number}" for number in range(4))):
            await channel.queue_delete(queue)


@pytest.fixture
def nats_url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of the test NATS, also as NATS_URL; the stream of the page is not there."""
    require("nats")
    url = os.environ["RETRYSAFE_TEST_NATS"]
    monkeypatch.setenv("NATS_URL", url)
    with alone_with("nats"):
        asyncio.run(without_stream(url, "docs"))
        yield url


@pytest.fixture
def mqtt_url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of the test MQTT broker, also as MQTT_URL; the session of the page is not there."""
    require("mqtt")
    url = os.environ["RETRYSAFE_TEST_MQTT"]
    monkeypatch.setenv("MQTT_URL", url)
    with alone_with("mqtt"):
        asyncio.run(without_sessions(url, "docs-orders", partitions=None, group="stock"))
        yield url
        asyncio.run(without_sessions(url, "docs-orders", partitions=None, group="stock"))


@pytest.fixture
def sqs_endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The endpoint of the stand-in for SQS and SNS, also as SQS_ENDPOINT; the queue of the page is not there."""
    require("sns")
    url = os.environ["RETRYSAFE_TEST_SNS"]
    endpoint: str = options_of(url)["endpoint"]
    monkeypatch.setenv("SQS_ENDPOINT", endpoint)
    with alone_with("sns"):
        asyncio.run(without_queue(url, "docs-orders.fifo"))
        yield endpoint


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
def pubsub_endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The endpoint of the stand-in for Pub/Sub, also as PUBSUB_ENDPOINT; the topic of the page is not there."""
    require("pubsub")
    url = os.environ["RETRYSAFE_TEST_PUBSUB"]
    endpoint: str = pubsub.options_of(url)["endpoint"]
    monkeypatch.setenv("PUBSUB_ENDPOINT", endpoint)
    with alone_with("pubsub"):
        asyncio.run(pubsub.without(url, "docs-orders", "parcels", prefix=""))
        yield endpoint


@pytest.fixture
def servicebus_url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of the stand-in for Service Bus, also as SERVICEBUS_URL; the topic of the page is not there."""
    require("servicebus")
    url = os.environ["RETRYSAFE_TEST_SERVICEBUS"]
    monkeypatch.setenv("SERVICEBUS_URL", url)
    with alone_with("servicebus"):
        asyncio.run(servicebus.without(url, "docs-orders", prefix=""))
        yield url


@pytest.fixture
def kafka_url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of the test Kafka, also as KAFKA_URL; the topics and groups of the pages are removed in the end."""
    require("kafka")
    from tests.messaging.harnesses.kafka import operator

    url = os.environ["RETRYSAFE_TEST_KAFKA"]
    monkeypatch.setenv("KAFKA_URL", url)
    with alone_with("kafka"):
        yield url
        client = operator(url)
        topics = [name for name in client.list_topics(timeout=10).topics if name.startswith("docs-")]
        listed = client.list_consumer_groups().result().valid
        groups = [one.group_id for one in listed if one.group_id.startswith("docs-")]
        removing = client.delete_consumer_groups(groups) if groups else {}
        for removed in (*removing.values(), *(client.delete_topics(topics) if topics else {}).values()):
            removed.result()


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
    """The URL of a table that is not there yet, as DYNAMODB_URL; dropped in the end."""
    require("dynamodb")
    import boto3

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "local")
    endpoint = os.environ["RETRYSAFE_TEST_DYNAMODB"]
    client = boto3.client("dynamodb", endpoint_url=endpoint, region_name="us-east-1")
    url = f"dynamodb://retrysafe?region=us-east-1&endpoint={endpoint}"
    monkeypatch.setenv("DYNAMODB_URL", url)
    monkeypatch.setenv("DYNAMODB_ENDPOINT", endpoint)
    with alone_with("dynamodb"):
        with suppress(client.exceptions.ResourceNotFoundException):
            client.delete_table(TableName="retrysafe")
        yield url
        client.delete_table(TableName="retrysafe")
    client.close()
