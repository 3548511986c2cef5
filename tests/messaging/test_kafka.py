"""The peculiarities of Kafka: batches, partitions that go to others, and records that a topic no longer has."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import closing
from functools import partial
from pathlib import Path
from statistics import quantiles
from typing import Any

import pytest
from cloudevents.core.bindings import kafka as binding
from cloudevents.core.v1.event import CloudEvent
from confluent_kafka import Producer

from retrysafe import Boundary, ConfigurationError
from retrysafe.backends.registry import connect
from retrysafe.messaging import Inbox, Outbox, Subscription
from retrysafe.messaging.brokers.base import Consumer
from retrysafe.messaging.brokers.kafka import KafkaConsumer, KafkaPublisher, declare
from retrysafe.messaging.brokers.kafka.consumer import _KafkaSession
from retrysafe.messaging.brokers.kafka.messages import KafkaRecord, envelope_from, record_of
from retrysafe.messaging.brokers.kafka.properties import LOG, properties_of
from retrysafe.messaging.brokers.kafka.sender import RecordSender
from retrysafe.messaging.cloudevents import Mode
from retrysafe.messaging.errors import QueueMissing
from retrysafe.protocol.events import Event
from retrysafe.protocol.messages import Envelope, PublishStatus
from retrysafe.testing.consumers import Trial, numbers
from tests.conftest import require
from tests.faults.helpers import DEADLINE
from tests.messaging.harnesses import bench
from tests.messaging.harnesses.kafka import KafkaBench, KafkaServer, delete, kafka, operator
from tests.messaging.kafka_records import produce
from tests.tables import each_row

ENVELOPE = Envelope(
    "01-1", "orders", "order-7", "placed.v1", "/shop", 10, {"X-Tenant": "ä"}, b'{"a":1}', "application/json"
)
EVENT = CloudEvent(
    {"type": "placed", "source": "/other", "id": "ev-1", "partitionkey": "K", "datacontenttype": "application/json"},
    {"a": "ä"},
)


@pytest.fixture
async def broker() -> AsyncIterator[KafkaBench]:
    require("kafka")
    async with bench("kafka") as made:
        yield made


# ---------------------------------------------------------------- records


@each_row("mode", ["binary", "structured"])
def test_other_consumers_read_our_records(mode: Mode) -> None:
    record = record_of(ENVELOPE, mode, "")
    event: Any = binding.from_kafka_event(binding.KafkaMessage(dict(record.headers), record.key, record.value))  # type: ignore[arg-type]
    told = event.get_attributes()
    assert {name: told[name] for name in ("id", "source", "type", "subject", "topic")} == {
        "id": "01-1",
        "source": "/shop",
        "type": "placed.v1",
        "subject": "order-7",
        "topic": "orders",
    }
    assert event.get_data() == {"a": 1}
    read = envelope_from(record.headers, record.key, record.value, "")  # type: ignore[arg-type]
    assert read == ENVELOPE


@each_row("written", [binding.to_binary_event, binding.to_structured_event])
def test_records_of_others_are_read(written: Any) -> None:
    wire = written(EVENT)
    read = envelope_from(wire.headers.items(), wire.key.encode(), wire.value, "their-topic")
    assert (read.id, read.source, read.type, read.key, read.topic) == ("ev-1", "/other", "placed", "K", "their-topic")
    assert read.payload in ('{"a":"ä"}'.encode(), b'{"a": "\\u00e4"}')


@each_row(
    "payload", [b'{"a":1.50}', b"[1e400]", b"not json", b"\xff\x00", b"", b"\xef\xbb\xbf{}", "é".encode("utf-16")]
)
def test_any_payload_arrives_in_structured_mode(payload: bytes) -> None:
    for kind in ("application/json", "text/plain"):
        record = record_of(ENVELOPE._replace(payload=payload, media_type=kind), "structured", "")
        read = envelope_from(record.headers, record.key, record.value, "")  # type: ignore[arg-type]
        assert (read.payload, read.media_type) == (payload, kind)


def test_a_record_that_is_no_event_has_its_key_and_its_topic() -> None:
    read = envelope_from([("trace", b"1"), ("broken", b"\xff"), ("none", None)], b"K", None, "raw")
    assert read == Envelope(
        "", "raw", "K", "", "", None, {"trace": "1", "broken": "\\xff", "none": ""}, b"", "application/octet-stream"
    )


@each_row(
    ("column", "headers"),
    [
        (b'{"X-Tenant":"\\u00e4","traceparent":"00-1"}', {"X-Tenant": "ä", "traceparent": "00-1"}),
        (b'{"id":"another"}', {}),
        (b"{}", {}),
        (b'{"a":1}', {"retrysafe-headers": '{"a":1}'}),
        (b"[1]", {"retrysafe-headers": "[1]"}),
        (b"[" * 100_000, {"retrysafe-headers": "[" * 100_000}),
        (b"{", {"retrysafe-headers": "{"}),
    ],
)
def test_headers_that_were_written_as_one_column_are_read(column: bytes, headers: dict[str, str]) -> None:
    told = [("ce_id", b"1"), ("ce_source", b"/shop"), ("ce_type", b"t")]
    for octets, sequence in ((None, None), (b"7", 7)):
        row = [("retrysafe-sequence", octets), ("retrysafe-headers", column)]
        read = envelope_from([*told, *row], None, b"", "orders")
        assert (read.id, read.sequence, read.headers) == ("1", sequence, headers)


@each_row(
    "poison",
    [
        {"headers": {"X-\udc80": "a"}},
        {"headers": {"X-A": "\udc80"}},
        {"headers": {"X-\0": "a"}},
        {"headers": {"CE_id": "a"}},
        {"headers": {"Content-Type": "a"}},
        {"headers": {"retrysafe-headers": "{}"}},
        {"headers": {"Retrysafe-Sequence": "1"}},
        {"key": "\udc80"},
        {"topic": "with space"},
        {"topic": ""},
        {"topic": ".."},
    ],
)
def test_messages_without_a_place_in_a_record_are_given_up_alone(poison: dict[str, Any]) -> None:
    """The client would end the process for a header's name that is not UTF-8."""
    with pytest.raises(ValueError, match=r".+"):
        record_of(ENVELOPE._replace(**poison), "binary", "")
    publisher = KafkaPublisher("kafka://127.0.0.1:1")
    (said,) = publisher.publish([ENVELOPE._replace(**poison)])
    publisher.close()
    assert said.status is PublishStatus.REJECTED


# ---------------------------------------------------------------- the client's properties


def test_a_url_has_brokers_credentials_and_properties() -> None:
    found = properties_of("kafka://u%40x:p%3A@a:1,b:2/?security.protocol=SASL_SSL", {"acks": "all"}, {"linger.ms": 9})
    assert found == {
        "client.id": "retrysafe",
        "topic.metadata.refresh.interval.ms": 5000,
        "bootstrap.servers": "a:1,b:2",
        "sasl.username": "u@x",
        "sasl.password": "p:",
        "security.protocol": "SASL_SSL",
        "linger.ms": 9,
        "acks": "all",
    }
    own = properties_of("kafka://a?topic.metadata.refresh.interval.ms=100", {})
    assert own["topic.metadata.refresh.interval.ms"] == "100"


@each_row("url", ["kafka://", "kafka:///topic", "kafka://host/topic", "amqp://host"])
def test_a_url_without_brokers_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="write kafka://host:9092"):
        KafkaPublisher(url)


def test_settings_that_promises_depend_on_cannot_be_set() -> None:
    for make in (KafkaPublisher, partial(KafkaConsumer, topics="orders", group="g")):
        with pytest.raises(ConfigurationError, match=r'^No such configuration property: "ack": correct it'):
            make("kafka://localhost?ack=all")
    with pytest.raises(ConfigurationError, match=r"^acks cannot be set"):
        KafkaPublisher("kafka://host?acks=1")
    with pytest.raises(ConfigurationError, match=r"^enable\.auto\.commit cannot be set"):
        KafkaConsumer("kafka://host", "orders", group="g", properties={"enable.auto.commit": True})
    with pytest.raises(ConfigurationError, match="mode="):
        KafkaPublisher("kafka://host", mode="batch")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="prefetch="):
        KafkaConsumer("kafka://host", "orders", group="g", prefetch=0)


# ---------------------------------------------------------------- publishing


@pytest.mark.slow
@pytest.mark.fault(54)
async def test_a_full_queue_of_the_client_is_waited_for() -> None:
    require("kafka")
    properties = {"queue.buffering.max.messages": 3, "topic.metadata.refresh.interval.ms": 100}
    async with kafka(properties=properties) as made:
        envelopes = [made.envelope(number) for number in range(100)]
        assert {one.status for one in await made.publish(*envelopes)} == {PublishStatus.ACKED}
        assert [one.id for one in await made.arrived()] == [one.id for one in envelopes]


@pytest.mark.slow
@pytest.mark.fault(54)
async def test_a_message_that_found_no_room_blames_no_message() -> None:
    """Nothing leaves the client's queue: those behind it were not tried."""
    require("kafka")
    async with kafka(properties={"queue.buffering.max.messages": 1}, delivery_timeout="200ms") as made:
        await made.cut()
        said = await made.publish(*[made.envelope(number) for number in range(3)])
        assert {one.status for one in said} <= {PublishStatus.STALLED, PublishStatus.UNAVAILABLE}
        await made.mend()


@pytest.mark.slow
async def test_a_publish_that_is_cancelled_leaves_the_publisher_as_it_was() -> None:
    require("kafka")
    async with kafka() as made:
        for steps in range(4):
            publishing = asyncio.create_task(made.publisher.publish([made.envelope(steps)]))
            for _ in range(steps):
                await asyncio.sleep(0)
            publishing.cancel()
            await asyncio.wait([publishing])
        await made.publish_until_taken(made.envelope(9))
        assert made.envelope(9).id in {one.id for one in await made.arrived()}


@pytest.mark.slow
async def test_the_command_line_relays_to_kafka(tmp_path: Path) -> None:
    require("kafka")
    store = f"sqlite:///{tmp_path}/shop.db"
    backend = connect(store)
    backend.migrate()
    backend.close()
    async with kafka() as made:
        with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
            Outbox(store, source="/shop").add(connection, made.topic.removeprefix("suite-"), {"n": 1}, key="A")
        command = ["relay", "--once", "--store", store, "--broker", made.url, "--prefix", "suite-"]
        assert await asyncio.to_thread(subprocess.run, [sys.executable, "-m", "retrysafe", *command], check=True)
        (arrived,) = await made.arrived()
        assert (arrived.key, arrived.payload) == ("A", b'{"n":1}')


# ---------------------------------------------------------------- consuming


async def settle(consumer: Consumer, trial: Trial, count: int) -> None:
    await consumer.ack(await trial.take(consumer, count))


@pytest.mark.slow
@pytest.mark.fault(50)
async def test_unsettled_messages_are_told_to_be_redelivered(broker: KafkaBench) -> None:
    """Kafka counts no deliveries: who dies of a message has said before that it may be handed out."""
    trial = Trial(broker)
    await trial.publish(*"AAA")
    dying = await broker.consumer()
    await trial.take(dying, 3)
    await broker.crash(dying)
    async with trial.consumer() as later:
        assert [one.redelivered for one in await trial.take(later, 3)] == [True] * 3


@pytest.mark.slow
@pytest.mark.fault(52)
async def test_settlements_after_a_partition_has_gone_are_not_committed(broker: KafkaBench) -> None:
    broker.options["leave_within"] = "100ms"
    trial = Trial(broker)
    await trial.publish(*"ABCDEFGH" * 2)
    async with trial.consumer() as one, trial.consumer() as two:
        before = await trial.take(one, 16)
        again = await trial.take(two, 1)
        while some := await two.receive(16, 1.0):
            again += some
        gone = {delivery.partition for delivery in again}
        assert gone
        late = [delivery for delivery in before if delivery.partition in gone]
        assert sorted(numbers(late)) == sorted(numbers(again))
        await one.ack(late)
        await broker.crash(two)
    async with trial.consumer() as three:
        assert sorted(numbers(await trial.take(three, 16))) == list(range(16))


@pytest.mark.slow
@pytest.mark.fault(52)
async def test_a_partition_is_left_when_what_was_handed_out_is_settled(broker: KafkaBench) -> None:
    broker.options["leave_within"] = "30s"
    trial = Trial(broker)
    await trial.publish(*"ABCDEFGH" * 2)
    async with trial.consumer() as one, trial.consumer() as two:
        held = await trial.take(one, 16)
        waiting = asyncio.create_task(two.receive(16, 1.0))
        assert await waiting == []
        await one.ack(held)
        await trial.publish(*"ABCDEFGH" * 2)
        found = [await trial.take(two, 1), await trial.take(one, 1)]
        assert min(numbers([*found[0], *found[1]])) >= 16


@pytest.mark.slow
@pytest.mark.fault(52)
async def test_a_paused_partition_that_left_and_came_back_is_read_again(broker: KafkaBench) -> None:
    """librdkafka keeps a pause over the end of an assignment: the next one has to end it."""
    broker.options.update(prefetch=2, leave_within="100ms")
    trial = Trial(broker)
    await trial.publish(*"ABCDEFGH" * 4)
    async with trial.consumer() as one:
        held = await trial.take(one, 4)
        async with trial.consumer() as two:
            await trial.take(two, 1)
        await one.ack(held)
        seen = {*numbers(held)}
        while len(seen) < 32:
            found = await trial.take(one, 1)
            seen |= {*numbers(found)}
            await one.ack(found)


@pytest.mark.slow
async def test_a_marker_that_ends_a_partition_is_no_lag(broker: KafkaBench) -> None:
    """No message follows it, so it would be seen as lag without progress, and the consumer be ended for it."""
    trial = Trial(broker)
    await trial.publish("A")
    producer = Producer(properties_of(broker.url, {"transactional.id": broker.topic}), logger=LOG)
    producer.init_transactions(10)
    for _ in range(3):
        producer.begin_transaction()
        producer.produce(broker.topic, b"{}", b"A")
        producer.commit_transaction(10)
    async with trial.consumer() as one, asyncio.timeout(DEADLINE):
        await one.ack(await trial.take(one, 4))
        while any((await one.lag()).values()):
            await one.receive(1, 0.1)


@pytest.mark.slow
async def test_a_consumer_that_handles_for_long_keeps_its_partition() -> None:
    """The client is polled meanwhile, or its group would take it for dead after max.poll.interval.ms."""
    require("kafka")
    async with kafka() as made:
        consumers = [
            KafkaConsumer(made.url, made.topic, group="g", session="5s", properties={"max.poll.interval.ms": 5000})
            for _ in range(2)
        ]
        await made.publish(made.envelope(1))
        try:
            (held,) = await consumers[0].receive(1, 10)
            assert await consumers[1].receive(1, 6.0) == []
            await consumers[0].ack([held])
            await made.publish(made.envelope(2))
            (then,) = await consumers[0].receive(1, 10)
            assert then.tag.held is held.tag.held
        finally:
            for consumer in consumers:
                await consumer.aclose()


@pytest.mark.slow
async def test_no_more_is_in_memory_than_was_asked_for(broker: KafkaBench) -> None:
    broker.options["prefetch"] = 2
    trial = Trial(broker)
    await trial.publish(*"A" * 30)
    consumer: Any = await broker.consumer()
    try:
        for expected in range(0, 30, 2):
            found = await trial.take(consumer, 2)
            assert numbers(found) == [expected, expected + 1]
            await trial.nothing(consumer) if expected == 0 else None
            await consumer.ack(found)
    finally:
        await consumer.aclose()


@pytest.mark.slow
async def test_a_partition_that_has_room_again_goes_on_at_once() -> None:
    require("kafka")
    async with kafka() as made:
        properties = {"queued.min.messages": 10}
        consumer = KafkaConsumer(made.url, made.topic, group="g", prefetch=50, properties=properties)
        await made.publish(*(made.envelope(number) for number in range(600)))
        try:
            rounds, settled = [], 0
            while settled < 600:
                begun = time.monotonic()
                found = await consumer.receive(50, 10)
                await consumer.ack(found)
                settled += len(found)
                rounds.append(time.monotonic() - begun)
            # A client may look at a partition that was paused once a second. On a busy machine most rounds are slow.
            assert quantiles(rounds)[0] < 0.5
        finally:
            await consumer.aclose()


@pytest.mark.slow
@pytest.mark.fault(50)
async def test_messages_that_a_topic_no_longer_has_are_told(broker: KafkaBench) -> None:
    from confluent_kafka import TopicPartition

    told: list[Event] = []
    broker.options["observers"] = [told.append]
    trial = Trial(broker)
    await trial.publish(*"A" * 5)
    async with trial.consumer() as consumer:
        await settle(consumer, trial, 1)
        (found,) = await trial.take(consumer, 1)
    place = TopicPartition(broker.topic, int(found.partition.rpartition("-")[2]), 4)
    client = operator(broker.url)
    await asyncio.to_thread(client.delete_records([place])[place].result)
    async with trial.consumer() as later:
        assert numbers(await trial.take(later, 1)) == [4]
    assert [(one.name, one.fields["messages"]) for one in told] == [("messages_trimmed", 3)]


@pytest.mark.slow
@pytest.mark.fault(50)
async def test_a_group_that_is_ahead_of_the_topic_begins_with_the_oldest_message(broker: KafkaBench) -> None:
    """As when the topic was made again, or a broker has lost the end of a partition: nothing is passed by."""
    from confluent_kafka import Consumer as Client
    from confluent_kafka import KafkaException, TopicPartition

    trial = Trial(broker)
    await trial.publish(*"A" * 5)
    async with trial.consumer() as consumer:
        (found,) = await trial.take(consumer, 1)
    place = TopicPartition(broker.topic, int(found.partition.rpartition("-")[2]), 1000)
    client = Client(properties_of(broker.url, {"group.id": broker.topic}), logger=LOG)
    await asyncio.to_thread(client.commit, offsets=[place], asynchronous=False)
    client.close()
    async with trial.consumer() as consumer:
        with pytest.raises(KafkaException, match="out of range"):
            await consumer.receive(5, 10.0)
        again = await trial.take(consumer, 5)
        assert numbers(again) == [*range(5)]
        await consumer.ack(again)
    async with trial.consumer() as later:
        await trial.nothing(later)


@pytest.mark.slow
async def test_bytes_are_counted_that_may_not_be_handed_out_yet(
    broker: KafkaBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.options["prefetch_bytes"] = 1000
    trial = Trial(broker)
    envelopes = [envelope._replace(payload=b"x" * 100) for envelope in trial.envelopes(*"A" * 200)]
    await broker.publish(envelopes)
    consumer: Any = await broker.consumer()
    most, took = [0], _KafkaSession._took

    def noting(session: _KafkaSession, *arguments: Any) -> None:
        took(session, *arguments)
        most.append(max((len(one.withheld) for one in session._held.values()), default=0))

    monkeypatch.setattr(_KafkaSession, "_took", noting)
    try:
        await trial.take(consumer, 1)
    finally:
        await consumer.aclose()
    assert 0 < max(most) <= 10


@pytest.mark.slow
@pytest.mark.one_of("slow tests")
async def test_the_text_of_a_commit_is_as_long_as_the_brokers_take(
    broker: KafkaBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retrysafe.messaging.brokers.kafka.progress._MOST", 6000)
    broker.options["prefetch"] = 5000
    trial = Trial(broker)
    await trial.publish(*"A" * 2600)
    async with trial.consumer() as consumer:
        found = await trial.take(consumer, 2600)
        await consumer.ack(found[1::2])
        await consumer.ack(found[:1])
    async with trial.consumer() as later:
        (again,) = await trial.take(later, 1)
        assert numbers([again]) == [2]


async def test_a_sender_that_was_closed_reports_what_it_does_not_send() -> None:
    """As when another thread has closed it, after an error of the client that is for good."""
    from confluent_kafka import KafkaError

    require("kafka")
    sender = RecordSender(properties_of(os.environ["RETRYSAFE_TEST_KAFKA"], {}), 1.0)
    sender.close()
    async with asyncio.timeout(10):
        (report,) = await asyncio.wrap_future(sender.send([record_of(ENVELOPE, "binary", "")]))
    assert report is not None
    assert report.code() == KafkaError._PURGE_QUEUE


@pytest.mark.slow
@pytest.mark.fault(53)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("before", [0, 100])
async def test_a_record_with_a_header_that_is_not_utf_8_is_no_event(broker: KafkaBench, before: int) -> None:
    """The client fails to read it; where Python has made the call fast, it does not look whether it has failed."""
    trial = Trial(broker)
    headers = [(b"\xff\xfe", b"v"), (b"ce_id", b"1")]
    await trial.publish(*"A" * before)
    async with trial.consumer() as consumer:
        await consumer.ack(await trial.take(consumer, before))
        await asyncio.to_thread(produce, broker.url, broker.topic, headers, b"body")
        await asyncio.to_thread(produce, broker.url, broker.topic, [(b"ce_id", b"2")], b"")
        found = await trial.take(consumer, 2)
        assert [(one.envelope.id, one.envelope.payload) for one in found] == [("", b"body"), ("2", b"")]
        await consumer.ack(found)
    async with trial.consumer() as later:
        await trial.nothing(later)


@pytest.mark.slow
@pytest.mark.fault(53)
async def test_the_window_of_an_inbox_is_compared_with_what_topics_keep(broker: KafkaBench, tmp_path: Any) -> None:
    day = 86_400
    async with bench("kafka") as made:
        consumer = await made.consumer()
        async with asyncio.timeout(60):
            while consumer.redelivery_window is None:  # noqa: ASYNC110 - a new topic is known after a while
                await asyncio.sleep(0.05)
        assert consumer.redelivery_window == 14 * day, "retention.ms and segment.ms"
        boundary = Boundary("b", store=f"sqlite:///{tmp_path}/b.db", effects="transactional", window="7d")

        @Inbox(boundary).handler("c")
        def handle(_: Any) -> None:
            pass

        with pytest.raises(ConfigurationError, match="336 h"):
            Subscription(consumer, handle)
        await consumer.aclose()
    nobody = KafkaConsumer(os.environ["RETRYSAFE_TEST_KAFKA"], "nowhere", group="g")
    assert nobody.redelivery_window is None
    assert KafkaConsumer("kafka://127.0.0.1:1", "t", group="g", redelivery_window="3d").redelivery_window == 3 * day


async def test_a_topic_that_is_missing_is_told(broker: KafkaBench) -> None:
    consumer = KafkaConsumer(broker.url, "nowhere", group="g", session="1s")
    with pytest.raises(QueueMissing, match=r"nowhere.*declare it:  retrysafe topics declare"):
        await consumer.receive(1, 10)
    assert consumer.is_failing
    await consumer.aclose()


@pytest.mark.slow
async def test_a_client_that_has_failed_for_good_is_replaced(
    broker: KafkaBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any error that ends the thread that polls is told once, and the next call begins anew."""
    trial = Trial(broker)
    consumer: Any = await broker.consumer()
    try:
        await settle_nothing(consumer)
        with monkeypatch.context() as patch:
            patch.setattr(consumer._session, "_pause_full", lambda client: 1 // 0)
            with pytest.raises(ZeroDivisionError):
                await consumer.receive(1, 10)
        await trial.publish("A")
        assert numbers(await trial.take(consumer, 1)) == [0]
    finally:
        await consumer.aclose()


@pytest.mark.slow
@pytest.mark.one_of("slow tests")
@pytest.mark.fault(86)
async def test_a_consumer_is_closed_although_the_brokers_do_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their connections are open, as those of brokers that are frozen: librdkafka waits for them without end."""
    monkeypatch.setattr("retrysafe.messaging.brokers.kafka.consumer._WITHIN", 2.0)
    require("kafka")
    with closing(await asyncio.to_thread(KafkaServer)) as server:
        async with bench("kafka", server.url) as broker:
            trial = Trial(broker)
            await trial.publish("A")
            consumer: Any = KafkaConsumer(server.url, broker.topic, group=broker.topic, session="2s")
            (found,) = await trial.take(consumer, 1)
            server.signal(signal.SIGSTOP)
            try:
                await consumer.ack([found])
                async with asyncio.timeout(DEADLINE):
                    await consumer.aclose()
            finally:
                server.signal(signal.SIGCONT)
            await trial.publish("A")
            async with asyncio.timeout(DEADLINE):
                while 1 not in numbers(again := await consumer.receive(2, 1.0)):
                    pass
            await consumer.ack(again)
            await consumer.aclose()


async def test_a_consumer_leaves_its_partitions_when_its_event_loop_is_closed_over_it(broker: KafkaBench) -> None:
    """Its thread went on as long as the process, and no other consumer of the group got them."""
    trial = Trial(broker)
    await trial.publish("A")
    left = KafkaConsumer(broker.url, broker.topic, group=broker.topic, session="6s")
    assert numbers(await asyncio.to_thread(asyncio.run, trial.take(left, 1))) == [0]
    other = KafkaConsumer(broker.url, broker.topic, group=broker.topic, session="6s")
    try:
        assert numbers(await trial.take(other, 1)) == [0]
    finally:
        await other.aclose()


async def settle_nothing(consumer: Consumer) -> None:
    assert await consumer.receive(1, 0.1) == []


def test_the_log_of_the_client_is_ours() -> None:
    assert LOG.name == "retrysafe.kafka"


def test_publishing_while_the_client_is_closed_ends_no_other_wave() -> None:
    """The reports of the others were still to come, and ended the thread that hands them out."""
    require("kafka")
    url, topic = os.environ["RETRYSAFE_TEST_KAFKA"], f"closing-{secrets.token_hex(6)}"
    declare(url, [topic], partitions=1)
    sender = RecordSender(properties_of(url, {"linger.ms": 60_000}), 60.0)
    with sender._turn:
        first = sender.send([KafkaRecord(topic, b"k", b"v", [])])
        sender._closing = True
        sender._producer.purge(in_queue=True, in_flight=True)
        second = sender.send([KafkaRecord(topic, b"k", b"v", [])])
    sender._thread.join(60)
    for reports in (first, second):
        assert [one.name() for one in reports.result(60) if one] == ["_PURGE_QUEUE"]
    assert sender.failure is None
    delete(url, topic)


@pytest.mark.slow
def test_a_publisher_that_was_used_before_a_fork_publishes_in_the_child() -> None:
    """It has none of its parent's threads, and waited for ever."""
    require("kafka")
    url, topic = os.environ["RETRYSAFE_TEST_KAFKA"], f"forked-{secrets.token_hex(6)}"
    program = f"""
import os, signal
from retrysafe.messaging import Envelope
from retrysafe.messaging.brokers.kafka import KafkaPublisher, declare

declare({url!r}, [{topic!r}], partitions=1)
publisher = KafkaPublisher({url!r})
envelope = Envelope("1", {topic!r}, "k", "t.v1", "/s", None, {{}}, b"x", "application/json")
assert publisher.publish([envelope])[0].status == "acked"
if (child := os.fork()) == 0:
    signal.alarm(60)
    os._exit(publisher.publish([envelope])[0].status != "acked")
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), publisher.publish([envelope])[0].status)
publisher.close()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    delete(url, topic)
    assert done.stdout == "0 acked\n", done.stderr
