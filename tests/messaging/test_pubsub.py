"""The peculiarities of Pub/Sub: the limits of a message, the service's answers, the holding of messages."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import pytest
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from google.api_core import exceptions
from google.protobuf.any_pb2 import Any as Packed
from google.pubsub_v1 import types
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from retrysafe import ConfigurationError
from retrysafe.messaging import QueueMissing
from retrysafe.messaging.brokers.pubsub import PubSubConsumer, PubSubPublisher, declare
from retrysafe.messaging.brokers.pubsub import publisher as publishers
from retrysafe.messaging.brokers.pubsub.client import FAILURES
from retrysafe.messaging.brokers.pubsub.messages import (
    PubSubContent,
    content_of,
    envelope_from,
    ordering_key,
    subscription_path,
    topic_path,
)
from retrysafe.messaging.brokers.pubsub.results import blames_one, result_of
from retrysafe.messaging.brokers.registry import broker_at
from retrysafe.messaging.cloudevents import Mode
from retrysafe.protocol.messages import Envelope, PublishStatus
from retrysafe.testing.consumers import Trial, numbers
from tests.conftest import require
from tests.messaging.harnesses import bench
from tests.messaging.harnesses.base import road_to
from tests.messaging.harnesses.pubsub import (
    GROUP,
    PREFIX,
    PubSubBench,
    PubSubServer,
    Topic,
    led_by,
    options_of,
    pulled,
    service,
    topics,
    without,
)
from tests.messaging.inboxes import envelope
from tests.tables import each_row

# ---------------------------------------------------------------- messages


def event(**other: Any) -> Envelope:
    return envelope("1")._replace(payload=b'{"n":1}', media_type="application/json", headers={})._replace(**other)


def read(content: PubSubContent, topic: str = "orders") -> Envelope:
    return envelope_from(content.data, content.attributes, content.ordering_key, topic)


MANY = {f"x{number}": str(number) for number in range(95)}
LONG = "ü" * 513


@each_row(
    ("other", "in_payload"),
    [
        ({}, False),
        ({"headers": {"traceparent": "00-1-2-01", "X-Tenant": "ü"}}, False),
        ({"headers": {"empty": "", "X-Empty": ""}}, False),
        ({"payload": b""}, False),
        ({"payload": bytes(range(256)), "media_type": "application/avro"}, False),
        ({"key": None, "sequence": 2**40}, False),
        ({"key": ""}, False),
        ({"headers": MANY}, True),
        ({"headers": {"long": LONG}}, True),
        ({"headers": {"x" * 254: "1"}}, True),
        ({"key": LONG}, True),
        ({"payload": bytes(range(256)), "media_type": "application/avro", "source": LONG}, True),
        ({"media_type": "application/cloudevents+json"}, True),
    ],
)
def test_events_beyond_the_limits_of_attributes_are_all_in_the_payload(other: dict[str, Any], in_payload: bool) -> None:
    given = event(**other)
    for mode, alone in (("binary", in_payload), ("structured", True)):
        content = content_of(given, mode)  # type: ignore[arg-type]
        assert read(content, given.topic) == given
        assert ("ce-id" not in content.attributes) == alone
        assert len(content.attributes) <= 100
        assert max(len(value.encode()) for value in content.attributes.values()) <= 1024
        assert len(content.ordering_key.encode()) <= 1024


@each_row(
    "headers",
    [
        {"goog-X": "1"},
        {"CE-id": "1"},
        {"Content-Type": "1"},
        {"": "1"},
        {"X-Long": LONG},
        {"X" * 257: "1"},
        {"X-Half": "\ud800"},
    ],
)
def test_a_header_without_a_place_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="cannot be an attribute"):
        content_of(event(headers=headers), "binary")


def test_a_header_that_would_be_the_payload_is_refused() -> None:
    with pytest.raises(ValueError, match="read as the payload"):
        content_of(event(headers={"data": "x"}), "structured")


def test_events_of_others_are_read_in_both_modes() -> None:
    told = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "subject": "k", "data": {"n": 1}}
    for attributes in ({}, {"Content-Type": "application/cloudevents+json; charset=utf-8"}):
        found = envelope_from(json.dumps(told).encode(), attributes, "", "orders")
        assert (found.id, found.source, found.type, found.key, found.payload) == ("1", "/s", "t", "k", b'{"n":1}')
    binary = {f"ce-{name}": str(told[name]) for name in ("specversion", "id", "source", "type")}
    for media_type in ({"ce-datacontenttype": "text/x"}, {"content-type": "text/x"}, {"Content-Type": "text/x"}):
        found = envelope_from(b"x", {**binary, **media_type}, "", "orders")
        assert (found.id, found.source, found.media_type, found.payload) == ("1", "/s", "text/x", b"x")


def test_the_sdk_of_others_and_ours_understand_each_other() -> None:
    content = content_of(event(), "structured")
    theirs = JSONFormat().read(None, content.data)
    assert (theirs.get_id(), theirs.get_source(), theirs.get_subject(), theirs.get_data()) == (
        "1",
        "/shop",
        "k",
        {"n": 1},
    )
    made = CloudEvent({"type": "t", "source": "/s", "id": "1", "datacontenttype": "application/json"}, {"n": 1})
    found = envelope_from(JSONFormat().write(made), {}, "", "orders")
    assert (found.id, found.source, found.type, found.payload) == ("1", "/s", "t", b'{"n":1}')


@each_row("payload", [b"", b"\xff\xfe", b'{"specversion"', b'["specversion"]', b'\xff"specversion"'])
def test_a_message_of_a_stranger_is_an_event_without_an_id(payload: bytes) -> None:
    """For the inbox to judge."""
    found = envelope_from(payload, {"X-Tenant": "ü", "id": "forged"}, "customer-7", "orders")
    assert (found.id, found.source, found.type) == ("", "", "")
    assert (found.key, found.topic, found.payload) == ("customer-7", "orders", payload)
    assert found.headers == {"X-Tenant": "ü"}


def test_keys_are_ordering_keys() -> None:
    assert ordering_key(event(key="order-7")) == "order-7"
    assert ordering_key(event(key=None)) == ""
    unusual = [ordering_key(event(key=key)) for key in ("", LONG, f"{LONG}x", "\ud800")]
    assert len(set(unusual)) == 4
    assert all(0 < len(key) <= 1024 for key in unusual)


def test_no_two_topics_or_subscriptions_have_one_name() -> None:
    names = ["a.b", "a_b", "a%2Eb", "a b", "aäö", "a-b", "a/b"]
    assert len({topic_path("p", "", name) for name in names}) == len(names)
    pairs = [("a.b", "c"), ("a", "b.c"), ("a%2Eb", "c")]
    assert len({subscription_path("p", "", topic, group) for group, topic in pairs}) == len(pairs)
    for wrong in ("", "ab", "1orders", "google", "ä", "x" * 256):
        with pytest.raises(ValueError, match="not a name of Pub/Sub"):
            topic_path("p", "", wrong)


# ---------------------------------------------------------------- what the service says


@each_row(
    ("error", "status"),
    [
        (exceptions.NotFound("x"), "stalled"),
        (exceptions.PermissionDenied("x"), "stalled"),
        (exceptions.ResourceExhausted("x"), "stalled"),
        (exceptions.FailedPrecondition("x"), "stalled"),
        (exceptions.InvalidArgument("x"), "retryable"),
        (exceptions.ServiceUnavailable("x"), "unavailable"),
        (exceptions.Unauthenticated("x"), "unavailable"),
        (ConfigurationError("no credentials"), "unavailable"),
        (exceptions.DeadlineExceeded("x"), "unknown"),
        (exceptions.Cancelled("x"), "unknown"),
        (exceptions.InternalServerError("x"), "unknown"),
        (exceptions.Unknown("x"), "unknown"),
        (TimeoutError(), "unknown"),
    ],
)
def test_a_request_that_fails_blames_no_message_for_the_topic(error: Exception, status: str) -> None:
    assert result_of(error).status is PublishStatus(status)
    assert blames_one(error) == (status == "retryable")
    assert result_of(error).error


Answer = Callable[[bytes, grpc.aio.ServicerContext], Awaitable[bytes | None]]


class Between(grpc.GenericRpcHandler):
    """A server between a client and the stand-in, which answers some of the calls itself, and counts all."""

    def __init__(self, url: str) -> None:
        unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        target = options_of(url)["endpoint"].removeprefix("http://")
        self._channel = grpc.aio.insecure_channel(target, options=unlimited)
        self._server = grpc.aio.server(options=unlimited)
        self.answers: dict[str, Answer] = {}
        self.calls: list[tuple[str, bytes]] = []
        self.url = url

    async def __aenter__(self) -> Between:
        self._server.add_generic_rpc_handlers((self,))
        self.url = led_by(self.url, self._server.add_insecure_port("127.0.0.1:0"))
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(None)
        await self._channel.close()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        method = details.method  # type: ignore[attr-defined]

        async def answer(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
            name = method.rpartition("/")[2]
            self.calls.append((name, request))
            said = await self.answers[name](request, context) if name in self.answers else None
            return await self._channel.unary_unary(method)(request) if said is None else said

        return grpc.unary_unary_rpc_method_handler(answer)


def refusing(code: grpc.StatusCode, *details: Any) -> Answer:
    """An answer with this status."""

    async def answer(request: bytes, context: grpc.aio.ServicerContext) -> None:
        packed = [Packed() for _ in details]
        for one, detail in zip(packed, details, strict=True):
            one.Pack(detail)
        said = Status(code=code.value[0], message="said so", details=packed).SerializeToString()
        await context.abort(code, "said so", (("grpc-status-details-bin", said),))

    return answer


async def never(request: bytes, context: grpc.aio.ServicerContext) -> None:
    """No answer at all."""
    await asyncio.Event().wait()


@asynccontextmanager
async def between(**options: Any) -> AsyncIterator[tuple[Between, PubSubBench, PubSubConsumer]]:
    require("pubsub")
    async with bench("pubsub", **options) as broker, Between(broker.url) as server:
        consumer = broker.make(server.url)
        try:
            yield server, broker, consumer
        finally:
            server.answers.clear()
            await consumer.aclose()


@each_row(
    ("code", "status", "says"),
    [
        (grpc.StatusCode.PERMISSION_DENIED, "stalled", "roles/pubsub.publisher"),
        (grpc.StatusCode.NOT_FOUND, "stalled", "topics declare"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "stalled", "quota"),
        (grpc.StatusCode.UNAVAILABLE, "unavailable", "said so"),
        (grpc.StatusCode.UNAUTHENTICATED, "unavailable", "said so"),
        (grpc.StatusCode.INTERNAL, "unknown", "said so"),
    ],
)
async def test_results_of_refusals(code: grpc.StatusCode, status: str, says: str) -> None:
    """Nothing is sent twice by the client library."""
    require("pubsub")
    async with Between(os.environ["RETRYSAFE_TEST_PUBSUB"]) as server:
        server.answers["Publish"] = refusing(code)
        publisher = PubSubPublisher(**options_of(server.url))
        (said,) = await publisher.publish([event()])
        assert said.status is PublishStatus(status)
        assert says in said.error
        assert len(server.calls) == 1
        await publisher.aclose()


async def test_a_publication_without_an_answer_is_no_success() -> None:
    require("pubsub")
    async with Between(os.environ["RETRYSAFE_TEST_PUBSUB"]) as server:
        server.answers["Publish"] = never
        publisher = PubSubPublisher(**options_of(server.url), timeout="300ms")
        async with asyncio.timeout(30):
            (said,) = await publisher.publish([event()])
        assert said.status is PublishStatus.UNKNOWN
        await publisher.aclose()


@each_row("method", ["Pull", "GetSubscription"])
@each_row("code", [grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED])
async def test_a_consumer_that_may_not_consume_is_set_up_wrongly(code: grpc.StatusCode, method: str) -> None:
    async with between() as (server, _, consumer):
        server.answers[method] = refusing(code)
        with pytest.raises(ConfigurationError, match=r"roles/pubsub\.subscriber"):
            await consumer.receive(1, 5.0)


@pytest.mark.slow
@pytest.mark.fault(52)
async def test_acknowledgements_that_fail_for_a_while_are_repeated() -> None:
    """As a subscription with exactly-once delivery says of each."""
    async with between() as (server, broker, consumer):
        trial = Trial(broker)
        await trial.publish("A", "B", "C")
        found = await trial.take(consumer, 3)
        ids = [one.tag.handle for one in found]
        fates = [
            {ids[0]: "TRANSIENT_FAILURE_UNORDERED_ACK_ID", ids[1]: "PERMANENT_FAILURE_INVALID_ACK_ID"},
            {ids[0]: "TRANSIENT_FAILURE_UNORDERED_ACK_ID"},
        ]

        async def fails(request: bytes, context: grpc.aio.ServicerContext) -> bytes | None:
            if not fates:
                return None
            info = ErrorInfo(reason="EXACTLY_ONCE_ACKID_FAILURE", domain="pubsub.googleapis.com", metadata=fates.pop(0))
            await refusing(grpc.StatusCode.FAILED_PRECONDITION, info)(request, context)
            return None

        server.answers["Acknowledge"] = fails
        await consumer.ack(found)
        asked = [
            types.AcknowledgeRequest.deserialize(sent).ack_ids for name, sent in server.calls if name == "Acknowledge"
        ]
        assert [list(one) for one in asked] == [ids, ids[:1], ids[:1]]


# ---------------------------------------------------------------- publishing


@asynccontextmanager
async def counted() -> AsyncIterator[tuple[Topic, PubSubPublisher, Between]]:
    """A topic, a publisher to it, and the server between the two."""
    require("pubsub")
    async with topics() as made, Between(made.url) as server:
        publisher = PubSubPublisher(**options_of(server.url), prefix=PREFIX)
        yield made, publisher, server
        await publisher.aclose()


@pytest.mark.slow
async def test_the_order_of_a_key_is_that_of_calls_and_within_a_call() -> None:
    """A request has messages of one ordering key."""
    async with counted() as (made, publisher, server):
        sent = [made.envelope(number, key=key) for number, key in enumerate(("A", "B", "A", None, "A", ""))]
        said = [*await publisher.publish(sent[:3]), *await publisher.publish(sent[3:])]
        assert {one.status for one in said} == {PublishStatus.ACKED}
        assert len(server.calls) == 2 + 3
        arrived = await made.arrived()
        assert [one.id for one in arrived if one.key == "A"] == [sent[at].id for at in (0, 2, 4)]
        assert len(arrived) == len(sent)


@pytest.mark.slow
async def test_a_key_that_has_failed_is_published_again() -> None:
    """The library's own publisher would refuse it until it is told to go on."""
    async with counted() as (made, publisher, server):
        first, second = (made.envelope(number, key="A") for number in range(2))
        server.answers["Publish"] = refusing(grpc.StatusCode.INTERNAL)
        assert [one.status for one in await publisher.publish([first])] == [PublishStatus.UNKNOWN]
        server.answers.clear()
        for one in (first, second):
            assert [said.status for said in await publisher.publish([one])] == [PublishStatus.ACKED]
        assert [one.id for one in await made.arrived()] == [first.id, second.id]


@pytest.mark.slow
async def test_requests_have_the_limits_of_the_service() -> None:
    async with counted() as (made, publisher, server):
        sent = [made.envelope(number, key=None) for number in range(1500)]
        sent += [made.envelope(2000 + number, key=None, payload=b"x" * 4_000_000) for number in range(3)]
        assert {one.status for one in await publisher.publish(sent)} == {PublishStatus.ACKED}
        assert len(server.calls) == 3, "1000 messages; 500 and two large ones; one large one"
        assert sorted(one.id for one in await made.arrived()) == sorted(one.id for one in sent)


@pytest.mark.slow
@each_row("mode", ["binary", "structured"])
async def test_the_largest_message_is_taken(mode: Mode) -> None:
    """For any other contents of its request."""
    require("pubsub")
    async with topics(mode=mode) as made:
        given = made.envelope(1, payload=b"", media_type="text/plain")
        empty = types.PubsubMessage.pb()(**content_of(given, mode)._asdict()).ByteSize()
        room = 10_000_000 - empty - 200
        sizes = [room if mode == "binary" else room // 4 * 3, 10_000_000]
        said = [(await made.publish(given._replace(payload=b"x" * size)))[0].status for size in sizes]
        assert said == [PublishStatus.ACKED, PublishStatus.REJECTED]


@pytest.mark.slow
async def test_a_message_that_is_refused_alone_leaves_the_others_of_its_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An attribute that is too long: as if it were not found before."""
    require("pubsub")
    monkeypatch.setattr(publishers, "content_of", lambda given, _: PubSubContent(given.payload, {"id": given.id}, ""))
    async with topics() as made:
        said = await made.publish(made.envelope(1), made.envelope(2, id="x" * 1025), made.envelope(3))
        assert [one.status for one in said] == [PublishStatus.ACKED, PublishStatus.RETRYABLE, PublishStatus.ACKED]


@pytest.mark.slow
@pytest.mark.fault(50, 51)
async def test_a_server_that_is_killed_while_it_is_published_to_loses_nothing_that_is_not_told() -> None:
    """It forgets its topics, which is told too, until they are declared again."""
    require("pubsub")
    server = await asyncio.to_thread(PubSubServer)
    options = options_of(server.url)
    publisher = PubSubPublisher(**options)
    consumer = PubSubConsumer(topics="mails", group=GROUP, poll="500ms", **options)
    try:
        await declare(topics=["orders", "mails"], group=GROUP, **options)
        assert await consumer.receive(1, 0.1) == []
        acked = asyncio.Event()

        async def refused(key: str) -> PublishStatus:
            """Return the last answer of a server that has taken some."""
            while True:
                (said,) = await publisher.publish([event(key=key, payload=b"x" * 100_000)])
                if said.status is not PublishStatus.ACKED:
                    return said.status
                acked.set()

        calls = [asyncio.create_task(refused(key)) for key in "ABCDEFGH"]
        await acked.wait()
        await asyncio.to_thread(server.kill)
        async with asyncio.timeout(30):
            assert {await call for call in calls} <= {PublishStatus.UNAVAILABLE, PublishStatus.UNKNOWN}
        await asyncio.to_thread(server.start)
        async with asyncio.timeout(30):
            while (await publisher.publish([event()]))[0].status is not PublishStatus.STALLED:
                pass  # gRPC connects anew at its own pace
        with pytest.raises(QueueMissing, match="topics declare"):
            await until_raised(consumer, QueueMissing)
        await declare(topics="mails", group=GROUP, **options)
        assert [one.status for one in await publisher.publish([event(topic="mails")])] == [PublishStatus.ACKED]
        (found,) = await eventually(consumer, 10.0)
        await consumer.ack([found])
    finally:
        await publisher.aclose()
        await consumer.aclose()
        await asyncio.to_thread(server.close)


# ---------------------------------------------------------------- consuming


async def until_raised(consumer: PubSubConsumer, kind: type[Exception]) -> None:
    """Raises what it raises of this kind; others before it do not count."""
    async with asyncio.timeout(20):
        while True:
            try:
                await consumer.receive(1, 1.0)
            except kind:
                raise
            except FAILURES:
                continue


async def eventually(consumer: PubSubConsumer, within: float) -> Any:
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


@pytest.mark.slow
@pytest.mark.fault(52)
async def test_a_message_that_is_handled_for_longer_than_the_deadline_stays_with_its_consumer() -> None:
    """So does its key."""
    require("pubsub")
    async with bench("pubsub", lease="5s", prefetch=1) as broker:
        trial = Trial(broker)
        await trial.publish(*"AA")
        async with trial.consumer() as one, trial.consumer() as two:
            (found,) = await trial.take(one, 1)
            assert not await two.receive(2, 6.0), "more than a deadline"
            await one.ack([found])


@pytest.mark.slow
async def test_a_consumer_that_has_gone_takes_no_message_from_others() -> None:
    """A request's messages without a receiver are hidden until the deadline."""
    require("pubsub")
    async with bench("pubsub", lease="30s") as broker:
        trial = Trial(broker)
        async with trial.consumer() as one:
            assert await one.receive(1, 0.1) == []
        await trial.publish("A")
        async with trial.consumer() as two:
            assert numbers(await two.receive(1, 5.0)) == [0]


@pytest.mark.slow
@pytest.mark.fault(52)
async def test_a_consumer_cut_off_until_the_deadline_hands_out_nothing_that_another_one_has() -> None:
    require("pubsub")
    async with bench("pubsub", lease="2s") as broker:
        road = road_to(options_of(broker.url)["endpoint"])
        consumer, trial = broker.make(led_by(broker.url, road.port)), Trial(broker)
        try:
            await trial.publish(*"AB")
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
async def test_no_more_are_held_than_are_to_be_fetched_ahead() -> None:
    async with between(prefetch=3, prefetch_bytes=1 << 20) as (server, broker, consumer):
        trial = Trial(broker)
        await trial.publish(*"ABCDE")
        found = await trial.take(consumer, 3)
        assert await consumer.receive(2, 0.5) == []
        await consumer.ack(found[:1])
        await trial.take(consumer, 1)
        asked = [types.PullRequest.deserialize(sent).max_messages for name, sent in server.calls if name == "Pull"]
        assert asked[0] == 3
        assert asked[-1] == 1


async def test_redeliveries_are_told() -> None:
    """By the age of the message, or by the count of a subscription with a dead-letter topic."""
    require("pubsub")
    url, name = os.environ["RETRYSAFE_TEST_PUBSUB"], f"suite-{secrets.token_hex(6)}"
    options = {"prefix": PREFIX, **options_of(url)}
    project = options["project"]
    await declare(topics=[name, f"{name}-dead"], **options)
    path = subscription_path(project, PREFIX, name, GROUP)
    policy = {"dead_letter_topic": topic_path(project, PREFIX, f"{name}-dead"), "max_delivery_attempts": 5}
    settings = {"topic": topic_path(project, PREFIX, name), "dead_letter_policy": policy, "ack_deadline_seconds": 1}
    consumer, publisher = PubSubConsumer(topics=name, group=GROUP, poll="500ms", **options), PubSubPublisher(**options)
    async with service(url) as clients:
        await clients.subscriber.create_subscription({"name": path, **settings}, retry=None)
        await publisher.publish([event(topic=name)])
        (one,) = await pulled(clients, path)
        nack = {"subscription": path, "ack_ids": [one.ack_id], "ack_deadline_seconds": 0}
        await clients.subscriber.modify_ack_deadline(nack, retry=None)
        (again,) = await eventually(consumer, 5.0)
        await consumer.ack([again])
        await publisher.publish([event(topic=name)])
        (fresh,) = await eventually(consumer, 5.0)
        assert (again.redelivered, fresh.redelivered) == (True, False)
        await consumer.ack([fresh])
    await consumer.aclose()
    await publisher.aclose()
    await without(url, name, GROUP)
    await without(url, f"{name}-dead")


async def test_a_subscription_that_is_missing_is_told_until_it_is_made() -> None:
    require("pubsub")
    url, name = os.environ["RETRYSAFE_TEST_PUBSUB"], f"suite-{secrets.token_hex(6)}"
    options: dict[str, Any] = {"topics": name, "group": GROUP, "prefix": PREFIX, **options_of(url)}
    consumer = PubSubConsumer(poll="500ms", **options)
    with pytest.raises(QueueMissing, match="declare it:  retrysafe topics declare --broker URL --topic TOPIC"):
        await consumer.receive(1, 0.0)
    known = [consumer.redelivery_window]
    with pytest.raises(ConfigurationError, match="refuses"):
        await declare(keep="40d", **options)
    for _ in range(2):
        await declare(keep="2d", **options)
    assert await consumer.receive(1, 0.0) == []
    assert [*known, consumer.redelivery_window] == [None, 2 * 86400]
    await consumer.aclose()
    async with service(url) as clients:
        path = topic_path(options["project"], PREFIX, name)
        update = {"topic": {"name": path, "message_retention_duration": {"seconds": 5 * 86400}}}
        await clients.publisher.update_topic({**update, "update_mask": {"paths": ["message_retention_duration"]}})
        again = subscription_path(options["project"], PREFIX, name, GROUP)
        await clients.subscriber.delete_subscription(subscription=again)
    await declare(keep="2d", **options)
    consumer = PubSubConsumer(poll="500ms", **options)
    assert await consumer.receive(1, 0.0) == []
    assert consumer.redelivery_window == 5 * 86400, "who seeks back is handed what the topic keeps"
    await consumer.aclose()
    await without(url, name, GROUP)


# ---------------------------------------------------------------- processes and settings


async def test_closing_leaves_no_thread_and_no_task() -> None:
    require("pubsub")
    before = {thread.ident for thread in threading.enumerate()}
    async with bench("pubsub", lease="2s") as broker:
        trial = Trial(broker)
        await trial.publish("A")
        consumer = broker.make(broker.url)
        await consumer.ack(await trial.take(consumer, 1))
        await consumer.aclose()
    await asyncio.sleep(0)
    assert {task.get_name() for task in asyncio.all_tasks()} - {asyncio.current_task().get_name()} == set()  # type: ignore[union-attr]
    ours = [one.name for one in threading.enumerate() if one.ident not in before and "proxy" not in one.name]
    assert [name for name in ours if "_poll_wrapper" not in name] == [], "but gRPC's own, which is one for the process"


FORKING = """
import asyncio, os, sys
from retrysafe.messaging.brokers.pubsub.opening import options_of
from retrysafe.messaging.brokers.pubsub import PubSubPublisher, declare
from retrysafe.messaging import Envelope

async def publish(number):
    options = options_of(sys.argv[1])
    await declare(topics="forking", **options)
    publisher = PubSubPublisher(**options)
    sent = Envelope(number, "forking", "k", "t", "/s", None, {}, b"", "text/plain")
    print(number, [one.status.value for one in await publisher.publish([sent])], flush=True)
    await publisher.aclose()

asyncio.run(publish("before"))
if (child := os.fork()) == 0:
    asyncio.run(publish("child"))
    os._exit(0)
os.waitpid(child, 0)
asyncio.run(publish("parent"))
"""


@pytest.mark.slow
def test_a_process_may_fork_when_all_is_closed() -> None:
    require("pubsub")
    command = [sys.executable, "-c", FORKING, os.environ["RETRYSAFE_TEST_PUBSUB"]]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == [f"{name} ['acked']" for name in ("before", "child", "parent")]


async def test_a_service_that_is_not_there_or_lets_nobody_in_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = PubSubPublisher("tests", endpoint="http://127.0.0.1:9")
    (away,) = await publisher.publish([event()])
    assert away.status is PublishStatus.UNAVAILABLE
    await publisher.aclose()
    monkeypatch.delenv("PUBSUB_EMULATOR_HOST", raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", os.devnull)
    publisher = PubSubPublisher("tests")
    (said,) = await publisher.publish([event()])
    assert said.status is PublishStatus.UNAVAILABLE
    assert "credentials" in said.error
    await publisher.aclose()
    consumer = PubSubConsumer("tests", "orders", group=GROUP)
    with pytest.raises(ConfigurationError, match="credentials"):
        await consumer.receive(1, 0.0)
    await consumer.aclose()


async def test_the_emulator_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    require("pubsub")
    options = options_of(os.environ["RETRYSAFE_TEST_PUBSUB"])
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", options.pop("endpoint").removeprefix("http://"))
    publisher = PubSubPublisher(**options)
    (said,) = await publisher.publish([event(topic="nowhere")])
    assert said.status is PublishStatus.STALLED
    await publisher.aclose()


async def test_settings_that_cannot_be_are_refused() -> None:
    settings: list[dict[str, Any]] = [
        {"topics": []},
        {"prefetch": 0},
        {"prefetch_bytes": 0},
        {"group": ""},
        {"project": ""},
    ]
    for wrong in settings:
        with pytest.raises(ConfigurationError, match="must not be empty"):
            PubSubConsumer(**{"project": "tests", "topics": "orders", "group": GROUP, **wrong})
    with pytest.raises(ConfigurationError, match="not a name"):
        PubSubConsumer("tests", "", group="1")
    with pytest.raises(ConfigurationError, match="mode='text'"):
        PubSubPublisher("tests", mode="text")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="must not be empty"):
        PubSubPublisher("")
    for url in ("pubsub://", "pubsub://tests/orders", "pubsub://tests?region=x"):
        with pytest.raises(ConfigurationError, match="pubsub://PROJECT"):
            broker_at(url, name="shop")
    (said,) = await PubSubPublisher("tests").publish([event(topic="")])
    assert said.status is PublishStatus.RETRYABLE
