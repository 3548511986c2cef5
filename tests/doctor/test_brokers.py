"""Queues and topics that lose messages are found at real brokers; those that `declare` makes are sound."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress

import pytest

from retrysafe.doctor import diagnose
from retrysafe.messaging.brokers import nats
from tests.conftest import require
from tests.messaging.harnesses.nats import without_stream


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
