"""Messages are written in the caller's transaction, on every client library: there with the work, or not at all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest

from retrysafe import ConfigurationError
from retrysafe.messaging import Envelope, Message, MessageRefused, Outbox
from retrysafe.protocol.ordering import bucket, lane
from tests.boundary.shops import Shop
from tests.tables import each_row


async def add(shop: Shop, outbox: Outbox, tx: Any, *args: Any, **options: Any) -> Envelope:
    return outbox.add(tx, *args, **options) if shop.sync else await outbox.aadd(tx, *args, **options)


async def add_many(shop: Shop, outbox: Outbox, tx: Any, messages: Sequence[Message]) -> list[Envelope]:
    return outbox.add_many(tx, messages) if shop.sync else await outbox.aadd_many(tx, messages)


def outbox_of(shop: Shop, **options: Any) -> Outbox:
    """Its source is this shop's own: the table may be shared."""
    return Outbox(shop.store, source=f"/{shop.goods}/{id(shop)}", **options)


def written(shop: Shop, outbox: Outbox, column: str = "message_id") -> list[Any]:
    """Return the committed values, in the order of writing."""
    return shop.look(f"SELECT {column} FROM retrysafe_outbox WHERE source = '{outbox.source}' ORDER BY id")


async def test_a_message_is_there_with_the_work_and_not_before(shop: Shop) -> None:
    outbox = outbox_of(shop)
    async with shop.transaction() as tx:
        await shop.insert(tx, "one")
        envelope = await add(shop, outbox, tx, "orders.placed", {"order": "one"}, key="one")
        assert written(shop, outbox) == []
    assert shop.rows() == ["one"]
    assert written(shop, outbox) == [envelope.id]


async def test_a_message_goes_with_the_work_that_is_rolled_back(shop: Shop) -> None:
    outbox = outbox_of(shop)
    with pytest.raises(RuntimeError, match="no"):
        async with shop.transaction() as tx:
            await shop.insert(tx, "one")
            await add(shop, outbox, tx, "orders.placed", {"order": "one"}, key="one")
            raise RuntimeError("no")
    assert (shop.rows(), written(shop, outbox)) == ([], [])


async def test_a_message_goes_with_the_claim_whose_work_fails(shop: Shop) -> None:
    """In the boundary's own transaction, as `claim.tx`."""
    outbox, boundary = outbox_of(shop), shop.boundary(effects="transactional")
    with pytest.raises(RuntimeError, match="no"):
        async with shop.entered(boundary.claim("A")) as claim:
            await add(shop, outbox, claim.tx, "orders.placed", {"order": "A"}, key="A")
            raise RuntimeError("no")
    assert written(shop, outbox) == []
    for _ in range(2):
        async with shop.entered(boundary.claim("A")) as claim:
            if not claim.replayed:
                await add(shop, outbox, claim.tx, "orders.placed", {"order": "A"}, key="A")
                claim.result = "placed"
    assert len(written(shop, outbox)) == 1


async def test_every_attribute_is_written(shop: Shop) -> None:
    outbox = outbox_of(shop)
    async with shop.transaction() as tx:
        envelope = await add(
            shop,
            outbox,
            tx,
            "orders",
            b"\x00\xff'%s",
            key="ключ",
            type="orders.placed.v3",
            sequence=7,
            headers={"tenant": "a'%s :b"},
            media_type="application/avro",
        )
    columns = ("topic", "message_key", "message_type", "sequence", "headers", "payload", "media_type", "lane", "bucket")
    (found,) = zip(*(written(shop, outbox, column) for column in columns), strict=True)
    of = lane("orders", "ключ", envelope.id)
    headers = json.dumps({"tenant": "a'%s :b"}, separators=(",", ":"))
    assert (*found[:5], bytes(found[5]), *found[6:]) == (
        *("orders", "ключ", "orders.placed.v3", 7, headers, b"\x00\xff'%s", "application/avro"),
        *(of, bucket(of)),
    )


async def test_a_message_without_a_key_and_the_clock_of_the_store(shop: Shop) -> None:
    outbox = outbox_of(shop)
    async with shop.transaction() as tx:
        await add(shop, outbox, tx, "mails", "hello")
    assert written(shop, outbox, "message_key") == [None]
    (created,) = written(shop, outbox, "created")
    assert abs(created - datetime.now(UTC).timestamp() * 1e6) < 60e6
    assert [bytes(body) for body in written(shop, outbox, "payload")] == [b'"hello"']


async def test_many_messages_keep_their_order(shop: Shop) -> None:
    """More than one statement takes."""
    outbox = outbox_of(shop)
    messages = [Message("orders", {"number": number}, key=str(number % 7)) for number in range(450)]
    async with shop.transaction() as tx:
        envelopes = await add_many(shop, outbox, tx, messages)
    assert written(shop, outbox) == [envelope.id for envelope in envelopes]
    assert len({envelope.id for envelope in envelopes}) == 450


async def test_none_of_many_is_written_if_one_is_refused(shop: Shop) -> None:
    outbox = outbox_of(shop)
    async with shop.transaction() as tx:
        with pytest.raises(MessageRefused, match="a set is not JSON"):
            await add_many(shop, outbox, tx, [Message("orders", {"good": 1}), Message("orders", {1, 2})])
        await shop.insert(tx, "one")
        await add_many(shop, outbox, tx, [])
    assert (shop.rows(), written(shop, outbox)) == (["one"], [])


async def test_the_wrong_colour_is_told(shop: Shop) -> None:
    """A connection of sqlite3 serves both."""
    outbox = outbox_of(shop)
    async with shop.transaction() as tx:
        serves_both = type(tx).__module__ == "sqlite3"
        with nullcontext() if serves_both else pytest.raises(ConfigurationError, match="tx= belongs to"):
            if shop.sync:
                await outbox.aadd(tx, "orders", {})
            else:
                outbox.add(tx, "orders", {})
    assert len(written(shop, outbox)) == serves_both


# ---------------------------------------------------------------- payloads


class Colour(Enum):
    RED = "red"


@dataclass
class Order:
    number: UUID
    total: Decimal
    placed: datetime
    colour: Colour


@pytest.fixture
def box(tmp_path: Any) -> Outbox:
    return Outbox(f"sqlite:///{tmp_path}/box.db", source="/shop")


def envelope_of(box: Outbox, payload: Any, **options: Any) -> Envelope:
    return box._envelope(Message("orders", payload, **options))


def test_values_of_json_are_json(box: Outbox) -> None:
    order = Order(UUID(int=1), Decimal("12.50"), datetime(2026, 1, 2, 3, 4, tzinfo=UTC), Colour.RED)
    envelope = envelope_of(box, order)
    assert json.loads(envelope.payload) == {
        "number": "00000000-0000-0000-0000-000000000001",
        "total": "12.50",
        "placed": "2026-01-02T03:04:00+00:00",
        "colour": "red",
    }
    assert (envelope.media_type, envelope.type) == ("application/json", "orders.v1")


def test_a_model_of_pydantic_is_json(box: Outbox) -> None:
    import pydantic

    model = pydantic.create_model("Placed", number=(UUID, ...))(number=UUID(int=1))
    assert json.loads(envelope_of(box, model).payload) == {"number": str(UUID(int=1))}


@each_row("payload", [{1, 2}, object(), float("nan"), Decimal("NaN"), {"a": Order}])
def test_values_without_json_are_refused(payload: Any, box: Outbox) -> None:
    with pytest.raises(MessageRefused, match="payload= is a") as caught:
        envelope_of(box, payload)
    assert caught.value.effect_happened == "no"


def test_large_messages_are_refused(tmp_path: Any) -> None:
    small = Outbox(f"sqlite:///{tmp_path}/box.db", source="/shop", largest=10)
    assert envelope_of(small, b"0123456789").payload == b"0123456789"
    with pytest.raises(MessageRefused, match="11 bytes; at most 10"):
        envelope_of(small, b"0123456789A")


@each_row(
    ("options", "told"),
    [
        ({"topic": ""}, "topic= is empty"),
        ({"topic": "a\nb"}, "control character"),
        ({"topic": "a" * 256}, "255"),
        ({"type": "a\x00"}, "control character"),
        ({"headers": {"a": 1}}, "text to text"),
        ({"topic": "é" * 128}, "255 bytes"),
        ({"type": "é" * 128}, "255 bytes"),
        ({"media_type": "a\r\nX: y"}, "control character"),
        ({"media_type": "x" * 256}, "255 bytes"),
        ({"sequence": 1 << 63}, "63 bits"),
        ({"sequence": True}, "whole number"),
        ({"sequence": 1.5}, "whole number"),
        ({"headers": {"": "a"}}, "ASCII letters"),
        *(({"headers": {name: "a"}}, "ASCII letters") for name in ("a b", "a:b", "a(b)", ".a", "a.", "a..b", "ä")),
        ({"headers": {"x" * 101: "a"}}, "ASCII letters"),
        ({"headers": {"Subject": "another key"}}, "attribute of every message"),
        ({"headers": {"a": "\ud800"}}, "control character"),
        ({"headers": {"a": "b\r\n"}}, "control character"),
        ({"headers": {"a": "é" * 6000}}, "at most 32768"),
    ],
)
def test_attributes_that_cannot_be_sent_are_refused(options: dict[str, Any], told: str, box: Outbox) -> None:
    with pytest.raises(MessageRefused, match=told):
        box._envelope(Message(**{"topic": "orders", "payload": {}, **options}))


def test_a_type_that_is_not_declared_is_refused(tmp_path: Any) -> None:
    box = Outbox(
        f"sqlite:///{tmp_path}/box.db", source="/shop", types={"orders.v1": "An order was placed.", "paid.v1": ""}
    )
    assert envelope_of(box, {}).type == "orders.v1"
    assert envelope_of(box, {}, type="paid.v1").type == "paid.v1"
    with pytest.raises(MessageRefused, match=r"type='payed.v1' is none of the types= .*orders.v1, paid.v1"):
        envelope_of(box, {}, type="payed.v1")


@each_row(
    ("types", "told"),
    [
        ("orders.v1", "give a list"),
        ([], "is empty"),
        ([""], "is empty"),
        (["a\x00"], "control"),
        ({"a": None}, "sentence"),
        (5, "not iterable"),
        ([["a"]], "unhashable"),
    ],
)
def test_types_that_cannot_be_declared(types: Any, told: str, tmp_path: Any) -> None:
    with pytest.raises(ConfigurationError, match=told):
        Outbox(f"sqlite:///{tmp_path}/box.db", source="/shop", types=types)


def test_an_outbox_needs_a_database_and_a_source() -> None:
    with pytest.raises(ConfigurationError, match="memory store has no place for messages"):
        Outbox("memory://", source="/shop")
    with pytest.raises(ConfigurationError, match="source= is empty"):
        Outbox("sqlite:///x.db", source="")


def test_the_trace_is_kept_as_it_was_when_the_message_was_written(box: Outbox) -> None:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    assert "traceparent" not in envelope_of(box, {}).headers
    with TracerProvider().get_tracer("shop").start_as_current_span("place") as span:
        context = span.get_span_context()
        headers = envelope_of(box, {}, headers={"tenant": "a"}).headers
    assert headers["traceparent"].split("-")[1:3] == [f"{context.trace_id:032x}", f"{context.span_id:016x}"]
    assert headers["tenant"] == "a"
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_identifiers_sort_by_their_time_and_are_uuids(box: Outbox) -> None:
    from retrysafe.protocol.messages import uuid7

    made = [uuid7(1_700_000_000_000 + step, bytes([255 - step] * 10)) for step in range(20)]
    assert made == sorted(made)
    assert {(UUID(one).version, UUID(one).variant) for one in made} == {(7, "specified in RFC 4122")}
    assert uuid7(0x017F22E279B0, bytes.fromhex("0ccc18c4dc0c0c07398f")) != uuid7(0x017F22E279B0, bytes(10))
    assert UUID(made[0]).int >> 80 == 1_700_000_000_000


def test_lanes_never_change() -> None:
    """They are in the rows of every outbox."""
    assert lane("orders", "A", "1") == lane("orders", "A", "2") != lane("orders", "B", "1")
    assert lane("orders", None, "1") != lane("orders", None, "2")
    assert lane("a", "bc", "") != lane("ab", "c", "")
    assert (lane("orders", "A", "1"), bucket(lane("orders", "A", "1"))) == (-1140523892889312291, 29)
