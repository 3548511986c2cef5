"""MQTT under the suites, on mosquitto."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from retrysafe.messaging.brokers.base import Consumer
from retrysafe.protocol.messages import Envelope
from retrysafe.testing.publishers import PublisherFeatures
from tests.faults.proxies.framing_mqtt import MqttFraming
from tests.messaging.harnesses.base import (
    PARTITIONS,
    Bench,
    Harness,
    Killed,
    OnARoad,
    Page,
    Place,
    by_road,
    road_to,
)
from tests.messaging.own_brokers import OwnBroker

LARGEST = 2_000_000
"""The largest packet in bytes, as scripts/services sets it."""
GROUP = "inventory"


class MqttBench(Bench):
    framing = MqttFraming

    async def open(self) -> MqttBench:
        from retrysafe.messaging.brokers.mqtt import MqttPublisher, declare

        await declare(self.url, self.topic, group=GROUP, partitions=PARTITIONS, keep="1h")
        self.publisher = MqttPublisher(self.url, partitions=PARTITIONS)
        return self

    def make(self, url: str) -> Consumer:
        from retrysafe.messaging.brokers.mqtt import MqttConsumer

        options = {"group": GROUP, "lease": "1s", "timeout": "5s", "keep": "1h", **self.options}
        return MqttConsumer(url, self.topic, partitions=PARTITIONS, **options)

    async def clean(self) -> None:
        await without_sessions(self.url, self.topic, partitions=PARTITIONS)


async def without_sessions(
    url: str, topic: str, *, partitions: int | None, prefix: str = "", group: str = GROUP
) -> None:
    """End the sessions of a group, with what they have."""
    from retrysafe.messaging.brokers.mqtt.connecting import MqttLink, address_of
    from retrysafe.messaging.brokers.mqtt.topology import sessions_of

    for session in sessions_of(topic, group=group, prefix=prefix, partitions=partitions):
        connection = await MqttLink.open(address_of(url), client_id=session.name, keep=60, patience=10)
        await connection.close(10, keep=0)


class Subscriber(OnARoad):
    """Topics with a session, and what has come to it."""

    features = PublisherFeatures(reports_missing=True)
    elsewhere = "nowhere"
    largest = LARGEST
    url: str
    session: Any

    async def open(self) -> None:
        from retrysafe.messaging.brokers.mqtt.connecting import MqttLink, address_of

        self.come: list[Any] = []
        self.more = asyncio.Event()
        self.session = await MqttLink.open(address_of(self.url), patience=10, received=self.take)
        await self.session.subscribe([self.topic, self.beside, f"{self.topic}/end"], retained=False)

    def take(self, connection: Any, message: Any) -> None:
        connection.acknowledge(message.mid)
        self.come.append(message)
        self.more.set()

    async def stall(self) -> bool:
        """No session subscribes to it."""
        await self.session.unsubscribe(self.topic)
        return True

    async def unstall(self) -> None:
        await self.session.subscribe([self.topic], retained=False)

    async def arrived(self) -> Sequence[Envelope]:
        """All that has come before a last message does."""
        from retrysafe.messaging.brokers.mqtt.messages import Packet, envelope_from

        last = secrets.token_hex(8).encode()
        await self.session.first_of(await self.session.publish(f"{self.topic}/end", last))
        while not any(one.payload == last for one in self.come):
            self.more.clear()
            await self.session.first_of(asyncio.ensure_future(self.more.wait()))
        return [
            envelope_from(Packet(one.payload, one.properties), one.topic)
            for one in self.come
            if one.topic == self.topic
        ]


@asynccontextmanager
async def subscribers(url: str = "", **options: Any) -> AsyncIterator[Subscriber]:
    from retrysafe.messaging.brokers.mqtt import MqttPublisher

    made = Subscriber()
    made.url = url or os.environ["RETRYSAFE_TEST_MQTT"]
    made.topic = f"suite-{secrets.token_hex(6)}"
    made.beside = f"{made.topic}-beside"
    await made.open()
    made.road = road_to(made.url)
    made.publisher = MqttPublisher(by_road(made.road, made.url), timeout="10s", **options)
    yield made
    await made.publisher.aclose()
    await made.session.close(10)
    await asyncio.to_thread(made.road.close)


async def left(at: Place) -> int:
    """Count the messages in the sessions of a group: a client that takes each for a moment is sent it again.

    Where a consumer takes its session back before that, nobody can tell: it counts as one message.
    """
    from retrysafe.messaging.brokers.mqtt.connecting import ConnectionEnded

    try:
        return await _left(at)
    except ConnectionEnded:
        return 1


async def _left(at: Place) -> int:
    from retrysafe.messaging.brokers.mqtt.connecting import MqttLink, address_of
    from retrysafe.messaging.brokers.mqtt.topology import sessions_of

    found: list[Any] = []
    for session in sessions_of(at.topic, group=at.group, prefix=f"{at.name}/", partitions=at.partitions):
        connection = await MqttLink.open(
            address_of(at.url),
            client_id=session.name,
            keep=3600,
            patience=10,
            received=lambda _, one: found.append(one),
        )
        await connection.flush(10)  # the answer comes behind all that the session has; a message of ours would stay
        await connection.close(10)
    return len(found)


async def remove(at: Place) -> None:
    await without_sessions(at.url, at.topic, partitions=at.partitions, prefix=f"{at.name}/", group=at.group)


class MqttServer(OwnBroker):
    """A mosquitto that writes each message down before it acknowledges it."""

    service = "mqtt"

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"


HARNESS = Harness(
    "mqtt",
    service="mqtt",
    bench=MqttBench,
    publishings={
        "mqtt": lambda folder: subscribers(),
        "mqtt-structured": lambda folder: subscribers(mode="structured"),
    },
    library="paho.mqtt.client",
    group=("--topic", "{topic}", "--prefix", "{name}/", "--partitions", "2", "--group", "{group}"),
    killed={"mqtt": Killed("mqtt", "mqtt", MqttServer)},
    page=Page("MQTT_URL", partial(without_sessions, topic="docs-orders", partitions=None, group="stock")),
    left=left,
    remove=remove,
)
