"""The peculiarities of SQS and SNS: limits of a message, answers of the services, holding of messages."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import patch

import pytest
from botocore.exceptions import ClientError, ConnectTimeoutError, NoCredentialsError, NoRegionError
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from retrysafe import ConfigurationError
from retrysafe.messaging.brokers.receipts import Receipts
from retrysafe.messaging.brokers.registry import broker_at
from retrysafe.messaging.brokers.sqs import SnsPublisher, SqsConsumer, SqsPublisher, declare
from retrysafe.messaging.brokers.sqs import publisher as publishers
from retrysafe.messaging.brokers.sqs.client import FAILURES, Service, TopicMissing
from retrysafe.messaging.brokers.sqs.messages import content_of, envelope_from, name_of, order_of
from retrysafe.messaging.brokers.sqs.results import blames_one, result_of, result_of_answer
from retrysafe.messaging.brokers.sqs.topology import _allowing
from retrysafe.messaging.cloudevents import Mode
from retrysafe.messaging.errors import QueueMissing
from retrysafe.protocol.messages import Envelope, PublishStatus
from retrysafe.testing.consumers import Trial, numbers
from tests.conftest import require
from tests.messaging.harnesses import bench
from tests.messaging.harnesses.base import road_to
from tests.messaging.harnesses.sqs import PREFIX, name_in, options_of, queues, service, without_queue, without_topic
from tests.messaging.inboxes import envelope
from tests.tables import each_row

LEASE = 9.0

# ---------------------------------------------------------------- messages


def event(**other: Any) -> Envelope:
    return envelope("1")._replace(payload=b'{"n":1}', media_type="application/json", headers={})._replace(**other)


def carried(given: Envelope, mode: Mode = "binary") -> tuple[Envelope, bool]:
    """Return the arriving message, and whether it was all in the body."""
    body, attributes = content_of(given, mode)
    assert len(attributes) <= 10
    assert body
    read = envelope_from({"Body": body, "MessageAttributes": attributes}, given.topic)
    return read, "ce-id" not in attributes


SEVEN = {f"x{number}": str(number) for number in range(7)}


@each_row(
    ("other", "in_body"),
    [
        ({}, False),
        ({"headers": {"traceparent": "00-1-2-01", "X-Tenant": "ü"}}, False),
        ({"headers": SEVEN}, True),
        ({"headers": {**SEVEN, "X-Tenant": "ü"}}, True),
        ({"headers": {"empty": ""}}, True),
        ({"payload": b""}, True),
        ({"payload": bytes(range(256)), "media_type": "application/avro"}, True),
        ({"payload": b"a\0b", "media_type": "text/plain"}, True),
        ({"payload": '{"x":"\uffff"}'.encode()}, True),
        ({"payload": b'{"n": 1.50}'}, False),
        ({"key": "a\0b"}, True),
        ({"key": None, "sequence": 2**40}, False),
        ({"media_type": "application/cloudevents+json"}, True),
    ],
)
def test_events_that_do_not_fit_are_all_in_the_body(other: dict[str, Any], in_body: bool) -> None:
    given = event(**other)
    assert carried(given) == (given, in_body)
    assert carried(given, "structured") == (given, True)


def test_json_is_readable_in_a_body_that_has_the_whole_event() -> None:
    body, _ = content_of(event(), "structured")
    assert json.loads(body)["data"] == {"n": 1}


@each_row(
    "headers",
    [
        {"AWS.X": "1"},
        {"ce-id": "1"},
        {"Content-Type": "1"},
        {"with space": "1"},
        {"X-Empty": ""},
        {"X-Nul": "\0"},
        {f"X-{number}": "1" for number in range(10)},
    ],
)
def test_a_header_without_a_place_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="attribute"):
        content_of(event(headers=headers), "binary")


def test_a_header_that_would_be_the_payload_is_refused() -> None:
    with pytest.raises(ValueError, match="read as the payload"):
        content_of(event(headers={"data": "x"}), "structured")


def test_events_of_others_are_read_in_both_modes() -> None:
    told = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "subject": "k", "data": {"n": 1}}
    for attributes in ({}, {"Content-Type": "application/cloudevents+json; charset=utf-8"}):
        read = envelope_from({"Body": json.dumps(told), "MessageAttributes": strings(attributes)}, "orders")
        assert (read.id, read.source, read.type, read.key, read.payload) == ("1", "/s", "t", "k", b'{"n":1}')
    for prefix in ("ce-", "CE_", "cloudEvents_"):
        binary = strings({f"{prefix}{name}": told[name] for name in ("specversion", "id", "source", "type")})
        read = envelope_from({"Body": "x", "MessageAttributes": binary}, "orders")
        assert (read.id, read.source, read.type, read.payload) == ("1", "/s", "t", b"x")
    assert envelope_from({"Body": '{"item": "book"}'}, "orders").payload == b'{"item": "book"}'


def test_the_sdk_of_others_and_ours_understand_each_other() -> None:
    body, _ = content_of(event(), "structured")
    read = JSONFormat().read(None, body)
    assert (read.get_id(), read.get_source(), read.get_subject(), read.get_data()) == ("1", "/shop", "k", {"n": 1})
    theirs = CloudEvent({"type": "t", "source": "/s", "id": "1", "datacontenttype": "application/json"}, {"n": 1})
    found = envelope_from({"Body": JSONFormat().write(theirs).decode()}, "orders")
    assert (found.id, found.source, found.type, found.payload) == ("1", "/s", "t", b'{"n":1}')


def strings(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: {"DataType": "String", "StringValue": value} for name, value in attributes.items()}


def test_an_event_of_others_without_a_subject_is_ordered_by_its_group() -> None:
    def read(given: Envelope, group: str) -> str | None:
        body, attributes = content_of(given, "binary")
        message = {"Body": body, "MessageAttributes": attributes, "Attributes": {"MessageGroupId": group}}
        return envelope_from(message, given.topic).key

    assert read(event(key=None), "customer-7") == "customer-7"
    assert read(event(key="order-1"), "customer-7") == "order-1"
    assert read(event(key=None), order_of(event(key=None))["MessageGroupId"]) is None


def test_keys_are_groups_and_ids_of_sources_are_recognised() -> None:
    one, again = order_of(event(id="1")), order_of(event(id="1", payload=b"other"))
    assert one == again
    assert order_of(event(id="2"))["MessageGroupId"] == one["MessageGroupId"]
    assert order_of(event(key="other"))["MessageGroupId"] != one["MessageGroupId"]
    alike = [event(source="/a", id="b"), event(source="/", id="ab")]
    assert len({order_of(each)["MessageDeduplicationId"] for each in alike}) == 2


def test_no_two_queues_have_one_name() -> None:
    names = ["a.b", "a_b", "a_2e_b", "a b", "ä", "a-b", "x" * 75, "x" * 76, "x" * 77]
    for ordered in (True, False):
        found = {name_of("", name, ordered=ordered) for name in names}
        assert len(found) == len(names)
        assert max(map(len, found)) <= 80
        assert all(name.endswith(".fifo") == ordered for name in found)
    with pytest.raises(ValueError, match="no queue"):
        name_of("shop-", "", ordered=True)


# ---------------------------------------------------------------- what the services say


@each_row(
    ("code", "sender", "status"),
    [
        ("InvalidMessageContents", True, "rejected"),
        ("InvalidParameterValue", True, "retryable"),
        ("InternalError", False, "stalled"),
        ("RequestThrottled", True, "stalled"),
        ("AWS.SimpleQueueService.OverLimit", True, "stalled"),
        ("KmsThrottled", True, "stalled"),
        ("AccessDenied", True, "stalled"),
        ("AWS.SimpleQueueService.QueueDeletedRecently", True, "stalled"),
    ],
)
def test_results_of_one_message_of_a_batch(code: str, sender: bool, status: str) -> None:
    assert result_of_answer({"Code": code, "SenderFault": sender}).status is PublishStatus(status)


def said(code: str, status: int = 400) -> ClientError:
    answer: Any = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answer, "SendMessageBatch")


@each_row(
    ("error", "status", "unsent"),
    [
        (said("RequestThrottled"), "stalled", "stalled"),
        (said("ThrottlingException"), "stalled", "stalled"),
        (said("AWS.SimpleQueueService.NonExistentQueue"), "stalled", "stalled"),
        (said("NotFound", 404), "stalled", "stalled"),
        (TopicMissing("orders"), "stalled", "stalled"),
        (said("AccessDenied", 403), "stalled", "stalled"),
        (said("ExpiredToken", 403), "stalled", "stalled"),
        (said("InvalidParameterValue"), "retryable", "stalled"),
        (said("AWS.SimpleQueueService.BatchRequestTooLong"), "rejected", "stalled"),
        (said("ServiceUnavailable", 503), "unknown", "unavailable"),
        (TimeoutError(), "unknown", "unavailable"),
        (ConnectTimeoutError(endpoint_url="https://sqs"), "unavailable", "unavailable"),
        (ConfigurationError("no credentials"), "unavailable", "unavailable"),
    ],
)
def test_a_call_that_fails_blames_no_message_for_the_queue(error: Exception, status: str, unsent: str) -> None:
    assert result_of(error).status is PublishStatus(status)
    assert result_of(error, sent=False).status is PublishStatus(unsent)
    assert blames_one(error) == (status in ("retryable", "rejected"))
    assert result_of(error).error


# ---------------------------------------------------------------- for how long messages are held


def test_held_messages_are_kept_until_they_are_settled() -> None:
    receipts = Receipts(LEASE)
    receipts.add("a", 0.0)
    receipts.add("b", 2.0)
    assert receipts.due(2.9) == []
    assert receipts.due(3.0) == ["a"]
    receipts.keep(["a", "gone"], 3.0)
    assert (receipts.due(4.9), receipts.due(5.0), list(receipts)) == ([], ["b"], ["a", "b"])
    receipts.settle("b")
    assert (receipts.have_lapsed(11.9), receipts.due(11.9)) == (False, ["a"])
    assert (receipts.have_lapsed(12.0), receipts.due(12.0)) == (True, [])
    assert (receipts.clear(), len(receipts)) == (["a"], 0)


def test_the_policy_of_a_queue_keeps_what_others_wrote() -> None:
    theirs = json.dumps({"Version": "2012-10-17", "Statement": {"Sid": "theirs", "Effect": "Deny"}})
    policy = _allowing(theirs, "arn:queue", "arn:aws:sns:eu:1:orders")
    assert policy is not None
    assert [one["Sid"] for one in json.loads(policy)["Statement"]] == ["theirs", "retrysafe-orders"]
    assert _allowing(policy, "arn:queue", "arn:aws:sns:eu:1:orders") is None


# ---------------------------------------------------------------- on the servers


@pytest.mark.slow
@pytest.mark.fault(52)
async def test_a_message_that_is_handled_for_longer_than_the_lease_stays_with_its_consumer() -> None:
    """So does the key: the queue keeps what follows."""
    require("sqs")
    async with bench("sqs", lease="5s", prefetch=1) as broker:
        trial = Trial(broker)
        await trial.publish(*"AA")
        async with trial.consumer() as one, trial.consumer() as two:
            (found,) = await trial.take(one, 1)
            assert not await two.receive(2, 6.0), "more than a lease"
            await one.ack([found])


@pytest.mark.slow
async def test_a_consumer_that_has_gone_takes_no_message_from_others() -> None:
    """The service goes on with a poll whose caller has gone."""
    require("sqs")
    async with bench("sqs", lease="30s", poll="1s") as broker:
        trial = Trial(broker)
        async with trial.consumer() as one:
            assert await one.receive(1, 0.1) == []
        await trial.publish("A")
        async with trial.consumer() as two:
            assert numbers(await two.receive(1, 5.0)) == [0]


@asynccontextmanager
async def cut_off() -> AsyncIterator[tuple[Any, Any, SqsConsumer]]:
    """A bench, the road of a consumer, and that consumer."""
    require("sqs")
    async with bench("sqs", lease="5s") as broker:
        road = road_to(options_of(broker.url)["endpoint"])
        consumer = broker.make(f"sqs://?region=us-east-1&endpoint=http://127.0.0.1:{road.port}")
        try:
            yield broker, road, consumer
        finally:
            await consumer.aclose()
            await asyncio.to_thread(road.close)


@pytest.mark.slow
@pytest.mark.fault(52)
async def test_a_consumer_cut_off_for_the_lease_hands_out_nothing_that_another_one_has() -> None:
    async with cut_off() as (broker, road, consumer):
        trial = Trial(broker)
        await trial.publish(*"AAA")
        (first,) = await trial.take(consumer, 1)
        await asyncio.to_thread(road.close)
        async with trial.consumer() as other:
            again = await trial.take(other, 3)
            assert numbers(again) == [0, 1, 2]
            assert all(one.redelivered for one in again)
            await consumer.ack([first])
            road.open()
            assert numbers(await eventually(consumer, 1.5)) == []
            await other.ack(again)


async def eventually(consumer: SqsConsumer, within: float) -> Any:
    """Receive its messages in that time, in spite of failures that it raises."""
    loop = asyncio.get_running_loop()
    until = loop.time() + within
    while (left := until - loop.time()) > 0:
        try:
            return await consumer.receive(10, left)
        except FAILURES:
            continue
    return []


@pytest.mark.slow
async def test_a_message_that_is_refused_alone_leaves_the_others_of_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A character that no message may have: as if it were not found before."""
    require("sqs")
    monkeypatch.setattr(publishers, "content_of", lambda given, _: (given.payload.decode(), {}))
    async with queues("sqs") as made:
        said = await made.publish(made.envelope(1), made.envelope(2, payload=b"a\x01b"), made.envelope(3))
        assert [one.status for one in said] == [PublishStatus.ACKED, PublishStatus.RETRYABLE, PublishStatus.ACKED]


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
async def test_a_batch_that_is_refused_as_a_whole_is_sent_again_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is too large, as if that were not found before."""
    require("sns")
    monkeypatch.setattr("retrysafe.messaging.brokers.publisher._batches", lambda entries, _: [entries])
    url, name = os.environ["RETRYSAFE_TEST_SNS"], f"suite-{secrets.token_hex(6)}"
    await declare(name, prefix=PREFIX, **options_of(url))
    publisher = SqsPublisher(prefix=PREFIX, **options_of(url))
    said = await publisher.publish([event(id=str(number), topic=name, payload=b"x" * 400_000) for number in range(3)])
    assert [one.status for one in said] == [PublishStatus.ACKED] * 3
    await publisher.aclose()
    await without_queue(url, name_in(name))


async def test_a_message_larger_than_its_queue_takes_is_given_up_before_it_is_sent() -> None:
    require("sns")
    url, name = os.environ["RETRYSAFE_TEST_SNS"], f"suite-{secrets.token_hex(6)}"
    async with service("sqs", url) as client:
        attributes = {"FifoQueue": "true", "MaximumMessageSize": "2048"}
        await client.call("create_queue", QueueName=name_in(name), Attributes=attributes)
    publisher = SqsPublisher(prefix=PREFIX, **options_of(url))
    whole = event(topic=name, payload=b"x" * 1500, headers={"X-Tenant": "y" * 400})
    said = await publisher.publish([whole, whole._replace(id="2", headers={})])
    assert [one.status for one in said] == [PublishStatus.REJECTED, PublishStatus.ACKED]
    assert "2048 bytes" in str(said[0].error)
    await publisher.aclose()
    await without_queue(url, name_in(name))


async def test_each_service_gets_every_message_of_a_standard_topic() -> None:
    require("sns")
    url, name = os.environ["RETRYSAFE_TEST_SNS"], f"suite-{secrets.token_hex(6)}"
    options: dict[str, Any] = {"prefix": PREFIX, "ordered": False, **options_of(url)}
    publisher = SnsPublisher(**options)
    consumers: list[SqsConsumer] = []
    for group in ("stock", "mail"):
        await declare(name, group=group, **options)
        consumers.append(SqsConsumer(name, group=group, poll="100ms", **options))
    sent = [event(id=str(number), topic=name) for number in range(3)]
    assert [one.status for one in await publisher.publish(sent)] == [PublishStatus.ACKED] * 3
    for consumer in consumers:
        found: list[Envelope] = []
        while len(found) < len(sent):
            some = await consumer.receive(10, 10.0)
            assert some
            found += [one.envelope for one in some]
            await consumer.ack(some)
        assert sorted(found) == sent
        await consumer.aclose()
    await publisher.aclose()
    await without_topic(url, name_in(name, ordered=False))
    for group in ("stock", "mail"):
        await without_queue(url, name_in(f"{group}.{name}", ordered=False))


async def test_a_queue_that_is_missing_is_told_until_it_is_made() -> None:
    require("sns")
    url, name = os.environ["RETRYSAFE_TEST_SNS"], f"suite-{secrets.token_hex(6)}"
    consumer = SqsConsumer(name, prefix=PREFIX, poll="1s", **options_of(url))
    with pytest.raises(QueueMissing, match=name):
        await consumer.receive(1, 0.0)
    known = [consumer.redelivery_window]
    for _ in range(2):
        await declare(name, prefix=PREFIX, keep="2d", **options_of(url))
    with pytest.raises(ConfigurationError, match="refuses"):
        await declare(name, prefix=PREFIX, keep="30d", **options_of(url))
    assert await consumer.receive(1, 0.0) == []
    assert [*known, consumer.redelivery_window] == [None, 2 * 86400]
    await consumer.aclose()
    await without_queue(url, name_in(name))


async def test_a_service_that_is_not_there_or_lets_nobody_in_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = SqsPublisher(region="us-east-1", endpoint="http://127.0.0.1:9")
    (away,) = await publisher.publish([event()])
    assert away.status is PublishStatus.UNAVAILABLE
    await publisher.aclose()
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(variable)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    publisher = SqsPublisher(region="us-east-1", endpoint="http://127.0.0.1:9")
    (said,) = await publisher.publish([event()])
    assert said.status is PublishStatus.UNAVAILABLE
    assert "credentials" in str(said.error)
    await publisher.aclose()
    consumer = SqsConsumer("orders", region="us-east-1", endpoint="http://127.0.0.1:9")
    with pytest.raises(ConfigurationError, match="credentials"):
        await consumer.receive(1, 0.0)
    await consumer.aclose()


async def test_settings_that_cannot_be_are_refused() -> None:
    settings: list[dict[str, Any]] = [{"topics": []}, {"prefetch": 0}, {"prefetch_bytes": 0}]
    for wrong in settings:
        with pytest.raises(ConfigurationError, match="must not be empty"):
            SqsConsumer(**{"topics": "orders", **wrong})
    with pytest.raises(ConfigurationError, match="has no queue"):
        SqsConsumer("")
    with pytest.raises(ConfigurationError, match="mode='text'"):
        SqsPublisher(mode="text")  # type: ignore[arg-type]
    for url in ("sqs://localhost", "sqs:///queue", "sns://?profile=x"):
        with pytest.raises(ConfigurationError, match="region"):
            broker_at(url, name="shop")
    client = Service("sqs", None, None, 1.0)
    for error in (NoCredentialsError(), NoRegionError()):
        with (
            patch.object(client, "_open", side_effect=error),
            pytest.raises(ConfigurationError, match=r"\w\. Give this machine"),
        ):
            await client.call("send_message")
    (said,) = await SqsPublisher(region="us-east-1").publish([event(topic="")])
    assert said.status is PublishStatus.RETRYABLE
