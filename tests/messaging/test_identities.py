"""Messages that differ stay different, whatever they are made of, and no header passes for an attribute."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator
from typing import Any

import pytest

from retrysafe.messaging import Envelope, InboxMessage, MessageRefused
from retrysafe.messaging.brokers.amqp_binding import Binding, envelope_from, headers_of
from retrysafe.messaging.brokers.lane_queue import LaneQueue
from retrysafe.messaging.brokers.redis_streams.entries import envelope_in
from retrysafe.messaging.validation import headers as checked
from retrysafe.protocol.messages import Delivery, PublishStatus, Queued, uuid7
from retrysafe.protocol.outbox_walk import most
from tests.conftest import require
from tests.messaging.inboxes import World, delivery, envelope
from tests.tables import each_row


@pytest.fixture
async def client() -> AsyncIterator[Any]:
    import redis.asyncio

    require("redis")
    async with redis.asyncio.Redis.from_url(os.environ["RETRYSAFE_TEST_REDIS"]) as made:
        yield made


@pytest.mark.fault(50)
async def test_redis_takes_no_message_for_another_one_whose_source_and_id_read_alike(client: Any) -> None:
    from retrysafe.messaging.brokers.redis_streams.publisher import AsyncRedisStreamsPublisher

    topic = f"alike-{secrets.token_hex(6)}"
    publisher = AsyncRedisStreamsPublisher(client, prefix="tests:", remember="1s")
    pair = [envelope("c", topic=topic, source="a:b"), envelope("b:c", topic=topic, source="a")]
    said = [one.status for one in await publisher.publish([*pair, pair[0]])]
    assert said == [PublishStatus.ACKED, PublishStatus.ACKED, PublishStatus.DUPLICATE]
    await client.delete(f"tests:{{{topic}}}")


@pytest.mark.fault(50)
@pytest.mark.parametrize("pair", [("1\0", "1\ufffd"), ("1\ud800", "1\ud801")])
def test_ids_that_differ_only_in_what_no_database_keeps_are_two(pair: tuple[str, str], world: World) -> None:
    inbox = world.inbox()
    seen: list[str] = []
    handle = inbox.handler("stock", max_attempts=1)(lambda message: seen.append(message.envelope.id))
    assert [handle.handle(envelope(id)).became for id in pair] == ["handled", "handled"]
    assert [handle.handle(envelope(id)).became for id in pair] == ["duplicate", "duplicate"]
    assert len(set(seen)) == 2


def test_octets_that_are_not_utf8_stay_different() -> None:
    def of_redis(octets: bytes) -> Envelope:
        return envelope_in({b"id": octets, b"source": b"/shop", b"type": b"t", b"subject": octets}, "t")

    def of_rabbitmq(octets: bytes) -> Envelope:
        return envelope_from({"ce-id": octets, "ce-subject": octets}, {}, b"", "t")

    for read in (of_redis, of_rabbitmq):
        one, other = read(b"\xff1"), read(b"\xfe1")
        assert (one.id, one.key) == ("\\xff1", "\\xff1")
        assert (other.id, other.key) == ("\\xfe1", "\\xfe1")


# ---------------------------------------------------------------- headers


_RESERVED = [
    *("ce-subject", "CE-Sequence", "cloudevents_subject", "ce_id", "Content-Type", "data", "data_base64"),
    *("Nats-Msg-Id", "Nats-TTL", "googclient_x", "AWS.id", "amazon.x", "x-death", "retrysafe-headers"),
]


@each_row("name", _RESERVED)
def test_a_header_that_a_broker_keeps_for_itself_is_refused_when_it_is_added(name: str) -> None:
    with pytest.raises(MessageRefused, match="would be read as"):
        checked({name: "forged"})


def _of_kafka(sent: Envelope, mode: Any) -> Envelope:
    from retrysafe.messaging.brokers.kafka.messages import envelope_from, record_of

    record = record_of(sent, mode, "")
    return envelope_from(record.headers, record.key, record.value, sent.topic)  # type: ignore[arg-type]


def _of_nats(sent: Envelope, mode: Any) -> Envelope:
    from retrysafe.messaging.brokers.nats.messages import content_of, envelope_from

    payload, told = content_of(sent, mode)
    return envelope_from(told, payload, sent.topic)


def _of_mqtt(sent: Envelope, mode: Any) -> Envelope:
    from retrysafe.messaging.brokers.mqtt.messages import content_of, envelope_from

    return envelope_from(content_of(sent, mode), sent.topic)


def _of_sqs(sent: Envelope, mode: Any) -> Envelope:
    from retrysafe.messaging.brokers.sqs.messages import content_of, envelope_from

    body, told = content_of(sent, mode)
    return envelope_from({"Body": body, "MessageAttributes": told}, sent.topic)


def _of_pubsub(sent: Envelope, mode: Any) -> Envelope:
    from retrysafe.messaging.brokers.pubsub.messages import content_of, envelope_from

    made = content_of(sent, mode)
    return envelope_from(made.data, made.attributes, made.ordering_key, sent.topic)


def _of_amqp(sent: Envelope, mode: Any) -> Envelope:
    from retrysafe.messaging.brokers.amqp_binding import content_of

    body, media_type, told = content_of(sent, "rabbitmq", mode)
    own = {"id": sent.id, "type": sent.type, "source": sent.source, "datacontenttype": media_type}
    return envelope_from(told, own, body, sent.topic)


@each_row("carried", [_of_kafka, _of_nats, _of_mqtt, _of_sqs, _of_pubsub, _of_amqp])
def test_both_modes_of_every_broker_carry_the_same_octets_and_headers(carried: Any) -> None:
    """Else the copy of a message in the other mode is another message under the same id, and a dead letter."""
    told = checked({"X-Tenant": "a", "trace_id": "b", "a.b": "c", "tenant": "d"})
    for payload in (b'{"a":1}', b'{"a": 1}', b'{"a":1.50}', b"[1e400]", b'{"a":1,"a":2}', b'"\\u00e4"', b"\xff", b""):
        sent = envelope("1", payload=payload, headers=told)
        for mode in ("binary", "structured"):
            read = carried(sent, mode)
            assert (read.payload, read.headers, read.id) == (payload, told, "1"), mode


@each_row("binding", ["amqp", "rabbitmq"])
@each_row("name", ["ce-subject", "cloudEvents:subject", "cloudEvents_subject"])
def test_nor_is_it_published_or_read_from_another_binding(name: str, binding: Binding) -> None:
    told = headers_of(envelope("1", None), binding)
    with pytest.raises(ValueError, match=name):
        headers_of(envelope("1", None, headers={name: "forged"}), binding)
    prefix = "ce-" if binding == "rabbitmq" else "cloudEvents:"
    read = envelope_from({name: "forged", **told}, {}, b"", "orders")
    assert read.key == ("forged" if name.startswith(prefix) else None)
    assert read.id == "1"


# ---------------------------------------------------------------- sizes


def test_headers_count_in_what_a_batch_and_a_consumer_may_have() -> None:
    large = envelope("1", payload=b"x" * 10, headers={"h": "y" * 89})
    assert most(10, 150).beside([Queued(1, 1, 0, 0, 0, large)]).bytes == 50
    lanes = LaneQueue()
    lanes.put(Delivery(large, 1, "p"))
    assert lanes.count_bytes("p") == 100
    (one,) = lanes.take(1, 0.0)
    lanes.settle(one)
    assert lanes.count_bytes("p") == 0


# ---------------------------------------------------------------- late ones


@pytest.mark.fault(59)
@pytest.mark.parametrize("make", ["batch_handler", "set_handler"])
async def test_late_messages_of_a_batch_are_told(make: str, world: World) -> None:
    inbox = world.inbox(window="1h")
    late: list[bool] = []

    def take(messages: Any) -> None:
        late.extend(one.late for one in (messages if isinstance(messages, list) else [messages]))

    async def atake(messages: Any) -> None:
        take(messages)

    old = [uuid7(1_000_000, bytes([n]) * 10) for n in range(2)]
    handle, ahandle = getattr(inbox, make)("stock")(take), getattr(inbox, make)("astock")(atake)
    batch = [delivery(old[0], "a"), delivery(old[1], "b"), delivery(3, "c")]
    assert [one.became for one in handle.handle_many(batch)] == ["handled"] * 3
    assert [one.became for one in handle.handle_many(batch)] == ["duplicate"] * 3
    assert (late, world.names().count("message_late")) == ([True, True, False], 2)
    await ahandle.ahandle_many(batch)
    assert world.names().count("message_late") == 4
    await inbox.boundary.aclose()


def test_a_message_is_as_it_was(world: World) -> None:
    """Nothing is escaped that a database keeps."""
    seen: list[InboxMessage[Any]] = []
    handle = world.inbox().handler("stock")(seen.append)
    given = envelope("é\\x00\U0001f600", "ключ")
    assert handle.handle(given).became == "handled"
    assert seen[0].envelope == given
