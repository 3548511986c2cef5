"""Events of other publishers are read as what they say they are, and other consumers read ours."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator
from typing import Any

import aio_pika
import pytest
from cloudevents.core.bindings import amqp, rabbitmq
from cloudevents.core.v1.event import CloudEvent

from retrysafe import Boundary
from retrysafe.errors import ConfigurationError
from retrysafe.messaging import Envelope, Inbox, Subscription
from retrysafe.messaging.brokers.amqp_binding import Binding, content_of, envelope_from
from retrysafe.messaging.brokers.rabbitmq.consumer import RabbitMQConsumer
from retrysafe.messaging.brokers.rabbitmq.publisher import RabbitMQPublisher
from retrysafe.messaging.brokers.rabbitmq.topology import declare
from retrysafe.messaging.cloudevents import Mode, read_event
from tests.conftest import require
from tests.tables import each_row

EVENT = CloudEvent(
    {"type": "placed", "source": "/other", "id": "ev-1", "subject": "K", "datacontenttype": "application/json"},
    {"a": "ä"},
)


def in_binary_of_amqp() -> aio_pika.Message:
    wire = amqp.to_binary_event(EVENT)
    kind = wire.properties["content-type"]
    return aio_pika.Message(wire.application_data, headers=wire.application_properties, content_type=kind)


def in_binary_of_rabbitmq() -> aio_pika.Message:
    wire = rabbitmq.to_binary_event(EVENT)
    return aio_pika.Message(wire.body, headers=dict(wire.headers), content_type=wire.content_type)


def structured() -> aio_pika.Message:
    wire = rabbitmq.to_structured_event(EVENT)
    return aio_pika.Message(wire.body, headers=dict(wire.headers), content_type=wire.content_type)


@pytest.fixture
async def queue() -> AsyncIterator[str]:
    """A queue of its own; its messages are gone with it."""
    require("rabbitmq")
    name = f"events-{secrets.token_hex(6)}"
    await declare(os.environ["RETRYSAFE_TEST_RABBITMQ"], name, ordered=False)
    yield name
    async with await aio_pika.connect(os.environ["RETRYSAFE_TEST_RABBITMQ"]) as connection:
        await (await connection.channel()).queue_delete(name)


@pytest.mark.slow
@pytest.mark.parametrize("message", [in_binary_of_amqp, in_binary_of_rabbitmq, structured])
async def test_an_event_that_its_publisher_repeats_is_applied_once(queue: str, message: Any, tmp_path: Any) -> None:
    """Each has a message id of its own, which aio-pika makes up."""
    url = os.environ["RETRYSAFE_TEST_RABBITMQ"]
    store = f"sqlite:///{tmp_path / 'inbox.db'}"
    inbox = Inbox(Boundary("others", store=store, window="7d", effects="transactional"))
    seen: list[Any] = []

    @inbox.handler("charge")
    async def charge(found: Any) -> None:
        seen.append((found.envelope.source, found.envelope.id, found.envelope.type, found.envelope.key, found.data))

    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        for _ in range(2):
            await channel.default_exchange.publish(message(), queue)
    consumer = RabbitMQConsumer(url, queue)
    handled = 0
    while handled < 2:
        handled += sum((await Subscription(consumer, charge).arun_once(wait=0.2)).values())
    await consumer.aclose()
    await inbox.boundary.aclose()
    assert seen == [("/other", "ev-1", "placed", "K", {"a": "ä"})]


@pytest.mark.parametrize("mode", ["binary", "structured"])
@pytest.mark.parametrize("binding", ["amqp", "rabbitmq"])
async def test_other_consumers_read_ours(queue: str, binding: Binding, mode: Mode) -> None:
    url = os.environ["RETRYSAFE_TEST_RABBITMQ"]
    sent = Envelope(
        "01-1", queue, "order-7", "orders.placed.v1", "/shop", 10, {"X-Tenant": "a"}, b'{"a":1}', "application/json"
    )
    publisher = RabbitMQPublisher(url, binding=binding, mode=mode)
    await publisher.publish([sent])
    await publisher.aclose()
    async with await aio_pika.connect(url) as connection:
        message = await (await (await connection.channel()).get_queue(queue)).get()
        await message.ack()
    assert (message.content_type == "application/cloudevents+json") == (mode == "structured")
    headers: Any = dict(message.headers)
    if binding == "amqp":
        properties = {"content-type": message.content_type}
        event = amqp.from_amqp_event(amqp.AMQPMessage(properties, headers, message.body))
    else:
        event = rabbitmq.from_rabbitmq_event(rabbitmq.RabbitMQMessage(headers, message.content_type, message.body))
    told = event.get_attributes()
    assert (told["id"], told["source"], told["type"], told["subject"]) == (
        "01-1",
        "/shop",
        "orders.placed.v1",
        "order-7",
    )
    assert event.get_data() == {"a": 1}
    assert envelope_from(message.headers, {"datacontenttype": message.content_type}, message.body, queue) == sent


def test_a_binding_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="binding="):
        RabbitMQPublisher("amqp://localhost/", binding="mqtt")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="mode="):
        RabbitMQPublisher("amqp://localhost/", mode="batched")  # type: ignore[arg-type]


def test_a_header_that_would_be_the_payload_is_refused() -> None:
    sent = Envelope("1", "orders", None, "t", "/s", None, {"data": "x"}, b"{}", "application/json")
    with pytest.raises(ValueError, match="would be read as the payload"):
        content_of(sent, "amqp", "structured")


def of_structured(body: bytes) -> Envelope:
    return read_event({"datacontenttype": "application/cloudevents+json; charset=utf-8", "id": "m-1"}, body, "q")


def test_structured_data_in_base64_and_as_text() -> None:
    start = b'{"specversion":"1.0","id":"1","source":"/s","type":"t","partitionkey":"p",'
    binary = of_structured(start + b'"datacontenttype":"image/png","data_base64":"AAE="}')
    assert (binary.payload, binary.media_type, binary.key) == (b"\x00\x01", "image/png", "p")
    text = of_structured(start + b'"datacontenttype":"text/plain","data":"hello"}')
    assert (text.payload, text.media_type) == (b"hello", "text/plain")
    assert of_structured(start + b'"data":[1]}').payload == b"[1]"
    assert of_structured(start + b'"trial":true,"count":3}').headers == {
        "partitionkey": "p",
        "trial": "true",
        "count": "3",
    }


@each_row("body", [b"", b"[]", b"{", b'{"data_base64":"?"}', b'{"data_base64":1}', b"[" * 200_000])
def test_other_payloads_keep_their_bytes_for_the_handler_to_refuse(body: bytes) -> None:
    found = of_structured(body)
    assert (found.payload, found.id) == (body, "m-1")


def test_an_event_without_an_id_has_none_of_the_messages() -> None:
    assert of_structured(b'{"source":"/s","type":"t"}').id == ""


def test_headers_under_their_own_names_never_take_an_attributes_place() -> None:
    headers = {"id": "forged", "tenant": "a", "ce-id": "1", "x-death": "no", "ce-trial": True, "number": 7}
    found = envelope_from(headers, {}, b"", "q")
    assert (found.id, found.headers) == ("1", {"tenant": "a", "trial": "true"})


@each_row(("number", "kept"), [(2**63 - 1, 2**63 - 1), (-(2**63) + 1, -(2**63) + 1), (2**63, None)])
def test_a_sequence_of_63_bits_is_carried(number: int, kept: int | None) -> None:
    """A sequence that an outbox takes, such as nanoseconds since the epoch, is of use to a consumer."""
    given = {"id": "1", "source": "/shop", "type": "t", "sequence": str(number)}
    assert read_event(given, b"", "t").sequence == kept
