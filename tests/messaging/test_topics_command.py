"""`retrysafe topics declare`: the command that errors and checks name for what is missing on a broker."""

from __future__ import annotations

import asyncio
import os
import secrets
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import aio_pika
import pytest

from retrysafe.cli import main
from retrysafe.messaging import Outbox
from retrysafe.messaging.brokers.sqlite import SqliteConsumer
from tests.conftest import require
from tests.tables import each_row


def outbox_with(folder: Path, *topics: str) -> str:
    """A store in whose outbox a message of each topic waits."""
    store = f"sqlite:///{folder}/shop.db"
    outbox = Outbox(store, source="/shop")
    with closing(sqlite3.connect(folder / "shop.db", isolation_level=None)) as connection:
        for topic in topics:
            connection.execute("BEGIN")
            outbox.add(connection, topic, {"n": 1})
            connection.execute("COMMIT")
    return store


def test_topics_that_wait_in_the_outbox_are_declared_and_leave(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = outbox_with(tmp_path, "orders", "mails", "orders")
    broker = f"sqlite:///{tmp_path}/broker.db"
    monkeypatch.setenv("RETRYSAFE_BROKER", broker)
    monkeypatch.setenv("RETRYSAFE_STORE", store)
    assert main(["relay", "--once"]) != 0
    assert main(["topics", "declare", "--group", "stock"]) == 0
    assert main(["topics", "declare", "--group", "stock", "--topic", "orders"]) == 0, "what is there stays"
    assert main(["relay", "--once"]) == 0
    said = capsys.readouterr().out
    assert "declared: mails, orders\ndeclared: orders\npublished 3" in said
    assert asyncio.run(receive(SqliteConsumer(tmp_path / "broker.db", "stock"))) == ["mails", "orders", "orders"]


def test_workers_declare_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    require("rabbitmq")
    monkeypatch.setenv("RETRYSAFE_BROKER", os.environ["RETRYSAFE_TEST_RABBITMQ"])
    relayed, consumed = (f"declared-{secrets.token_hex(6)}" for _ in range(2))
    store = outbox_with(tmp_path, relayed)
    write_handler(tmp_path, store, monkeypatch)
    relay = ["relay", "--store", store, "--once"]
    stock = ["inbox", "run", "declaring:reserve", "--once", "3s", "--topic"]
    assert main(["relay", "--store", store, "--once", "--declare"]) == 2
    assert "--declare: name with --topic for which topics" in capsys.readouterr().err
    assert main([*relay, "--topic", relayed, "--declare"]) == 0
    assert main([*stock, consumed]) == 2, "its queue is missing"
    assert main([*stock, consumed, "--declare"]) == 0
    assert main([*stock, relayed, "--declare"]) == 0, "what is there stays"
    assert capsys.readouterr().out == "published 1, delayed 0, dead letters 0\nno message\n1 handled\n"
    asyncio.run(remove(relayed, consumed))


def write_handler(folder: Path, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module with a handler, which a command imports as declaring:reserve."""
    (folder / "declaring.py").write_text(
        "from retrysafe import Boundary\nfrom retrysafe.messaging import Inbox\n"
        f"boundary = Boundary('b', store={store!r}, effects='transactional', window='7d')\n"
        "@Inbox(boundary).handler('stock')\ndef reserve(message): ...\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "declaring", raising=False)


async def remove(*queues: str) -> None:
    """Delete queues of RabbitMQ, which are there."""
    async with await aio_pika.connect(os.environ["RETRYSAFE_TEST_RABBITMQ"]) as connection:
        channel = await connection.channel()
        for queue in queues:
            await channel.declare_queue(queue, passive=True)
            await channel.queue_delete(queue)


async def receive(consumer: SqliteConsumer) -> list[str]:
    """The topics of what a consumer gets."""
    found = await consumer.receive(9, 5)
    await consumer.aclose()
    return sorted(one.envelope.topic for one in found)


def test_a_queue_of_rabbitmq_is_declared(capsys: pytest.CaptureFixture[str]) -> None:
    require("rabbitmq")
    url, topic = os.environ["RETRYSAFE_TEST_RABBITMQ"], f"declared-{secrets.token_hex(6)}"
    assert main(["topics", "declare", "--broker", url, "--topic", topic]) == 0
    assert capsys.readouterr().out == f"declared: {topic}\n"

    asyncio.run(remove(topic))


_DEAD_ENDS = {
    "nats": "retrysafe topics declare --broker URL --topic a --topic 'b c' --prefix shop. --stream STREAM",
    "mqtt": "retrysafe topics declare --broker URL --topic a --topic 'b c' --prefix shop. --group GROUP",
    "sqlite": "retrysafe topics declare --broker URL --topic a --topic 'b c' --group GROUP",
}


@each_row(
    ("worker", "broker", "problem"),
    [
        *((["relay"], f"{name}:///b.db", command) for name, command in _DEAD_ENDS.items()),
        (["inbox", "--group", "g"], "nats:///b.db", "--topic 'b c' --group g --prefix shop. --stream STREAM"),
        (["inbox", "--group", "g"], "sqlite:///b.db", "topics declare --broker URL --topic TOPIC --group GROUP"),
        (["inbox"], "mqtt://127.0.0.1:9", "--group"),
        (["relay"], "redis://127.0.0.1:9/0", "127.0.0.1:9"),
    ],
)
def test_a_worker_names_the_command_for_what_it_cannot_declare(
    worker: list[str],
    broker: str,
    problem: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    store = outbox_with(tmp_path, "a")
    started = {"relay": ["relay", "--store", store, "--once"], "inbox": ["inbox", "run", "declaring:reserve"]}
    write_handler(tmp_path, store, monkeypatch)
    name, *given = worker
    prefix = [] if broker.startswith("sqlite") else ["--prefix", "shop."]
    topics = ["--topic", "a", "--topic", "b c", "--declare"]
    assert main([*started[name], "--broker", broker, *given, *prefix, *topics]) == 2
    said = capsys.readouterr().err
    assert problem in said
    assert name == "relay" or " begins" not in said


@each_row(
    ("arguments", "problem"),
    [
        (["--broker", "sqlite:///broker.db", "--topic", "a"], "--group is missing"),
        (["--broker", "nats://localhost", "--topic", "a"], "--stream is missing"),
        (["--broker", "mqtt://localhost", "--topic", "a"], "--group is missing"),
        (["--broker", "amqp://localhost"], "--topic is missing: name a topic, or give --store"),
        (["--broker", "amqp://localhost", "--topic", ""], "--topic is empty"),
        (["--topic", "a"], "--broker is missing"),
        (["--broker", "nats://localhost", "--topic", "a", "--exchange", "x"], "--exchange is for RabbitMQ"),
        (["--broker", "amqp://127.0.0.1:9/", "--topic", "a"], "BrokerUnavailable|refused|Errno|Error"),
    ],
)
def test_a_missing_argument_is_named(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RETRYSAFE_BROKER", "RETRYSAFE_STORE"):
        monkeypatch.delenv(name, raising=False)
    assert main(["topics", "declare", *arguments]) == 2
    said = capsys.readouterr().err
    assert any(one in said for one in problem.split("|")), said


def test_a_broker_that_makes_everything_itself_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topics", "declare", "--broker", "redis://localhost/0", "--topic", "a"]) == 0
    assert capsys.readouterr().out.startswith("nothing to declare: Redis Streams makes what is missing")
