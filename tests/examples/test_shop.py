"""The shop of the examples, as its readers run it, on every broker."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import aio_pika
import pytest
import redis

from tests.conftest import require
from tests.docs.pages import ROOT
from tests.messaging.harnesses import pubsub as on_pubsub
from tests.messaging.harnesses import servicebus as on_servicebus
from tests.messaging.harnesses.base import Place
from tests.messaging.harnesses.kafka import delete
from tests.messaging.harnesses.mqtt import without_sessions
from tests.messaging.harnesses.nats import without_stream
from tests.messaging.harnesses.sqs import remove
from tests.proving import effort

ORDERS = 60
ALL_IS_WELL = """\
    60 orders
    60 reserved
    60 reserved for different orders
     0 reserved out of order
"""


def run(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "examples.shop", "--orders", str(ORDERS), "--folder", str(folder), *arguments]
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    environment = {**os.environ, **paths, **variables}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False)


def all_is_well(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(ALL_IS_WELL)
    assert "    60 mails\n    60 orders with a mail\n" in done.stdout


@pytest.mark.one_of("the shop's brokers", of=6)
@pytest.mark.slow
def test_every_order_is_reserved_and_mailed_once_while_processes_are_killed(tmp_path: Path) -> None:
    done = run(tmp_path / "shop", "--faults")
    all_is_well(done)
    assert int(done.stdout.splitlines()[-1].split()[0]) > 0, done.stdout
    again = run(tmp_path / "shop")
    assert again.returncode == 2
    assert "is there already" in again.stderr


@pytest.fixture
def name() -> str:
    """Return a name of our own at a broker that others use too."""
    return f"shop-{uuid4().hex}"


@pytest.fixture
def streams(name: str) -> Iterator[str]:
    require("redis")
    url = os.environ["RETRYSAFE_TEST_REDIS"]
    yield url
    with redis.Redis.from_url(url) as client:
        keys = list(client.scan_iter(match=f"{name}:*", count=1000))
        assert keys
        client.delete(*keys)


@pytest.fixture
def rabbitmq(name: str) -> Iterator[str]:
    require("rabbitmq")
    url = os.environ["RETRYSAFE_TEST_RABBITMQ"]
    yield url

    async def remove() -> None:
        async with await aio_pika.connect(url) as connection:
            channel = await connection.channel()
            for service in ("inventory", "mail"):
                for number in range(4):
                    await channel.queue_delete(f"{name}.{service}.orders.placed.{number}")
            await channel.exchange_delete(name)

    asyncio.run(remove())


@pytest.mark.one_of("the shop's brokers", of=6)
@pytest.mark.slow
def test_on_nats(tmp_path: Path, name: str) -> None:
    require("nats")
    url = os.environ["RETRYSAFE_TEST_NATS"]
    all_is_well(run(tmp_path / "shop", "--broker", url, SHOP_NAME=name))
    asyncio.run(without_stream(url, name))


@pytest.mark.one_of("the shop's brokers", of=6)
@pytest.mark.slow
def test_on_mqtt(tmp_path: Path, name: str) -> None:
    require("mqtt")
    url = os.environ["RETRYSAFE_TEST_MQTT"]
    all_is_well(run(tmp_path / "shop", "--broker", url, SHOP_NAME=name))
    for service in ("inventory", "mail"):
        asyncio.run(without_sessions(url, "orders.placed", partitions=4, prefix=f"{name}/", group=service))


@pytest.fixture
def sns(name: str) -> Iterator[str]:
    require("sns")
    url = os.environ["RETRYSAFE_TEST_SNS"]
    yield url

    async def clean() -> None:
        for service in ("inventory", "mail"):
            await remove(Place(url, name, "orders.placed", service, 4))

    asyncio.run(clean())


@pytest.fixture
def pubsub(name: str) -> Iterator[str]:
    require("pubsub")
    url = os.environ["RETRYSAFE_TEST_PUBSUB"]
    yield url
    groups = ("inventory", "mail")
    asyncio.run(on_pubsub.without(url, "orders.placed", *groups, prefix=f"{name}-"))


@pytest.fixture
def servicebus(name: str) -> Iterator[str]:
    require("servicebus")
    url = os.environ["RETRYSAFE_TEST_SERVICEBUS"]
    yield url
    asyncio.run(on_servicebus.without(url, "orders.placed", prefix=f"{name}-"))


@pytest.fixture
def kafka(name: str) -> Iterator[str]:
    require("kafka")
    url = os.environ["RETRYSAFE_TEST_KAFKA"]
    yield url
    delete(url, f"{name}.orders.placed")


@pytest.mark.one_of("the shop's brokers", of=6)
@pytest.mark.slow
def test_on_redis_streams(tmp_path: Path, streams: str, name: str) -> None:
    all_is_well(run(tmp_path / "shop", "--broker", streams, SHOP_NAME=name))


@pytest.mark.one_of("the shop's brokers", of=6)
@pytest.mark.slow
def test_on_rabbitmq(tmp_path: Path, rabbitmq: str, name: str) -> None:
    all_is_well(run(tmp_path / "shop", "--broker", rabbitmq, SHOP_NAME=name))


@pytest.mark.one_of("the shop's brokers", of=6)
@pytest.mark.slow
def test_on_kafka(tmp_path: Path, kafka: str, name: str) -> None:
    all_is_well(run(tmp_path / "shop", "--broker", kafka, SHOP_NAME=name))


@pytest.mark.skipif(not effort.is_full(), reason="left to make prove")
def test_on_sns_and_sqs(tmp_path: Path, sns: str, name: str) -> None:
    all_is_well(run(tmp_path / "shop", "--broker", sns, SHOP_NAME=name))


@pytest.mark.skipif(not effort.is_full(), reason="left to make prove")
def test_on_pubsub(tmp_path: Path, pubsub: str, name: str) -> None:
    all_is_well(run(tmp_path / "shop", "--broker", pubsub, SHOP_NAME=name))


@pytest.mark.skipif(not effort.is_full(), reason="left to make prove")
def test_on_service_bus(tmp_path: Path, servicebus: str, name: str) -> None:
    all_is_well(run(tmp_path / "shop", "--broker", servicebus, SHOP_NAME=name))
