"""The peculiarities of MQTT: reason codes, sessions that one client has at a time, events in user properties."""

from __future__ import annotations

import asyncio
import os
import resource
import secrets
import socket
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode

from retrysafe import ConfigurationError
from retrysafe.messaging.brokers.mqtt import MqttConsumer, MqttPublisher, declare
from retrysafe.messaging.brokers.mqtt.connecting import ConnectionEnded, MqttLink, address_of, properties
from retrysafe.messaging.brokers.mqtt.consumer import SessionMissing
from retrysafe.messaging.brokers.mqtt.messages import Packet, content_of, envelope_from, topic_of
from retrysafe.messaging.brokers.mqtt.results import result_of, result_of_end
from retrysafe.messaging.cloudevents import Mode
from retrysafe.protocol.messages import Delivery, Envelope, PublishStatus
from tests.conftest import require
from tests.faults.helpers import until
from tests.messaging.harnesses.base import by_road, road_to
from tests.messaging.harnesses.mqtt import MqttServer, without_sessions
from tests.tables import each_row

GROUP = "stock"


def envelope(topic: str, number: int = 0, **other: Any) -> Envelope:
    made = Envelope(
        f"{topic}-{number}", topic, "k", "placed.v1", "/shop", None, {}, str(number).encode(), "application/json"
    )
    return made._replace(**other)


@pytest.fixture
def url() -> str:
    require("mqtt")
    return os.environ["RETRYSAFE_TEST_MQTT"]


@pytest.fixture
async def topic(url: str) -> AsyncIterator[str]:
    name = f"tests-{secrets.token_hex(6)}"
    await declare(url, name, group=GROUP, keep="1h")
    yield name
    await without_sessions(url, name, partitions=None, group=GROUP)


async def taken(consumer: MqttConsumer, number: int) -> list[Delivery]:
    """So many messages, whatever fails in between."""
    found: list[Delivery] = []
    async with asyncio.timeout(30):
        while len(found) < number:
            with suppress(OSError):
                found += await consumer.receive(number - len(found), 1.0)
    return found


async def send(url: str, topic: str, payload: bytes, **told: Any) -> None:
    """Publish as a stranger does."""
    connection = await MqttLink.open(address_of(url), patience=10)
    retain = told.pop("retain", False)
    answer = await connection.publish(topic, payload, properties(PacketTypes.PUBLISH, **told), retain=retain)
    await connection.first_of(answer)
    await connection.close(10)


# ---------------------------------------------------------------- publishing


@each_row(
    ("name", "status"),
    [
        ("Success", PublishStatus.ACKED),
        ("No matching subscribers", PublishStatus.STALLED),
        ("Not authorized", PublishStatus.STALLED),
        ("Quota exceeded", PublishStatus.STALLED),
        ("Topic name invalid", PublishStatus.RETRYABLE),
        ("Payload format invalid", PublishStatus.REJECTED),
        ("Unspecified error", PublishStatus.UNKNOWN),
        ("Implementation specific error", PublishStatus.UNKNOWN),
    ],
)
def test_meaning_of_acknowledgements(name: str, status: PublishStatus) -> None:
    assert result_of(ReasonCode(PacketTypes.PUBACK, name)).status is status


@each_row(
    ("code", "status"),
    [
        *((code, PublishStatus.UNAVAILABLE) for code in (0x89, 0x97, 0x8B)),
        *((code, PublishStatus.UNKNOWN) for code in (None, 0x95)),
    ],
)
def test_a_broker_that_is_busy_blames_no_message(code: int | None, status: PublishStatus) -> None:
    assert result_of_end(ConnectionEnded("it ended", code)).status is status


@pytest.mark.slow
async def test_refusals_of_the_broker_are_no_success_and_no_messages_fault(url: str, topic: str) -> None:
    """The library says that it is published."""
    publisher = MqttPublisher(url)
    refused, nobody, fine = await publisher.publish(
        [envelope("denied/orders"), envelope("nobody/listens"), envelope(topic)]
    )
    await publisher.aclose()
    assert (refused.status, refused.error) == (PublishStatus.STALLED, "Not authorized")
    assert nobody.status is PublishStatus.STALLED
    assert "declare one" in nobody.error
    assert fine.status is PublishStatus.ACKED


class Mute:
    """A broker that lets everybody in, says nothing more, and allows so many messages in flight."""

    def __init__(self, receive: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"mqtt://127.0.0.1:{self._listener.getsockname()[1]}"
        self._connack = bytes([0x20, 6, 0, 0, 3, 0x21]) + receive.to_bytes(2, "big")
        self.published = 0
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):
            connection, _ = self._listener.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(self._connack)
                while data := connection.recv(1 << 16):
                    self.published += data.count(b"placed.v1")

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)


@pytest.fixture
def mute() -> Iterator[Mute]:
    made = Mute(receive=2)
    yield made
    made.close()


@pytest.mark.slow
async def test_without_an_acknowledgement_nobody_knows(mute: Mute) -> None:
    """And no more is sent than the broker receives."""
    publisher = MqttPublisher(mute.url, timeout="3s")
    said = await publisher.publish([envelope("orders", number) for number in range(4)])
    await publisher.aclose()
    mute.close()
    assert {one.status for one in said} == {PublishStatus.UNKNOWN}
    assert mute.published == 2


@pytest.mark.slow
async def test_asking_again_at_once_gets_a_new_connection(url: str, topic: str) -> None:
    """An answer that is there at once lets the event loop hear nothing: neither that the connection is lost."""
    road = road_to(url)
    publisher = MqttPublisher(by_road(road, url), timeout="5s")
    (said,) = await publisher.publish([envelope(topic, 1)])
    assert said.status is PublishStatus.ACKED
    road.close()
    (said,) = await publisher.publish([envelope(topic, 2)])
    assert said.status is PublishStatus.UNKNOWN
    road.open()
    async with asyncio.timeout(10):
        while (await publisher.publish([envelope(topic, 2)]))[0].status is not PublishStatus.ACKED:
            pass
    await publisher.aclose()
    road.close()


@pytest.mark.slow
async def test_a_process_with_many_open_files_publishes_and_consumes(url: str, topic: str) -> None:
    """select(), with which the library's own thread waits, takes no descriptor from 1024 on."""
    least, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, most), most))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        await declare(url, topic, group="g", partitions=None, keep="60s")
        publisher, consumer = MqttPublisher(url), MqttConsumer(url, topic, group="g", keep="60s")
        (said,) = await publisher.publish([envelope(topic, 1)])
        assert said.status is PublishStatus.ACKED
        assert [one.envelope.id for one in await consumer.receive(1, 10)] == [f"{topic}-1"]
        await consumer.aclose()
        await publisher.aclose()
        await without_sessions(url, topic, partitions=None, group="g")
    finally:
        for one in files:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, (least, most))


@pytest.mark.slow
async def test_an_abandoned_connect_takes_no_session_later() -> None:
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as full,
        socket.create_connection(full.getsockname()) as first,
    ):
        port = full.getsockname()[1]
        address = address_of(f"mqtt://127.0.0.1:{port}")
        opening = asyncio.create_task(MqttLink.open(address, client_id="session", patience=30))
        await asyncio.to_thread(until, lambda: f"0100007F:{port:04X} 02" in Path("/proc/net/tcp").read_text())
        opening.cancel()
        await asyncio.wait([opening])
        full.accept()[0].close()  # there is room for one more now
        later, _ = await asyncio.to_thread(full.accept)
        with later:
            assert await asyncio.to_thread(later.recv, 100) == b""
        assert first.recv(1) == b""


@pytest.mark.slow
@each_row("sent", [b"\xf0\xff\xff\xff\xff\xff", b"\x20\x02\x00", b"\x00" * 9])
async def test_bytes_that_are_no_mqtt_end_the_connection(sent: bytes) -> None:
    def serve() -> None:
        accepted, _ = stranger.accept()
        with accepted:
            accepted.recv(1000)
            accepted.sendall(sent)
            with suppress(ConnectionResetError):
                accepted.recv(1000)

    with socket.create_server(("127.0.0.1", 0)) as stranger:
        serving = asyncio.create_task(asyncio.to_thread(serve))
        with pytest.raises((OSError, TimeoutError)):
            await MqttLink.open(address_of(f"mqtt://127.0.0.1:{stranger.getsockname()[1]}"), patience=2)
        await serving


@pytest.mark.slow
async def test_a_password_is_in_no_text() -> None:
    address = address_of("mqtts://user:s3cr%40t@127.0.0.1:1?cafile=ca.pem")
    assert address.password == "s3cr@t"
    assert "s3cr" not in repr(address)
    publisher = MqttPublisher("mqtt://user:s3cr-t@127.0.0.1:1", timeout="2s")
    (said,) = await publisher.publish([envelope("orders")])
    assert said.status is PublishStatus.UNAVAILABLE
    assert "s3cr" not in repr(said)
    for wrong in ("mqtt://u:s3cr@h:port", "mqtt://u:s3cr@h/path", "mqtt://u:s3cr@h?cafile=a", "mqtt://u:s3cr@h?x=1"):
        with pytest.raises(ConfigurationError) as caught:
            MqttPublisher(wrong)
        assert "s3cr" not in str(caught.value)


# ---------------------------------------------------------------- messages


def told_by(content: Packet) -> dict[str, Any]:
    return vars(content.properties)


@each_row("name", ["", "a/+", "#", "$SYS/x", "$share/g/orders", "a\x00b", "a\nb", "x" * 70_000])
def test_invalid_topics(name: str) -> None:
    with pytest.raises(ValueError, match="is not a topic of MQTT"):
        topic_of("", name)


@each_row(
    ("other", "is_binary"),
    [
        ({}, True),
        ({"key": "ключ"}, True),
        ({"headers": {"X-Tenant": "ü"}}, True),
        ({"key": "line\nbreak"}, False),
        ({"key": "x" * 70_000}, False),
        ({"key": "\ufeff"}, False),
        ({"media_type": "application/cloudevents+json", "payload": b"{}"}, False),
    ],
)
@each_row("mode", ["binary", "structured"])
def test_events_that_do_not_fit_are_all_in_the_payload(other: dict[str, Any], is_binary: bool, mode: Mode) -> None:
    sent = envelope("orders", **other)
    content = content_of(sent, mode)
    assert (("id", sent.id) in told_by(content)["UserProperty"]) == (is_binary and mode == "binary")
    assert envelope_from(content, "orders") == sent


@each_row("headers", [{"X-\n": "a"}, {"X-A": "a\x00"}, {"X-A": "x" * 70_000}])
def test_a_header_that_is_no_user_property_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="cannot be a user property"):
        content_of(envelope("orders", headers=headers), "binary")


def test_the_binding_is_that_of_cloudevents() -> None:
    """MQTT binding 1.0.2, section 3.1.5: attributes are user properties of the same names."""
    content = content_of(envelope("orders", 7), "binary")
    assert dict(told_by(content)["UserProperty"]) == {
        "specversion": "1.0",
        "id": "orders-7",
        "source": "/shop",
        "type": "placed.v1",
        "subject": "k",
        "topic": "orders",
    }
    assert (told_by(content)["ContentType"], content.payload) == ("application/json", b"7")


def test_events_of_other_sdks_are_read() -> None:
    from cloudevents.core.formats.json import JSONFormat
    from cloudevents.core.v1.event import CloudEvent

    event = CloudEvent(
        {"id": "1", "source": "/other", "type": "t", "subject": "k", "datacontenttype": "application/json"}, {"a": 1}
    )
    body = JSONFormat().write(event)
    kind = properties(PacketTypes.PUBLISH, ContentType="application/cloudevents+json; charset=utf-8")
    for told in (kind, properties(PacketTypes.PUBLISH)):
        found = envelope_from(Packet(body, told), "orders")
        assert (found.id, found.source, found.type, found.key) == ("1", "/other", "t", "k")


def test_messages_of_strangers_have_an_envelope() -> None:
    nothing = properties(PacketTypes.PUBLISH)
    assert envelope_from(Packet(b"\xff\x00", nothing), "orders")[:3] == ("", "orders", None)
    twice = properties(PacketTypes.PUBLISH, UserProperty=[("id", "1"), ("id", "2"), ("sequence", "x")])
    assert envelope_from(Packet(b'{"specversion"', twice), "orders").id == "1"


# ---------------------------------------------------------------- sessions


@pytest.mark.slow
async def test_strangers_messages_and_retained_ones_are_handed_out(url: str, topic: str) -> None:
    await send(url, topic, b"\xff\xfe", retain=True)
    await send(url, topic, b"x" * 1_000_000)
    await declare(url, topic, group=GROUP, keep="1h")  # a subscription anew brings nothing retained again
    consumer = MqttConsumer(url, topic, group=GROUP, lease="3s", keep="1h")
    found = await taken(consumer, 2)
    assert [(one.envelope.topic, len(one.envelope.payload)) for one in found] == [(topic, 2), (topic, 1_000_000)]
    await consumer.ack(found)
    assert await consumer.receive(1, 0.3) == []
    await consumer.aclose()
    await send(url, topic, b"", retain=True)


@pytest.mark.slow
async def test_a_session_that_is_gone_is_told_and_publishers_wait(url: str, topic: str) -> None:
    await without_sessions(url, topic, partitions=None, group=GROUP)
    consumer = MqttConsumer(url, topic, group=GROUP, lease="3s", keep="1h")
    with pytest.raises(SessionMissing, match="it expired, with what it had, or was never declared"):
        await consumer.receive(1, 30)
    await consumer.aclose()
    publisher = MqttPublisher(url)
    (said,) = await publisher.publish([envelope(topic)])
    await publisher.aclose()
    assert said.status is PublishStatus.STALLED, "a session that the consumer has made would have what came later only"


@pytest.mark.slow
async def test_a_consumer_of_a_used_session_stands_by(url: str, topic: str) -> None:
    first, second = (MqttConsumer(url, topic, group=GROUP, lease="5s", keep="1h") for _ in range(2))
    assert await first.receive(1, 0.5) == []
    publisher = MqttPublisher(url)
    await publisher.publish([envelope(topic, 1)])
    assert await second.receive(1, 6.0) == [], "longer than the lease"
    (one,) = await taken(first, 1)
    await first.aclose()
    (again,) = await taken(second, 1)
    assert again.envelope == one.envelope
    await second.aclose()
    await publisher.aclose()


@pytest.mark.slow
async def test_a_client_that_takes_the_session_is_told_of_and_not_fought_without_pause(url: str, topic: str) -> None:
    consumer = MqttConsumer(url, topic, group=GROUP, lease="3s", keep="1h")
    assert await consumer.receive(1, 0.5) == []
    thief = await MqttLink.open(address_of(url), client_id=f"{GROUP}:{topic}", keep=3600, patience=10)
    with pytest.raises(ConnectionEnded, match="Another client has taken the session"):
        await consumer.receive(1, 30)
    await thief.close(10)
    publisher = MqttPublisher(url)
    await publisher.publish([envelope(topic, 1)])
    assert len(await taken(consumer, 1)) == 1
    for closing in (publisher, consumer):
        await closing.aclose()


@pytest.mark.slow
async def test_no_more_is_received_than_prefetch(url: str, topic: str) -> None:
    publisher = MqttPublisher(url)
    await publisher.publish([envelope(topic, number) for number in range(5)])
    consumer = MqttConsumer(url, topic, group=GROUP, lease="3s", keep="1h", prefetch=2)
    found = await taken(consumer, 2)
    assert await consumer.receive(10, 0.3) == []
    await consumer.ack(found)
    assert [int(one.envelope.payload) for one in await taken(consumer, 2)] == [2, 3]
    for closing in (publisher, consumer):
        await closing.aclose()


@pytest.fixture
def own() -> Iterator[MqttServer]:
    require("mqtt")
    made = MqttServer()
    yield made
    made.close()


@pytest.mark.slow
async def test_acknowledged_messages_outlive_the_broker(own: MqttServer) -> None:
    await declare(own.url, "orders", group=GROUP, keep="1h")
    publisher = MqttPublisher(own.url, timeout="5s")
    consumer = MqttConsumer(own.url, "orders", group=GROUP, lease="3s", keep="1h")
    await publisher.publish([envelope("orders", number) for number in range(6)])
    found = await taken(consumer, 6)
    await consumer.ack(found[:3])
    await asyncio.to_thread(own.kill)
    (away,) = await publisher.publish([envelope("orders", 6)])
    assert away.status in (PublishStatus.UNAVAILABLE, PublishStatus.UNKNOWN)
    await asyncio.to_thread(own.start)
    (back,) = await publisher.publish([envelope("orders", 6)])
    assert back.status is PublishStatus.ACKED
    again = await taken(consumer, 4)
    assert order_of(again)[-4:] == [3, 4, 5, 6]
    for closing in (publisher, consumer):
        await closing.aclose()


def order_of(deliveries: Sequence[Delivery]) -> list[int]:
    return [int(one.envelope.payload) for one in deliveries]


async def test_names_and_numbers_that_are_wrong_are_refused() -> None:
    cases: list[dict[str, Any]] = [
        {"topics": []},
        {"topics": "a/#"},
        {"group": ""},
        {"prefetch": 0},
        {"prefetch": 1 << 16},
    ]
    for wrong in cases:
        with pytest.raises(ConfigurationError):
            MqttConsumer("mqtt://h", **{"topics": "orders", "group": GROUP, **wrong})
    with pytest.raises(ConfigurationError, match="mode="):
        MqttPublisher("mqtt://h", mode="other")  # type: ignore[arg-type]
