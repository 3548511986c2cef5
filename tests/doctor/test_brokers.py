"""Queues and topics that lose messages are found at real brokers; those that `declare` makes are sound."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import aio_pika
import pytest
from aiormq.exceptions import ChannelAccessRefused

from retrysafe import Boundary
from retrysafe.cli import doctor, main
from retrysafe.doctor import brokers as examining
from retrysafe.doctor import diagnose, diagnosing
from retrysafe.doctor.diagnosis import Diagnosis
from retrysafe.messaging import Inbox
from retrysafe.messaging.brokers import checks, nats
from retrysafe.messaging.brokers.checks import BrokerExamination
from retrysafe.messaging.brokers.kafka import checks as of_kafka
from retrysafe.messaging.brokers.rabbitmq import checks as of_rabbitmq
from tests.conftest import require
from tests.messaging.harnesses.nats import without_stream
from tests.tables import each_row


def ids(url: str, *topics: str) -> list[str]:
    return [one.id for one in diagnose(brokers=[url], topics=topics, within=20)]


@pytest.fixture
def stream() -> Iterator[tuple[str, str]]:
    require("nats")
    url, name = os.environ["RETRYSAFE_TEST_NATS"], f"doctor-{secrets.token_hex(6)}"
    yield url, name
    asyncio.run(without_stream(url, name))


def test_streams_as_they_are_declared(stream: tuple[str, str]) -> None:
    """One server has them, as there is only one here."""
    url, name = stream
    asyncio.run(nats.declare(url, name, stream=name, partitions=2))
    assert ids(url, name) == ["nats-replicas"]
    assert ids(url, f"{name}.1") == ["nats-replicas"]
    asyncio.run(without_stream(url, name))
    asyncio.run(nats.declare(url, name, stream=name, keep=None))
    assert sorted(ids(url, name)) == ["nats-replicas", "nats-retention"]


@pytest.mark.slow
def test_brokers_are_asked_side_by_side() -> None:
    """Each of these answers when all were asked, so one after the other they would not answer in time."""
    require("rabbitmq")
    together = threading.Barrier(5)

    def hang_up(server: socket.socket) -> None:
        with closing(server.accept()[0]), suppress(threading.BrokenBarrierError):
            together.wait(10)

    with ExitStack() as open_ones:
        servers = [open_ones.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(together.parties)]
        for one in servers:
            threading.Thread(target=hang_up, args=(one,), daemon=True).start()
        said = diagnose(brokers=[f"amqp://guest@127.0.0.1:{one.getsockname()[1]}/" for one in servers], within=20)
    assert [one.id for one in said] == ["broker-unreachable"] * len(servers)
    assert not together.broken


def test_a_dead_broker_is_a_finding_without_its_password() -> None:
    said = diagnose(brokers=["amqp://guest:s3cr3t-word@127.0.0.1:1/"], topics=["q"])
    assert [one.id for one in said] == ["broker-unreachable"]
    assert "s3cr3t-word" not in repr(said)


def test_a_url_that_is_wrong_says_how_it_is_written() -> None:
    (said,) = diagnose(brokers=["pubsub://project/orders"], topics=["orders"])
    assert (said.id, said.evidence.partition(": write ")[2]) == (
        "broker-unreachable",
        "pubsub://PROJECT or pubsub://PROJECT?endpoint=…; topics have names.",
    )


def test_a_broker_that_goes_silent_holds_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor its connection: not even where the library waits for it without an end to hang up."""
    monkeypatch.setattr(checks, "_LEAVING", 0.01)
    left = list[str]()

    async def silent() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            try:
                await asyncio.Event().wait()
            finally:
                left.append("hung up")

    with pytest.raises(TimeoutError):
        checks.ask(silent(), 0.01)
    assert left == ["hung up"]


def test_of_boundaries_with_one_name_the_shortest_window_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them hid the other, on another store."""
    told = list[dict[str, float]]()

    def examined(_url: str, _topics: object, _within: float, windows: dict[str, float], _: object) -> list[Diagnosis]:
        told.append(windows)
        return []

    monkeypatch.setattr(diagnosing, "examine_broker", examined)
    name = f"stock-{secrets.token_hex(4)}"
    for windows in (("1h", "30d"), ("30d", "1h")):
        made = [
            Boundary(name, store=f"sqlite:///{tmp_path / f'{number}{window}.db'}", window=window)
            for number, window in enumerate(windows)
        ]
        inboxes = [Inbox(one) for one in made]
        diagnose(brokers=["kafka://h"], topics=["orders"], app=inboxes)
        for one in made:
            one.close()
        assert told.pop()[name] == 3600.0


_WEEK = 604_800
_TOPIC = {
    "retention.ms": f"{_WEEK}000",
    "segment.ms": "3600000",
    "cleanup.policy": "delete",
    "min.insync.replicas": "2",
    "unclean.leader.election.enable": "false",
}


@each_row(
    ("changed", "found", "needed"),
    [
        ({}, ["broker-window"], _WEEK + 3600.0),
        ({"min.insync.replicas": None, "unclean.leader.election.enable": None}, ["broker-window"], _WEEK + 3600.0),
        ({"segment.ms": None}, ["broker-window"], float(_WEEK)),
        ({"retention.ms": None}, [], None),
        ({"retention.ms": f"{2**63 - 1}"}, ["kafka-retention"], None),
        ({"retention.ms": f"{100 * _WEEK}000"}, ["broker-window"], 100 * _WEEK + 3600.0),
    ],
)
def test_servers_with_kafkas_protocol_need_not_have_its_settings(
    changed: dict[str, str | None], found: list[str], needed: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Redpanda and Event Hubs do not; and a window can only be as long as one can be."""
    settings = {name: value for name, value in (_TOPIC | changed).items() if value is not None}
    facts: dict[str, Any] = {"missing": [], "settings": {"orders": {**settings, "replicas": 3}}}
    fixed = BrokerExamination(of_kafka.EXAMINATION.checks, lambda *_: facts, of_kafka.EXAMINATION.kept)
    monkeypatch.setattr(examining, "examination_of", lambda _: fixed)
    said = examining.examine("kafka://h", ("orders",), 5.0, {"stock": 3600.0})
    assert [one.id for one in said] == found
    if needed is not None:
        assert f"again for {needed:.0f} s" in said[0].evidence
        Boundary("stock-of-the-fix", store="memory://", window=needed).close()


def test_a_queue_that_is_deleted_meanwhile_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    require("rabbitmq")
    url, name = os.environ["RETRYSAFE_TEST_RABBITMQ"], f"doctor-{secrets.token_hex(6)}"
    there = of_rabbitmq._exists
    with monkeypatch.context() as deleted:
        deleted.setattr(of_rabbitmq, "_exists", AsyncMock(return_value=True))
        said = ids(url, name)

    async def is_there() -> bool:
        async with await aio_pika.connect(url) as connection:
            found = await there(connection, name)
            await (await connection.channel()).queue_delete(name)
            return found

    assert not asyncio.run(is_there())
    assert said == ["rabbitmq-queue"]


def test_a_queue_that_the_user_may_not_configure_is_not_taken_for_sound() -> None:
    """RabbitMQ lets such a user ask whether it is there."""

    async def declare_queue(_: str, *, passive: bool = False, **__: Any) -> None:
        if not passive:
            raise ChannelAccessRefused("ACCESS_REFUSED - configure access to queue refused")

    connection = SimpleNamespace(channel=AsyncMock(return_value=SimpleNamespace(declare_queue=declare_queue)))
    assert asyncio.run(of_rabbitmq._difference(connection, "orders")) == "refused"


KEPT = {"orders": 7200.0, "refunds": 600.0}


@pytest.fixture
def inboxes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Inboxes that remember for an hour and for a day, beside a broker that keeps messages as `KEPT` says."""

    def facts(_: str, topics: tuple[str, ...]) -> dict[str, Any]:
        return {"kept": {one: KEPT[one] for one in topics}}

    monkeypatch.setattr(examining, "examination_of", lambda _: BrokerExamination((), facts, lambda told: told["kept"]))
    name = f"of-{secrets.token_hex(4)}"
    made = [
        Boundary(f"{kind}-{name}", store=f"sqlite:///{tmp_path / 'shop.db'}", window=window)
        for kind, window in (("hour", "1h"), ("day", "1d"))
    ]
    living = [Inbox(one) for one in made]
    monkeypatch.setattr(diagnosing, "inboxes", lambda: living)  # others of this process are no part of it
    yield name
    for one in made:
        one.close()


@pytest.mark.parametrize(
    ("topics", "finds"),
    [
        (["orders", "refunds"], True),
        (["orders={day}", "refunds={hour}"], False),
        (["orders={day}", "orders={hour}"], True),
        (["orders={day}", "refunds"], False),
        (["orders", "refunds={hour}"], True),
    ],
)
def test_a_topic_is_compared_with_the_inboxes_that_consume_it(
    topics: list[str], finds: bool, inboxes: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Inboxes on another broker, or of another topic, were compared too; where nothing is said they still are."""
    given = [one.format(hour=f"hour-{inboxes}", day=f"day-{inboxes}") for one in topics]
    main(["doctor", "--broker", "kafka://h", *(f"--topic={one}" for one in given), "--app", "os:path", "--json"])
    found = [one for one in map(json.loads, capsys.readouterr().out.splitlines()) if one["id"] == "broker-window"]
    assert bool(found) == finds
    for one in found:
        assert f"boundary 'hour-{inboxes}' for 3600 s" in one["evidence"]
        assert f"day-{inboxes}" not in one["evidence"]
        assert ("--topic NAME=BOUNDARY" in one["evidence"]) == ("orders" in given)


@pytest.mark.parametrize("app", [[], ["--app", "os:path"]])
def test_a_boundary_without_an_inbox_consumes_no_topic(
    app: list[str], inboxes: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--broker", "kafka://h", "--topic", "a=b=stock", *app]) == 2
    told = capsys.readouterr().err
    assert "Topic 'a=b' is consumed by boundary 'stock', which has no inbox here." in told
    assert (f"'hour-{inboxes}'" in told) == bool(app)
    assert doctor._topic("a=b=") == ("a=b", "")
