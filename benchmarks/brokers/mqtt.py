"""A topic of MQTT 5 with a session that keeps its messages, and paho-mqtt, at QoS 1."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from benchmarks import services
from benchmarks.brokers.base import WAIT, WINDOW, Broker, Receive, new_topic, receiving
from retrysafe.messaging.brokers.mqtt import MqttConsumer, MqttPublisher, declare
from retrysafe.messaging.brokers.mqtt.messages import content_of
from retrysafe.messaging.brokers.mqtt.topology import sessions_of
from retrysafe.protocol.messages import Envelope

GROUP = "bench"


@asynccontextmanager
async def opened() -> AsyncIterator[Broker]:
    """A new topic, and a session that subscribes to it."""
    url, topic = services.url("mqtt"), new_topic()
    (session,) = sessions_of(topic, group=GROUP, prefix="", partitions=None)
    await declare(url, topic, group=GROUP, keep="1h")
    publishing = connected("")

    async def raw(written: Sequence[Envelope]) -> None:
        sent = []
        for envelope in written:
            payload, properties = content_of(envelope, "binary")
            sent.append(publishing.publish(envelope.topic, payload, 1, properties=properties))
        for one in sent:
            one.wait_for_publish(WAIT)

    async def clear() -> None:
        """End the session with what it has, and make it anew."""
        await asyncio.to_thread(ended, session.name)
        await declare(url, topic, group=GROUP, keep="1h")

    publisher = MqttPublisher(url)
    make = partial(MqttConsumer, url, topic, group=GROUP, keep="1h")
    yield Broker(topic, publisher, raw, clear, partial(receiving, make), partial(raw_receiving, session.name))
    await publisher.aclose()
    publishing.disconnect()
    publishing.loop_stop()
    await asyncio.to_thread(ended, session.name)


@asynccontextmanager
async def raw_receiving(session: str) -> AsyncIterator[Receive]:
    """Goes on with the session by the raw client."""
    arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()
    client = connected(session, lambda _client, _data, message: arrived.put(message))

    async def receive() -> int:
        found = [arrived.get(timeout=WAIT)]
        while not arrived.empty():
            found.append(arrived.get())
        for message in found:
            client.ack(message.mid, 1)
        return len(found)

    yield receive
    client.disconnect()
    client.loop_stop()


def connected(session: str, received: Callable[..., object] | None = None, keep: int = 3600) -> Client:
    """A client whose thread runs."""
    client = Client(
        CallbackAPIVersion.VERSION2, client_id=session, protocol=MQTTProtocolVersion.MQTTv5, manual_ack=True
    )
    client.max_inflight_messages_set(WINDOW)
    if received is not None:
        client.on_message = received
    asked = Properties(PacketTypes.CONNECT)
    asked.SessionExpiryInterval = keep if session else 0
    parts = urlsplit(services.url("mqtt"))
    client.connect(parts.hostname or "", parts.port or 1883, clean_start=not session, properties=asked)
    client.loop_start()
    return client


def ended(session: str) -> None:
    """End a session."""
    client = connected(session, keep=0)
    client.disconnect()
    client.loop_stop()
