"""The peculiarities of Service Bus: sessions and their locks, the limits of a message, the service's answers."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, cast
from uuid import UUID

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue, exceptions
from azure.servicebus._pyamqp.error import TokenAuthFailure, TokenExpired
from cloudevents.core.formats.json import JSONFormat

from retrysafe import ConfigurationError
from retrysafe.messaging import QueueMissing
from retrysafe.messaging.brokers.servicebus import ServiceBusConsumer, ServiceBusPublisher, declare, publisher
from retrysafe.messaging.brokers.servicebus.client import FAILURES, VARIABLE, namespace_of
from retrysafe.messaging.brokers.servicebus.locks import QueueLock
from retrysafe.messaging.brokers.servicebus.messages import (
    envelope_from,
    id_of,
    message_of,
    name_of,
    session_of,
    source_of,
)
from retrysafe.messaging.brokers.servicebus.results import alone, blames_one, for_a_consumer, result_of
from retrysafe.messaging.cloudevents import Mode
from retrysafe.protocol.messages import Envelope, PublishStatus
from retrysafe.testing.consumers import Trial, numbers
from tests.conftest import require
from tests.faults.proxies.framing_amqp1 import Amqp1Framing
from tests.faults.proxies.proxy import Proxy
from tests.messaging.harnesses import bench
from tests.messaging.harnesses.base import by_road, road_to
from tests.messaging.harnesses.servicebus import (
    GROUP,
    PREFIX,
    ServiceBusServer,
    Topic,
    administration,
    messages,
    topics,
    without,
)
from tests.messaging.inboxes import envelope
from tests.tables import each_row

# ---------------------------------------------------------------- messages


def event(**other: Any) -> Envelope:
    return envelope("1")._replace(payload=b'{"n":1}', media_type="application/json", headers={})._replace(**other)


class Received:
    """A message as the client library hands it out, with names and texts of properties as octets."""

    def __init__(self, sent: ServiceBusMessage) -> None:
        told = cast("dict[str, str]", sent.application_properties or {})
        self.application_properties: Any = {name.encode(): value.encode() for name, value in told.items()} or None
        self.body: Any = sent.body
        self.content_type, self.session_id = sent.content_type, sent.session_id


def read(sent: ServiceBusMessage, topic: str = "orders") -> Envelope:
    return envelope_from(cast("Any", Received(sent)), topic)


@each_row("mode", ["binary", "structured"])
@each_row(
    "other",
    [
        {},
        {"headers": {"traceparent": "00-1-2-01", "X-Tenant": "ü"}},
        {"payload": b""},
        {"payload": bytes(range(256)), "media_type": "application/avro"},
        {"key": None, "sequence": 2**40},
        {"key": ""},
        {"key": "x" * 200},
        {"media_type": "application/cloudevents+json"},
    ],
)
def test_an_event_is_the_same_when_it_is_read(other: dict[str, Any], mode: Mode) -> None:
    given = event(**other)
    for session in (session_of(given, None), session_of(given, 4), None):
        sent = message_of(given, mode, session)
        assert read(sent, given.topic) == given
        assert len(sent.message_id or "") <= 128
        assert len(sent.session_id or "") <= 128


@each_row("name", ["cloudEvents:id", "cloudEvents_id", "ce-id", "X-Half-\ud800"])
def test_a_header_without_a_place_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"read as an attribute|surrogates not allowed"):
        message_of(event(headers={name: "1"}), "binary", None)


def test_a_header_that_would_be_the_payload_is_refused() -> None:
    with pytest.raises(ValueError, match="read as the payload"):
        message_of(event(headers={"data": "x"}), "structured", None)


def test_events_of_others_are_read_in_both_modes() -> None:
    told = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "subject": "k", "data": {"n": 1}}
    body = json.dumps(told).encode()
    for media_type in (None, "application/cloudevents+json; charset=utf-8"):
        found = read(ServiceBusMessage(body, content_type=media_type))
        assert (found.id, found.source, found.type, found.key, found.payload) == ("1", "/s", "t", "k", b'{"n":1}')
    for prefix in ("cloudEvents:", "cloudEvents_"):
        properties = {f"{prefix}{name}": str(told[name]) for name in ("specversion", "id", "source", "type")}
        sent = ServiceBusMessage(b"x", application_properties=cast("Any", properties), content_type="text/x")
        found = read(sent)
        assert (found.id, found.source, found.media_type, found.payload) == ("1", "/s", "text/x", b"x")


def test_the_sdk_of_others_understands_ours() -> None:
    sent = message_of(event(), "structured", None)
    theirs = JSONFormat().read(None, b"".join(sent.body))
    assert (theirs.get_id(), theirs.get_source(), theirs.get_subject(), theirs.get_data()) == (
        "1",
        "/shop",
        "k",
        {"n": 1},
    )


@each_row("payload", [b"", b"\xff\xfe", b'{"specversion"'])
def test_a_message_of_a_stranger_is_an_event_without_an_id(payload: bytes) -> None:
    """For the inbox to judge. It is ordered by its session."""
    properties = cast("Any", {"X-Tenant": "ü", "id": "forged"})
    found = read(ServiceBusMessage(payload, application_properties=properties, session_id="customer-7"))
    assert (found.id, found.source, found.type) == ("", "", "")
    assert (found.key, found.topic, found.payload) == ("customer-7", "orders", payload)
    assert found.headers == {"X-Tenant": "ü"}


def test_a_body_that_is_no_data_is_read_as_its_text() -> None:
    received = Received(ServiceBusMessage(b""))
    for body, text in ((None, b""), ("ü", "ü".encode()), (7, b"7")):
        received.body = body
        assert envelope_from(cast("Any", received), "orders").payload == text


@each_row(
    ("body", "text"),
    [
        ({b"item": "book", b"n": 1}, b'{"item":"book","n":1}'),
        ([1, b"two", {"three": None}], b'[1,"two",{"three":null}]'),
        (iter([[1, "a"], [2]]), b'[1,"a",2]'),
        (iter([b"ab", bytearray(b"cd")]), b"abcd"),
        (True, b"true"),
        (b"\xff", b"\xff"),
    ],
)
def test_nothing_of_a_body_is_lost_that_is_no_data(body: Any, text: bytes) -> None:
    """Two deliveries of one message have one payload, by which an inbox knows it."""
    received = Received(ServiceBusMessage(b""))
    received.body = body
    assert envelope_from(cast("Any", received), "orders").payload == text


def test_an_attribute_without_a_value_is_not_there() -> None:
    received = Received(message_of(event(key=None), "binary", None))
    received.application_properties |= {b"cloudEvents:subject": None, b"cloudEvents:dataschema": None}
    found = envelope_from(cast("Any", received), "orders")
    assert (found.key, found.headers) == (None, {})


@each_row(
    ("given", "told"), [(1_700_000_000_123, "2023-11-14T22:13:20.123000Z"), (2**62, str(2**62)), ("noon", "noon")]
)
def test_the_time_of_an_event_is_an_instant(given: Any, told: str) -> None:
    """Other libraries send it in a type of its own, which ours hands out as a number."""
    received = Received(message_of(event(), "binary", None))
    received.application_properties[b"cloudEvents:time"] = given
    assert envelope_from(cast("Any", received), "orders").headers["time"] == told


def test_attributes_with_another_prefix_are_no_headers() -> None:
    """Or the event could not be published again."""
    received = Received(message_of(event(), "binary", None))
    received.application_properties |= {b"cloudEvents_specversion": b"1.0", b"cloudEvents_id": b"other"}
    found = envelope_from(cast("Any", received), event().topic)
    assert found == event()


def test_keys_are_sessions() -> None:
    assert session_of(event(key="order-7"), None) == "order-7"
    unusual = [session_of(event(key=key), None) for key in ("", "x" * 129, "x" * 130, "lane 1", "\ud800" * 128)]
    assert len(set(unusual)) == 5
    without_key = {session_of(event(key=None, id=str(number)), None) for number in range(200)}
    assert len(without_key) == 16
    spread = {session_of(event(key=str(number)), 4) for number in range(200)}
    assert len(spread) == 4
    assert all(0 < len(name) <= 128 for name in (*unusual, *without_key, *spread))


def test_a_message_is_recognised_by_its_source_and_its_id() -> None:
    pairs = [("/a", "b"), ("/b", "b"), ("/", "ab"), ("/ab", ""), ("/a", "ü"), ("/a", "x" * 200), ("/a", "x" * 201)]
    known = {id_of(event(source=source, id=name)) for source, name in pairs}
    assert len(known) == len(pairs)
    assert all(len(one) <= 128 for one in known)


def test_names_that_the_service_does_not_take() -> None:
    assert source_of("shop-", "orders.placed", "stock").path == "shop-orders.placed/Subscriptions/stock"
    for wrong in ("", "a b", "a/b", "ä", "-a", "a-", "x" * 261):
        with pytest.raises(ValueError, match="not a name of Service Bus"):
            name_of("", wrong)
    with pytest.raises(ValueError, match="not a name of a subscription"):
        source_of("", "orders", "x" * 51)


# ---------------------------------------------------------------- settings


@each_row(
    "url",
    [
        "servicebus://",
        "servicebus://x/queue",
        "servicebus://x?a=1",
        "servicebus://user@x",
        "servicebus://:secret@x",
        "servicebus://user:secret#@x",
        "servicebus://user:secret@x:port",
        "servicebus://user:secret@[x",
        "servicebus://user:secret%3BEntityPath=y@x",
        "servicebus://user:secret@x?emulator=yes",
        "amqp://x",
    ],
)
def test_a_url_that_is_none_of_a_namespace(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"servicebus://NAME\.servicebus\.windows\.net") as raised:
        namespace_of(url)
    assert "secret" not in str(raised.value)


@each_row(
    ("told", "why"),
    [
        ("nonsense;SharedAccessKey=secret", "no connection string"),
        ("Endpoint=sb://ns/;SharedAccessKey=secret", "no connection string"),
        ("Endpoint=sb://other/;SharedAccessKeyName=n;SharedAccessKey=secret", "leads to 'other', and the URL to 'ns'"),
    ],
)
def test_a_connection_string_that_leads_nowhere_is_refused_at_once(
    told: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a relay would rest for ever, and not say why."""
    monkeypatch.setenv(VARIABLE, told)
    with pytest.raises(ConfigurationError, match=why) as raised:
        namespace_of("servicebus://ns")
    assert "secret" not in str(raised.value)


def test_a_connection_string_of_one_queue_is_one_of_its_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the service that says what the policy of a queue allows."""
    monkeypatch.setenv(VARIABLE, "endpoint=sb://NS/;SharedAccessKeyName=n;SharedAccessKey=a=b=;EntityPath=orders;")
    found = namespace_of("servicebus://ns?emulator=true")
    assert found.connection == (
        "endpoint=sb://NS/;SharedAccessKeyName=n;SharedAccessKey=a=b=;UseDevelopmentEmulator=true"
    )
    assert "a=b=" not in repr(found)


def test_sources_of_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "Endpoint=sb://ns/;SharedAccessKeyName=n;SharedAccessKey=k")
    assert namespace_of("servicebus://ns").connection == os.environ[VARIABLE]
    told = namespace_of("servicebus://policy:a%2Bb%3D@ns.example").connection
    assert told == "Endpoint=sb://ns.example/;SharedAccessKeyName=policy;SharedAccessKey=a+b="
    monkeypatch.delenv(VARIABLE)
    assert namespace_of("servicebus://ns").connection is None


async def test_without_credentials_the_relay_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where azure-identity is not installed."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setitem(__import__("sys").modules, "azure.identity.aio", None)
    publisher = ServiceBusPublisher("servicebus://ns.servicebus.windows.net")
    (said,) = await publisher.publish([event()])
    assert said.status is PublishStatus.UNAVAILABLE
    assert VARIABLE in said.error
    await publisher.aclose()


@each_row("wrong", [{"mode": "other"}, {"partitions": 0}])
def test_settings_of_a_publisher_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"mode='other'|partitions= is a number"):
        ServiceBusPublisher("servicebus://ns", **wrong)


@each_row("wrong", [{"topics": []}, {"sessions": 0}, {"prefetch": 0}, {"group": "a b"}, {"topics": "a b"}])
def test_settings_of_a_consumer_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        ServiceBusConsumer("servicebus://ns", **{"topics": "orders", **wrong})


def test_the_window_is_what_is_declared() -> None:
    assert ServiceBusConsumer("servicebus://ns", "orders").redelivery_window is None
    assert ServiceBusConsumer("servicebus://ns", "orders", redelivery_window="14d").redelivery_window == 14 * 86400


# ---------------------------------------------------------------- what the service says


class Said(Exception):
    """The origin of an error of the library."""

    def __init__(self, condition: bytes) -> None:
        super().__init__()
        self.condition = condition


def refused(condition: bytes) -> exceptions.ServiceBusError:
    return exceptions.ServiceBusError("TrackingId: 1", error=Said(condition))


@each_row(
    ("error", "status"),
    [
        (exceptions.MessagingEntityNotFoundError(), "stalled"),
        (exceptions.MessagingEntityDisabledError(), "stalled"),
        (exceptions.ServiceBusQuotaExceededError(), "stalled"),
        (exceptions.ServiceBusServerBusyError(), "stalled"),
        (exceptions.ServiceBusAuthorizationError(), "stalled"),
        (exceptions.MessageSizeExceededError(), "rejected"),
        (refused(b"amqp:not-allowed"), "retryable"),
        (refused(b"com.microsoft:argument-out-of-range"), "retryable"),
        (exceptions.ServiceBusAuthenticationError(), "unavailable"),
        (ConfigurationError("no credentials"), "unavailable"),
        (exceptions.OperationTimeoutError(), "unknown"),
        (exceptions.ServiceBusConnectionError(), "unknown"),
        (exceptions.ServiceBusCommunicationError(), "unknown"),
        (refused(b"amqp:internal-error"), "unknown"),
        (TimeoutError(), "unknown"),
    ],
)
def test_meaning_of_errors_for_messages(error: Exception, status: str) -> None:
    said = result_of(error)
    assert said.status is PublishStatus(status)
    assert said.error
    assert "TrackingId" not in said.error, "errors are grouped by their text"
    assert blames_one(error) == (status in ("retryable", "rejected"))
    before = result_of(error, sent=False).status
    assert before is (said.status if status in ("stalled", "rejected") else PublishStatus.UNAVAILABLE)


@each_row(
    ("error", "kind"),
    [
        (exceptions.MessagingEntityNotFoundError(), QueueMissing),
        (exceptions.ServiceBusAuthenticationError(), ConfigurationError),
        (exceptions.ServiceBusAuthorizationError(), ConfigurationError),
        (refused(b"amqp:not-allowed"), ConfigurationError),
        (exceptions.ServiceBusConnectionError(), exceptions.ServiceBusConnectionError),
    ],
)
def test_meaning_of_errors_for_a_consumer(error: Exception, kind: type[Exception]) -> None:
    assert isinstance(for_a_consumer(error, "orders"), kind)


@each_row(
    ("cause", "kind"),
    [
        (TokenAuthFailure(401, b"InvalidSignature"), ConfigurationError),
        (TokenAuthFailure(404, b"not there"), ConfigurationError),
        (TokenAuthFailure(503, b"busy"), exceptions.ServiceBusAuthenticationError),
        (TokenAuthFailure(429, b"busy"), exceptions.ServiceBusAuthenticationError),
        (TokenExpired(b"amqp:internal-error"), exceptions.ServiceBusAuthenticationError),
    ],
)
def test_a_token_that_was_not_judged_is_no_fault_of_the_set_up(cause: Exception, kind: type[Exception]) -> None:
    """A subscription goes on when the service was busy, or the machine was suspended until its token had ended."""
    assert isinstance(for_a_consumer(exceptions.ServiceBusAuthenticationError(error=cause), "orders"), kind)


def test_an_error_of_all_messages_blames_none() -> None:
    assert alone(refused(b"amqp:not-allowed"), None).status is PublishStatus.STALLED
    assert alone(refused(b"amqp:not-allowed"), "A").status is PublishStatus.RETRYABLE
    assert alone(refused(b"amqp:decode-error"), None).status is PublishStatus.RETRYABLE


def entered_by(url: str, policy: str, key: str = "tests") -> str:
    return url.replace("RootManageSharedAccessKey:tests", f"{policy}:{key}")


# ---------------------------------------------------------------- publishing


@asynccontextmanager
async def by_a_proxy(**options: Any) -> AsyncIterator[tuple[Topic, ServiceBusPublisher, Proxy]]:
    """A topic, a publisher to it, and the proxy between the two."""
    require("servicebus")
    async with topics() as made:
        port = int(made.url.partition("?")[0].rpartition(":")[2])
        proxy = Proxy(("127.0.0.1", port), Amqp1Framing)
        url = made.url.replace(f":{port}?", f":{proxy.port}?")
        publisher = ServiceBusPublisher(url, prefix=PREFIX, **options)
        try:
            yield made, publisher, proxy
        finally:
            await publisher.aclose()
            await asyncio.to_thread(proxy.close)


def is_transfer(message: bytes) -> bool:
    """Of a message of ours, which are the only ones that are long."""
    return len(message) > 1000 and message[10] == 0x14


LARGE = b"x" * 2000


@pytest.mark.slow
@pytest.mark.fault(51)
async def test_a_message_whose_answer_is_lost_is_taken_once() -> None:
    """The library does not send it again by itself; the relay does, and the service recognises it."""
    async with by_a_proxy(timeout="5s") as (made, publisher, proxy):
        given = made.envelope(1, payload=LARGE)
        proxy.arm_on("after", ">", is_transfer)
        (lost,) = await publisher.publish([given])
        assert lost.status is PublishStatus.UNKNOWN
        assert sum(is_transfer(message) for direction, message in proxy.passed if direction == ">") == 1
        proxy.disarm()
        for _ in range(2):
            assert [one.status for one in await publisher.publish([given])] == [PublishStatus.ACKED]
        assert [one.id for one in await made.arrived()] == [given.id]


@pytest.mark.slow
async def test_a_message_without_an_answer_is_no_success() -> None:
    async with by_a_proxy(timeout="2s") as (made, publisher, proxy):
        async with asyncio.timeout(60):
            while (await publisher.publish([made.envelope(1)]))[0].status is not PublishStatus.ACKED:
                continue
        proxy.stall()
        async with asyncio.timeout(20):
            said = await publisher.publish([made.envelope(2)])
        assert [(one.status, one.error) for one in said] == [
            (PublishStatus.UNKNOWN, "the service did not answer in time")
        ]
        proxy.go()


@pytest.mark.slow
async def test_a_topic_that_is_full_blames_no_message() -> None:
    require("servicebus")
    url, name = os.environ["RETRYSAFE_TEST_SERVICEBUS"], f"suite-{secrets.token_hex(6)}"
    publisher = ServiceBusPublisher(url, prefix=PREFIX)
    await declare(url, name, group=GROUP, prefix=PREFIX, megabytes=1)
    said = []
    for number in range(6):
        said += await publisher.publish([event(id=str(number), topic=name, payload=b"x" * 200_000)])
    assert [one.status for one in said] == [PublishStatus.ACKED] * 5 + [PublishStatus.STALLED]
    assert "full" in said[-1].error
    await publisher.aclose()
    await without(url, name)


@pytest.mark.slow
async def test_a_publisher_without_the_right_to_send_waits() -> None:
    require("servicebus")
    async with topics() as made:
        publisher = ServiceBusPublisher(entered_by(made.url, "listen"), prefix=PREFIX)
        (said,) = await publisher.publish([made.envelope(1)])
        assert said.status is PublishStatus.STALLED
        assert "right Send" in said.error
        await publisher.aclose()
        stranger = ServiceBusPublisher(entered_by(made.url, "send", "wrong"), prefix=PREFIX)
        (said,) = await stranger.publish([made.envelope(1)])
        assert said.status is PublishStatus.UNAVAILABLE
        await stranger.aclose()


@pytest.mark.slow
@pytest.mark.fault(54)
async def test_a_batch_that_is_refused_is_divided() -> None:
    """An entity with partitions takes batches of one session."""
    require("servicebus")
    async with topics() as made:
        async with administration(made.url) as client:
            await client.delete_topic(f"{PREFIX}{made.topic}")
            await client.create_topic(f"{PREFIX}{made.topic}", enable_partitioning=True)
            await client.create_subscription(f"{PREFIX}{made.topic}", GROUP)
        sent = [made.envelope(number, key=key) for number, key in enumerate("ABAB")]
        assert {one.status for one in await made.publish(*sent)} == {PublishStatus.ACKED}
        arrived = [one.id for one in await made.arrived()]
        assert arrived == [sent[at].id for at in (0, 2, 1, 3)]


@pytest.mark.slow
async def test_batches_have_the_size_that_the_service_tells() -> None:
    async with by_a_proxy() as (made, publisher, _):
        sent = [made.envelope(number, payload=LARGE * 50) for number in range(7)]
        sent.insert(3, made.envelope(100, payload=b"x" * 300_000))
        said = [one.status for one in await publisher.publish(sent)]
        assert said.pop(3) is PublishStatus.REJECTED
        assert set(said) == {PublishStatus.ACKED}
        arrived = [one.id for one in await made.arrived()]
        assert arrived == [one.id for one in sent if one.id != sent[3].id]


@pytest.mark.slow
@pytest.mark.fault(54)
async def test_a_message_that_is_too_large_harms_no_other() -> None:
    """The service ends the link for it, and what comes next has another one."""
    require("servicebus")
    async with topics() as made:
        large = [made.envelope(number, payload=b"x" * 400_000) for number in range(2)]
        said = [one.status for one in await made.publish(*large, made.envelope(2), made.envelope(3))]
        assert said == [PublishStatus.REJECTED] * 2 + [PublishStatus.ACKED] * 2
        (again,) = await made.publish(large[0])
        assert again.status is PublishStatus.REJECTED
        (other,) = await made.publish(made.envelope(4))
        assert other.status is PublishStatus.ACKED


@pytest.mark.slow
async def test_a_queue_that_wants_sessions_blames_no_message() -> None:
    require("servicebus")
    async with queue(requires_session=True) as (_, name):
        publisher = ServiceBusPublisher(os.environ["RETRYSAFE_TEST_SERVICEBUS"], ordered=False)
        said = await publisher.publish([event(topic=name, id=str(number)) for number in range(3)])
        assert {one.status for one in said} <= {PublishStatus.STALLED, PublishStatus.POSTPONED}
        assert "ordered=True" in said[0].error
        await publisher.aclose()


@pytest.mark.slow
async def test_a_batch_that_is_divided_ends_where_nothing_answers() -> None:
    """Or each part of it would take the whole time."""
    async with by_a_proxy(timeout="2s") as (made, publisher, proxy):
        async with administration(made.url) as client:
            await client.delete_topic(f"{PREFIX}{made.topic}")
            await client.create_topic(f"{PREFIX}{made.topic}", enable_partitioning=True)
        transfers: list[bytes] = []

        def is_the_second(message: bytes) -> bool:
            if is_transfer(message):
                transfers.append(message)
            return len(transfers) == 2

        await publisher.publish([made.envelope(9)])
        proxy.arm_on("half-open", ">", is_the_second)
        sent = [made.envelope(number, key=str(number), payload=LARGE) for number in range(4)]
        said = [one.status for one in await publisher.publish(sent)]
        assert said == [PublishStatus.UNKNOWN] + [PublishStatus.POSTPONED] * 3


@pytest.mark.slow
async def test_publishing_under_way_at_a_close_connects_no_more() -> None:
    async with by_a_proxy(timeout="5s") as (made, publisher, proxy):
        await publisher.publish([made.envelope(9)])
        proxy.arm_on("half-open", ">", is_transfer)
        tasks = [asyncio.create_task(publisher.publish([made.envelope(n, payload=LARGE)])) for n in range(4)]
        while not proxy.hits:  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.01)
        await publisher.aclose()
        said = [one.status for found in await asyncio.gather(*tasks) for one in found]
        assert set(said) <= {PublishStatus.UNKNOWN, PublishStatus.UNAVAILABLE}
        async with asyncio.timeout(30):
            while proxy.connections:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


# ---------------------------------------------------------------- consuming


class Characters(Proxy):
    """Makes a character of a text."""

    def rewritten(self, direction: str, message: bytes) -> bytes:
        return message.replace(b"\xa1\x03CHR", b"\x73\0\0\0z")


@pytest.mark.slow
@pytest.mark.fault(53)
@pytest.mark.parametrize("ordered", [True, False])
async def test_a_message_that_cannot_be_decoded_stops_no_session(ordered: bool) -> None:
    """The library knows no characters. The message has no id, and an inbox keeps its octets."""
    require("servicebus")
    async with bench("servicebus", ordered=ordered, sessions=1) as broker:
        port = int(broker.url.partition("?")[0].rpartition(":")[2])
        proxy = Characters(("127.0.0.1", port), Amqp1Framing)
        stranger = ServiceBusPublisher(
            broker.url.replace(f":{port}?", f":{proxy.port}?"), prefix=PREFIX, ordered=ordered
        )
        for number, text in enumerate(("CHR", "abc", "CHR", "abc")):
            sent = event(topic=broker.topic, id=str(number), headers={"text": text})
            assert [one.status for one in await stranger.publish([sent])] == [PublishStatus.ACKED]
        found = []
        async with asyncio.timeout(60), Trial(broker).consumer() as consumer:
            while len(found) < 4:
                some = await consumer.receive(4, 10.0)
                found += [one.envelope for one in some]
                await consumer.ack(some)
            await Trial(broker).nothing(consumer)
        assert [one.id for one in found if one.id] == ["1", "3"]
        for letter in (one for one in found if not one.id):
            assert b"\x73\0\0\0z" in letter.payload
            assert "Error" in letter.headers["undecodable"]
        await stranger.aclose()
        await asyncio.to_thread(proxy.close)


@pytest.mark.slow
async def test_a_session_that_rested_leaves_no_task() -> None:
    """Or after a hundred of them no other session would be taken while one rests."""
    require("servicebus")
    async with bench("servicebus", sessions=1) as broker:
        trial = Trial(broker)
        await trial.publish(*"AB")
        async with trial.consumer() as consumer:
            (first,) = await trial.take(consumer, 1)
            await consumer.give_back(first, 2.0)
            await consumer.ack(await trial.take(consumer, 1))
            await consumer.ack(await trial.take(consumer, 1))
            async with asyncio.timeout(60):
                while len(cast("Any", consumer)._session._tasks) > 1:  # noqa: ASYNC110 - nobody is told
                    await asyncio.sleep(0.01)


@pytest.mark.slow
@pytest.mark.one_of("waits for locks of Service Bus")
async def test_a_session_that_rests_keeps_no_other_waiting_after_a_cut() -> None:
    """It rests on, whoever has its lock, and there are no more sessions than were asked for."""
    require("servicebus")
    async with bench("servicebus", sessions=1) as broker:
        trial = Trial(broker)
        await trial.publish(*"AB")
        async with trial.consumer() as consumer:
            (first,) = await trial.take(consumer, 1)
            await consumer.give_back(first, 3600.0)
            (second,) = await trial.take(consumer, 1)
            for _ in range(2):
                await asyncio.to_thread(broker.proxies[consumer].drop)
                (again,) = await eventually(cast("Any", consumer), 60.0)
                assert again.envelope.id == second.envelope.id
                assert len(cast("Any", consumer)._session._tasks) <= 2


@pytest.mark.slow
@pytest.mark.one_of("waits for locks of Service Bus")
async def test_a_lock_that_is_lost_costs_no_other() -> None:
    """Each message without a session has a lock of its own."""
    require("servicebus")
    async with bench("servicebus", lease="5s", ordered=False) as broker:
        trial = Trial(broker)
        await trial.publish(*"AB")
        async with trial.consumer() as consumer:
            one, other = await trial.take(consumer, 2)
            async with messages(broker.url) as client:
                receiver = client.get_subscription_receiver(f"{PREFIX}{broker.topic}", GROUP)
                await receiver._settle_message_via_mgmt_link("completed", [UUID(one.tag.handle)])
                await receiver.close()
            assert await consumer.receive(2, 8.0) == []
            await consumer.ack([other])
            assert await counts(broker.url, broker.topic) == []


@pytest.mark.slow
@pytest.mark.one_of("waits for locks of Service Bus")
@pytest.mark.fault(57)
async def test_a_connection_that_is_silent_costs_no_session_of_another() -> None:
    """Locks are kept side by side: one session comes again, to whoever finds it, and the other one does not."""
    require("servicebus")
    async with bench("servicebus", lease="9s", timeout="18s") as broker:
        trial = Trial(broker)
        await trial.publish(*"AB")
        async with trial.consumer() as consumer:
            held = await trial.take(consumer, 2)
            broker.proxies[consumer].arm_on("half-open", ">", lambda message: b"renew-session-lock" in message)
            (again,) = await eventually(cast("Any", consumer), 60.0)
            assert not await eventually(cast("Any", consumer), 12.0)
            await consumer.ack([again, *(one for one in held if one.envelope.id != again.envelope.id)])
            assert await counts_of_sessions(broker.url, broker.topic, "A", "B") == []


@pytest.mark.slow
async def test_a_consumer_without_sessions_closes_where_nothing_answers() -> None:
    """It does not wait for an answer for each message that it has."""
    require("servicebus")
    async with bench("servicebus", lease="60s", ordered=False, timeout="2s") as broker:
        trial = Trial(broker)
        await trial.publish(*"A" * 30)
        consumer = await broker.consumer()
        held: list[Any] = []
        async with asyncio.timeout(180):
            while len(held) < 30:
                held += await eventually(cast("Any", consumer), 30.0)
        broker.proxies[consumer].stall()
        async with asyncio.timeout(40):
            await consumer.aclose()


async def eventually(consumer: ServiceBusConsumer, within: float) -> Any:
    """Receive its messages in that time, in spite of failures that it raises."""
    loop = asyncio.get_running_loop()
    until = loop.time() + within
    while (left := until - loop.time()) > 0:
        try:
            if found := await consumer.receive(10, left):
                return found
        except (*FAILURES, QueueMissing):
            continue
    return []


async def counts(url: str, topic: str) -> list[int]:
    """Return how often each message that is there was delivered in vain, in their order."""
    async with messages(url) as client:
        receiver = client.get_subscription_receiver(f"{PREFIX}{topic}", GROUP)
        async with receiver:
            return [one.delivery_count or 0 for one in await receiver.peek_messages(max_message_count=100)]


@pytest.mark.slow
@pytest.mark.fault(52)
@pytest.mark.parametrize("ordered", [True, False], ids=["session", "message"])
async def test_a_message_that_is_handled_for_longer_than_the_lock_stays_with_its_consumer(ordered: bool) -> None:
    require("servicebus")
    async with bench("servicebus", lease="5s", ordered=ordered) as broker:
        trial = Trial(broker)
        await trial.publish("A")
        async with trial.consumer() as one, trial.consumer() as two:
            (found,) = await trial.take(one, 1)
            assert not await two.receive(2, 8.0), "much more than a lock"
            await one.ack([found])
        async with trial.consumer() as later:
            await trial.nothing(later)


@pytest.mark.slow
@pytest.mark.fault(52)
@pytest.mark.parametrize("ordered", [True, False], ids=["session", "message"])
async def test_a_consumer_cut_off_until_the_lock_ended_settles_and_hands_out_nothing(ordered: bool) -> None:
    require("servicebus")
    async with bench("servicebus", lease="5s", ordered=ordered) as broker:
        road = road_to(broker.url)
        consumer, trial = broker.make(by_road(road, broker.url)), Trial(broker)
        try:
            await trial.publish(*"AA")
            first = await trial.take(consumer, 1)
            await asyncio.to_thread(road.close)
            async with trial.consumer() as other:
                again = await trial.take(other, 2)
                assert sorted(numbers(again)) == [0, 1]
                assert all(one.redelivered for one in again)
                await consumer.ack(first)
                road.open()
                assert numbers(await eventually(consumer, 1.5)) == []
                await other.ack(again)
        finally:
            await consumer.aclose()
            await asyncio.to_thread(road.close)


@pytest.mark.slow
@pytest.mark.one_of("waits for locks of Service Bus")
@pytest.mark.fault(53)
async def test_a_consumer_that_closes_counts_no_delivery() -> None:
    """Or restarts of a service would make messages dead letters."""
    require("servicebus")
    async with bench("servicebus") as broker:
        trial = Trial(broker)
        await trial.publish(*"AAB")
        for _ in range(3):
            async with trial.consumer() as consumer:
                assert len(await trial.take(consumer, 3)) == 3
        assert await counts_of_sessions(broker.url, broker.topic, "A", "B") == [0, 0, 0]


async def counts_of_sessions(url: str, topic: str, *names: str) -> list[int]:
    """As `counts`, of an entity with sessions."""
    found: list[int] = []
    async with messages(url) as client:
        for name in names:
            async with client.get_subscription_receiver(f"{PREFIX}{topic}", GROUP, session_id=name) as receiver:
                found += [one.delivery_count or 0 for one in await receiver.peek_messages(max_message_count=100)]
    return found


@pytest.mark.slow
async def test_messages_without_sessions_are_given_up_by_a_consumer_that_closes() -> None:
    require("servicebus")
    async with bench("servicebus", lease="30s", ordered=False) as broker:
        trial = Trial(broker)
        await trial.publish(*"AB")
        async with trial.consumer() as one:
            await trial.take(one, 2)
        assert await counts(broker.url, broker.topic) == [1, 1]
        async with trial.consumer() as two:
            again = await trial.take(two, 2)
            assert all(one.redelivered for one in again)
            await two.ack(again)
            await trial.nothing(two)


@pytest.mark.slow
async def test_a_session_whose_message_was_given_back_keeps_no_other_waiting() -> None:
    require("servicebus")
    async with bench("servicebus", sessions=1) as broker:
        trial = Trial(broker)
        await trial.publish(*"ABC")
        async with trial.consumer() as consumer:
            for number in range(3):
                (found,) = await trial.take(consumer, 1)
                assert numbers([found]) == [number]
                await consumer.give_back(found, 3600.0)
            await trial.nothing(consumer)


@pytest.mark.slow
async def test_no_session_to_be_had_is_no_failure() -> None:
    """The service says so after the time that it was asked to wait."""
    require("servicebus")
    async with bench("servicebus", poll="200ms") as broker, Trial(broker).consumer() as consumer:
        assert await consumer.receive(1, 3.0) == []


@pytest.mark.slow
async def test_sessions_are_partitions_of_keys_if_publishers_say_so() -> None:
    require("servicebus")
    async with bench("servicebus", partitions=2, prefetch=30) as broker:
        trial = Trial(broker)
        await trial.publish(*"ABCDEFGH" * 3)
        async with trial.consumer() as consumer:
            found = await trial.take(consumer, 24)
            assert len({one.partition for one in found}) == 2
            for key in "ABCDEFGH":
                of_key = numbers([one for one in found if one.envelope.key == key])
                assert of_key == sorted(of_key)
            await consumer.ack(found)
            await trial.nothing(consumer)


@pytest.mark.slow
@pytest.mark.parametrize("ordered", [True, False])
async def test_no_more_are_held_than_are_to_be_fetched_ahead(ordered: bool) -> None:
    require("servicebus")
    async with bench("servicebus", prefetch=3, ordered=ordered) as broker:
        trial = Trial(broker)
        await trial.publish(*"AAAAA")
        async with trial.consumer() as consumer:
            found = await trial.take(consumer, 3)
            assert await consumer.receive(2, 0.5) == []
            await consumer.ack(found[:1])
            await trial.take(consumer, 1)


@pytest.mark.slow
async def test_a_subscription_that_is_missing_is_told_until_it_is_made() -> None:
    require("servicebus")
    url, name = os.environ["RETRYSAFE_TEST_SERVICEBUS"], f"suite-{secrets.token_hex(6)}"
    how: dict[str, Any] = {"group": GROUP, "prefix": PREFIX}
    consumer = ServiceBusConsumer(url, name, poll="500ms", **how)
    with pytest.raises(QueueMissing, match="declare it:  retrysafe topics declare"):
        await consumer.receive(1, 10.0)
    for _ in range(2):
        await declare(url, name, keep="2d", **how)
    publisher = ServiceBusPublisher(url, prefix=PREFIX)
    await publisher.publish([event(topic=name)])
    (found,) = await eventually(consumer, 20.0)
    assert found.envelope == event(topic=name)
    await consumer.ack([found])
    await consumer.aclose()
    await publisher.aclose()
    async with administration(url) as client:
        made = await client.get_subscription(f"{PREFIX}{name}", GROUP)
        assert (made.default_message_time_to_live, made.max_delivery_count) == (timedelta(days=2), 2000)
    await without(url, name)
    with pytest.raises(ConfigurationError, match="refuses"):
        await declare(entered_by(url, "send"), name, **how)


@pytest.mark.slow
@each_row("ordered", [True, False])
async def test_a_consumer_that_is_set_up_wrongly_is_told(ordered: bool) -> None:
    require("servicebus")
    async with bench("servicebus", ordered=ordered) as broker:
        other = ServiceBusConsumer(broker.url, broker.topic, group=GROUP, prefix=PREFIX, ordered=not ordered)
        with pytest.raises(ConfigurationError, match="ordered="):
            await other.receive(1, 10.0)
        await other.aclose()
        url = entered_by(broker.url, "send")
        deaf = ServiceBusConsumer(url, broker.topic, group=GROUP, prefix=PREFIX, ordered=ordered)
        with pytest.raises(ConfigurationError, match="right Listen"):
            await deaf.receive(1, 10.0)
        await deaf.aclose()


@pytest.mark.slow
async def test_a_queue_has_consumers_without_a_group() -> None:
    require("servicebus")
    url, name = os.environ["RETRYSAFE_TEST_SERVICEBUS"], f"suite-{secrets.token_hex(6)}"
    await declare(url, name, prefix=PREFIX)
    publisher = ServiceBusPublisher(url, prefix=PREFIX)
    consumer = ServiceBusConsumer(url, name, prefix=PREFIX, poll="1s")
    sent = [event(id=str(number), topic=name) for number in range(3)]
    for _ in range(2):
        assert {one.status for one in await publisher.publish(sent)} == {PublishStatus.ACKED}
    found = []
    while len(found) < 3:
        found += await consumer.receive(3, 10.0)
    assert [one.envelope.id for one in found] == ["0", "1", "2"]
    await consumer.ack(found)
    assert await consumer.receive(1, 0.3) == []
    await consumer.aclose()
    await publisher.aclose()
    await without(url, name)


@pytest.mark.slow
async def test_closing_leaves_no_thread_and_no_task() -> None:
    require("servicebus")
    before = {thread.ident for thread in threading.enumerate()}
    async with bench("servicebus", lease="2s") as broker:
        trial = Trial(broker)
        await trial.publish("A")
        consumer = broker.make(broker.url)
        await consumer.ack(await trial.take(consumer, 1))
        await consumer.aclose()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    ours = [one.name for one in threading.enumerate() if one.ident not in before and "proxy" not in one.name]
    assert [name for name in ours if not name.startswith("asyncio_")] == [], "but the loop's own, for names of hosts"


# ---------------------------------------------------------------- the stand-in keeps the service's rules


@asynccontextmanager
async def queue(**settings: Any) -> AsyncIterator[tuple[Any, str]]:
    """A client, and a queue."""
    require("servicebus")
    url, name = os.environ["RETRYSAFE_TEST_SERVICEBUS"], f"rules-{secrets.token_hex(6)}"
    async with administration(url) as client:
        await client.create_queue(name, **{"lock_duration": timedelta(seconds=5), **settings})
    async with messages(url) as client:
        yield client, name
    await without(url, name, prefix="")


async def one(receiver: Any) -> Any:
    (found,) = await receiver.receive_messages(max_message_count=1, max_wait_time=10)
    return found


@pytest.mark.slow
@pytest.mark.one_of("waits for locks of Service Bus")
async def test_deliveries_in_vain_are_counted_until_there_are_too_many() -> None:
    """By an abandonment and by a lock that ends; not by a release, as by a receiver that closes."""
    async with queue(max_delivery_count=3) as (client, name):
        async with client.get_queue_sender(name) as sender:
            await sender.send_messages(ServiceBusMessage(b"x"))
        async with client.get_queue_receiver(name) as receiver:
            await receiver.abandon_message(await one(receiver))
            second = await one(receiver)
            assert second.delivery_count == 1
            third = await one(receiver)  # when the lock has ended
            assert third.delivery_count == 2
            with pytest.raises(exceptions.MessageLockLostError):
                await receiver.complete_message(second)
            await receiver.abandon_message(third)
        async with client.get_queue_receiver(name, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as dead:
            assert (await one(dead)).dead_letter_reason == "MaxDeliveryCountExceeded"


@pytest.mark.slow
async def test_a_dead_letter_says_why_it_is_one() -> None:
    async with queue(lock_duration=timedelta(seconds=60)) as (client, name):
        async with client.get_queue_sender(name) as sender:
            await sender.send_messages(ServiceBusMessage(b"x"))
        async with client.get_queue_receiver(name) as receiver:
            found = await one(receiver)
            await receiver.dead_letter_message(found, reason="poison", error_description="it is")
            assert await receiver.receive_messages(max_wait_time=0.3) == []
        async with client.get_queue_receiver(name, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as dead:
            letter = await one(dead)
            assert (letter.dead_letter_reason, letter.dead_letter_error_description) == ("poison", "it is")


@pytest.mark.slow
@pytest.mark.one_of("waits for locks of Service Bus")
async def test_a_session_has_one_owner_until_its_lock_ends() -> None:
    async with queue(requires_session=True) as (client, name):
        async with client.get_queue_sender(name) as sender:
            await sender.send_messages([ServiceBusMessage(b"x", session_id="A") for _ in range(2)])
            with pytest.raises(exceptions.ServiceBusError, match="SessionId was not set"):
                await sender.send_messages(ServiceBusMessage(b"x"))
        owner = client.get_queue_receiver(name, session_id="A")
        async with owner:
            found = await one(owner)
            with pytest.raises(exceptions.SessionCannotBeLockedError):
                await client.get_queue_receiver(name, session_id="A").__aenter__()
            await owner.session.renew_lock()
            async with asyncio.timeout(20):
                while True:
                    try:
                        successor = client.get_queue_receiver(name, session_id="A")
                        await successor.__aenter__()
                        break
                    except exceptions.SessionCannotBeLockedError:
                        continue
            assert (await one(successor)).delivery_count == 1
            with pytest.raises(exceptions.SessionLockLostError):
                await owner.complete_message(found)
            await successor.close()


@pytest.mark.slow
@pytest.mark.one_of("waits for locks of Service Bus")
@pytest.mark.fault(50)
async def test_acknowledged_messages_outlive_the_stand_in() -> None:
    require("servicebus")
    server = await asyncio.to_thread(ServiceBusServer)
    try:
        await declare(server.url, "orders", group=GROUP)
        publisher = ServiceBusPublisher(server.url)
        sent = [event(id=str(number), key="A") for number in range(20)]
        assert {said.status for said in await publisher.publish(sent)} == {PublishStatus.ACKED}
        consumer = ServiceBusConsumer(server.url, "orders", group=GROUP, poll="1s")
        found = await consumer.receive(1, 10.0)
        await consumer.ack(found)
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        left = [one.id for one in sent if one.id != found[0].envelope.id]
        again: list[str] = []
        async with asyncio.timeout(60):
            while set(again) != set(left):
                again += [delivery.envelope.id for delivery in await eventually(consumer, 5.0)]
        assert list(dict.fromkeys(name for name in again if name in left)) == left
        async with asyncio.timeout(60):
            while (await publisher.publish(sent[:1]))[0].status is not PublishStatus.ACKED:
                continue
        await consumer.aclose()
        await publisher.aclose()
    finally:
        await asyncio.to_thread(server.close)


async def test_a_new_link_is_asked_why_the_last_one_was_ended_if_nothing_said_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The library may have lost it; a link that is refused for another reason, or is not, says nothing of the last."""
    refusals: list[Exception] = [
        exceptions.ServiceBusQuotaExceededError(message="full"),
        exceptions.ServiceBusConnectionError(message="cut"),
    ]

    async def opened(self: Any) -> None:
        if refusals:
            raise refusals[0]

    monkeypatch.setattr(publisher._Destination, "open", opened)
    destination = publisher._Destination(cast(Any, None), "orders", 1.0)
    lost = exceptions.ServiceBusError(message="ended")
    assert result_of(lost).status is PublishStatus.UNKNOWN
    assert result_of(await destination.why(lost)).status is PublishStatus.STALLED
    refusals.pop(0)
    assert await destination.why(lost) is lost
    refusals.pop(0)
    assert await destination.why(lost) is lost


async def test_a_cancellation_that_the_library_loses_is_heeded() -> None:
    """As at the end of `asyncio.run` on Python 3.11: what receives went on without end, and the program with it."""

    class Receiving:
        """Waits as the library reads its connection: for something that comes as its task is cancelled."""

        async def receive_messages(self, **_: Any) -> list[Any]:
            came = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(came.set_result, [])
            asyncio.get_running_loop().call_soon(task.cancel)
            found: list[Any] = await asyncio.wait_for(came, 30)
            return found

    holding = QueueLock(source_of("", "orders", None), cast(Any, Receiving()), "orders", 10.0)
    task = asyncio.create_task(holding.receive(1, 10.0))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
