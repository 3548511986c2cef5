"""Relays publish what is due, in order: once while nothing fails, again under the same id when something does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest

from retrysafe.messaging import Message, Outbox
from retrysafe.messaging.brokers.memory.publisher import AsyncMemoryPublisher, MemoryPublisher
from retrysafe.messaging.relay.relay import Relay, Relayed
from retrysafe.protocol.messages import Envelope, PublishResult, PublishStatus
from tests.boundary.shops import Shop

ACKED = PublishResult(PublishStatus.ACKED)


class Broker:
    """Takes what ``judge`` says, in either colour."""

    def __init__(self, judge: Callable[[Envelope], PublishResult] = lambda envelope: ACKED) -> None:
        self.judge = judge
        self.offered: list[Envelope] = []
        self.took: list[Envelope] = []
        self.waves: list[int] = []

    def take(self, envelopes: Sequence[Envelope]) -> list[PublishResult]:
        self.waves.append(len(envelopes))
        self.offered += envelopes
        published = [self.judge(envelope) for envelope in envelopes]
        self.took += [one for one, said in zip(envelopes, published, strict=True) if said.status == "acked"]
        return published


class SyncBroker(Broker, MemoryPublisher):
    def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
        return self.take(envelopes)


class AsyncBroker(Broker, AsyncMemoryPublisher):
    async def publish(self, envelopes: Sequence[Envelope], /) -> Sequence[PublishResult]:
        return self.take(envelopes)


def broker_for(shop: Shop, judge: Callable[[Envelope], PublishResult] = lambda envelope: ACKED) -> Any:
    return SyncBroker(judge) if shop.sync else AsyncBroker(judge)


async def relayed(shop: Shop, broker: Broker, **options: Any) -> Relayed:
    options = {"backoff_base": "30d", "backoff_max": "30d", **options}
    relay = Relay(shop.store, broker, observers=(), **options)  # type: ignore[arg-type]
    return relay.run_once() if shop.sync else await relay.arun_once()


@pytest.fixture(autouse=True)
async def empty(shop: Shop) -> None:
    """A server is shared with tests before."""
    Outbox(shop.store, source="/shop")  # makes the tables of a SQLite file
    async with shop.transaction() as tx:
        for table in ("", "_attempts", "_dead", "_published", "_paused", "_relays"):
            answer = shop.execute(tx, f"DELETE FROM retrysafe_outbox{table}")
            if hasattr(answer, "__await__"):
                await answer


async def write(shop: Shop, messages: Sequence[Message]) -> list[str]:
    outbox = Outbox(shop.store, source="/shop")
    async with shop.transaction() as tx:
        written = outbox.add_many(tx, messages) if shop.sync else await outbox.aadd_many(tx, messages)
    return [one.id for one in written]


def left_in(shop: Shop, table: str = "") -> int:
    return len(shop.look(f"SELECT message_id FROM retrysafe_outbox{table}"))


@pytest.mark.slow
@pytest.mark.parametrize("hold", [None, "lease"])
async def test_everything_leaves_once_and_in_order(hold: str | None, shop: Shop) -> None:
    chance = Random(7)
    messages = [Message("orders", {"number": n}, key=str(chance.randrange(9))) for n in range(300)]
    ids = await write(shop, [*messages, Message("mails", "hello")])
    broker = broker_for(shop)
    assert await relayed(shop, broker, hold=hold, batch=50) == Relayed(301, 0, 0)
    assert sorted(one.id for one in broker.took) == sorted(ids)
    for key in {message.key for message in messages}:
        of_key = [one.id for one in broker.took if one.key == key and one.topic == "orders"]
        assert of_key == [id_ for id_, message in zip(ids, messages, strict=False) if message.key == key]
    assert (left_in(shop), shop.look("SELECT error FROM retrysafe_outbox_attempts")) == (0, [])


@pytest.mark.slow
@pytest.mark.parametrize("hold", [None, "lease"])
async def test_a_message_waits_and_its_lane_with_it(hold: str | None, shop: Shop) -> None:
    ids = await write(shop, [Message("orders", n, key=key) for key in "AB" for n in range(3)])

    def judge(envelope: Envelope) -> PublishResult:
        return PublishResult(PublishStatus.RETRYABLE, "busy") if envelope.id == ids[1] else ACKED

    broker = broker_for(shop, judge)
    assert await relayed(shop, broker, hold=hold) == Relayed(4, 1, 0)
    assert {one.id for one in broker.took} == {ids[0], *ids[3:]}
    assert ids[2] not in {one.id for one in broker.offered}, "it must not overtake"
    (trouble,) = shop.look("SELECT error FROM retrysafe_outbox_attempts")
    assert trouble == "busy"
    await relayed(shop, broker, hold=hold)
    assert len(broker.offered) == 5, "it is too early"


async def test_rejected_messages_are_dead_letters_and_their_lane_goes_on(shop: Shop) -> None:
    ids = await write(shop, [Message("orders", n, key="A") for n in range(3)])

    def judge(envelope: Envelope) -> PublishResult:
        return PublishResult(PublishStatus.REJECTED, "no such queue") if envelope.id == ids[0] else ACKED

    broker = broker_for(shop, judge)
    assert await relayed(shop, broker) == Relayed(2, 0, 1)
    assert [one.id for one in broker.took] == ids[1:]
    assert (left_in(shop), left_in(shop, "_dead")) == (0, 1)
    (error,) = shop.look(f"SELECT error FROM retrysafe_outbox_dead WHERE message_id = '{ids[0]}'")
    assert error == "no such queue"


async def test_a_lane_can_be_parked_instead(shop: Shop) -> None:
    ids = await write(shop, [Message("orders", n, key="A") for n in range(2)])
    broker = broker_for(shop, lambda envelope: PublishResult(PublishStatus.REJECTED, "no"))
    assert await relayed(shop, broker, on_dead="park") == Relayed(0, 1, 0)
    broker.judge = lambda envelope: ACKED
    assert await relayed(shop, broker, on_dead="park") == Relayed(0, 0, 0)
    assert left_in(shop) == 2
    assert shop.look("SELECT message_id FROM retrysafe_outbox ORDER BY id") == ids


async def test_a_publisher_that_fails_leaves_everything_where_it_is(shop: Shop) -> None:
    await write(shop, [Message("orders", n, key=str(n)) for n in range(4)])

    def judge(envelope: Envelope) -> PublishResult:
        raise OSError("connection reset")

    assert (await relayed(shop, broker_for(shop, judge))).delayed >= 1, "after one that failed no other is tried"
    assert left_in(shop) == 4
    assert set(shop.look("SELECT error FROM retrysafe_outbox_attempts")) == {"OSError: connection reset"}


async def test_published_messages_can_be_kept(shop: Shop) -> None:
    (id_,) = await write(shop, [Message("orders", {"n": 1}, key="A")])
    await relayed(shop, broker_for(shop), keep_published=True)
    assert left_in(shop) == 0
    assert shop.look(f"SELECT topic FROM retrysafe_outbox_published WHERE message_id = '{id_}'") == ["orders"]


async def test_messages_arrive_as_they_were_written(shop: Shop) -> None:
    outbox = Outbox(shop.store, source="/shop")
    options: dict[str, Any] = {"key": "ключ", "type": "placed.v2", "sequence": 3, "headers": {"a": "б"}}
    async with shop.transaction() as tx:
        added = (
            outbox.add(tx, "o", b"\x00\xff", **options)
            if shop.sync
            else await outbox.aadd(tx, "o", b"\x00\xff", **options)
        )
    broker = broker_for(shop)
    await relayed(shop, broker)
    assert broker.took == [added]
