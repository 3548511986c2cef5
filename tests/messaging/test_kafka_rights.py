"""Kafka where users may do only what they are given: a missing right holds messages up, and loses none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import aclosing, closing

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AclOperation, ResourceType  # type: ignore[attr-defined]

from retrysafe.doctor import diagnose
from retrysafe.messaging.brokers import kafka
from retrysafe.messaging.brokers.kafka import AsyncKafkaPublisher, KafkaConsumer, KafkaPublisher
from retrysafe.messaging.brokers.kafka.sender import Wave
from retrysafe.protocol.checks import Severity
from retrysafe.protocol.messages import Envelope, PublishResult, PublishStatus
from tests.conftest import require
from tests.faults.helpers import DEADLINE
from tests.messaging.harnesses.kafka import GuardedKafka
from tests.tables import each_row

ENVELOPE = Envelope("01-1", "orders", "order-7", "placed.v1", "/shop", 10, {}, b"{}", "application/json")
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP


@pytest.fixture(scope="module")
def guarded() -> Iterator[GuardedKafka]:
    require("kafka")
    with closing(GuardedKafka("shop", "mail", "nobody")) as server:
        kafka.declare(server.url, ["orders", "mails", "later"], partitions=1)
        server.allow("shop", AclOperation.WRITE, TOPIC, "orders")
        server.allow("mail", AclOperation.READ, TOPIC, "orders")
        server.allow("mail", AclOperation.READ, GROUP, "mail")
        server.allow("mail", AclOperation.DESCRIBE, TOPIC, "none")
        server.allow("nobody", AclOperation.DESCRIBE, TOPIC, "later")
        yield server


def published(url: str, topic: str, publisher: KafkaPublisher | None = None) -> PublishResult:
    with closing(publisher or KafkaPublisher(url, delivery_timeout="3s")) as made:
        (result,) = made.publish([ENVELOPE._replace(topic=topic)])
    return result


@pytest.mark.slow
@pytest.mark.one_of("slow tests")
async def test_a_user_with_the_right_to_read_consumes(guarded: GuardedKafka) -> None:
    assert published(guarded.url_of("shop"), "orders").status is PublishStatus.ACKED
    async with aclosing(KafkaConsumer(guarded.url_of("mail"), "orders", group="mail")) as consumer:
        (first, *_) = await consumer.receive(1, DEADLINE)
        await consumer.ack([first])
        assert consumer.redelivery_window is None, "it may not read the settings of its topic"


@pytest.mark.slow
def test_a_topic_that_may_not_be_written_holds_its_own_messages_up(guarded: GuardedKafka) -> None:
    with closing(KafkaPublisher(guarded.url_of("shop"))) as publisher:
        refused, passed = publisher.publish([ENVELOPE._replace(topic="mails"), ENVELOPE])
    assert refused.status is PublishStatus.STALLED
    assert refused.error == "TOPIC_AUTHORIZATION_FAILED: Broker: Topic authorization failed"
    assert passed.status is PublishStatus.ACKED


@pytest.mark.slow
async def test_a_user_without_a_right_to_write_is_told_and_publishes_when_it_may(guarded: GuardedKafka) -> None:
    """The brokers give it no number of a producer, of which its client dies."""
    async with aclosing(AsyncKafkaPublisher(guarded.url_of("nobody"))) as publisher:
        for _ in range(2):
            results = await publisher.publish([ENVELOPE._replace(topic="later")] * 2)
            assert [one.status for one in results] == [PublishStatus.UNAVAILABLE] * 2
            assert {one.error for one in results} == {
                "CLUSTER_AUTHORIZATION_FAILED: Broker: Cluster authorization failed"
            }
        guarded.allow("nobody", AclOperation.WRITE, TOPIC, "later")
        (result,) = await publisher.publish([ENVELOPE._replace(topic="later")])
        assert result.status is PublishStatus.ACKED


@pytest.mark.slow
def test_a_wrong_password_is_told(guarded: GuardedKafka) -> None:
    result = published(guarded.url_of("shop").replace(":shop@", ":secret@"), "orders")
    assert result == PublishResult(PublishStatus.UNAVAILABLE, "_AUTHENTICATION: Local: Authentication failure")


@pytest.mark.slow
@each_row(
    ("user", "topic", "code"),
    [
        ("mail", "mails", KafkaError.TOPIC_AUTHORIZATION_FAILED),
        ("shop", "orders", KafkaError.GROUP_AUTHORIZATION_FAILED),
        ("shop:secret", "orders", KafkaError._AUTHENTICATION),
    ],
)
async def test_a_consumer_without_a_right_says_so(guarded: GuardedKafka, user: str, topic: str, code: int) -> None:
    name, _, password = user.partition(":")
    url = guarded.url_of(name).replace(f":{name}@", f":{password or name}@")
    async with aclosing(KafkaConsumer(url, topic, group="mail")) as consumer:
        with pytest.raises(KafkaException) as caught:
            await consumer.receive(1, DEADLINE)
    assert caught.value.args[0].code() == code


def test_topics_that_may_not_be_seen_are_a_note_and_not_missing(guarded: GuardedKafka) -> None:
    found = diagnose(brokers=[guarded.url_of("mail")], topics=["orders", "mails", "none"], within=20)
    said = {one.id: one for one in found}
    assert said.keys() == {"kafka-permission", "kafka-topic"}
    assert said["kafka-topic"].evidence == "No topic none."
    assert said["kafka-permission"].severity is Severity.NOTE
    assert "mails: Broker: Topic authorization failed; orders: " in said["kafka-permission"].evidence


def test_of_what_is_abandoned_nobody_can_tell() -> None:
    wave = Wave(3)
    wave.report(1, None)
    wave.abandon()
    first, second, third = wave.reports.result()
    assert second is None
    assert [one.code() for one in (first, third) if one] == [KafkaError._PURGE_INFLIGHT] * 2
