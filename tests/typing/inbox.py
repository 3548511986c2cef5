"""The inbox as a user writes it: what type checkers make of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, assert_type

from retrysafe import Boundary
from retrysafe.messaging import Envelope, HandleResult, Inbox, InboxMessage, MessageOutcome, Subscription
from retrysafe.messaging.brokers.base import Consumer
from retrysafe.messaging.brokers.memory.broker import MemoryBroker


@dataclass
class Order:
    sku: str


def order_of(document: Any) -> Order:
    return Order(document["sku"])


inbox = Inbox(Boundary("stock", store="sqlite:///stock.db", effects="transactional"))


@inbox.handler("inventory", max_attempts=3, backoff_base="1s", parse=order_of)
def reserve(message: InboxMessage[Order]) -> int:
    assert_type(message.data, Order)
    assert_type(inbox.apply_if_newer(message.tx, message.data.sku, 1, strict=True), bool)
    return len(message.data.sku)


@inbox.batch_handler("mail", max_batch=50)
async def mail(message: InboxMessage[Order]) -> None:
    assert_type(await inbox.aapply_if_newer(message.tx, message.data.sku, 1), bool)


@inbox.set_handler("stock")
def many(messages: list[InboxMessage[Any]]) -> None:
    for message in messages:
        assert_type(message.envelope, Envelope)


def one(envelope: Envelope, message: InboxMessage[Order]) -> None:
    handled = reserve.handle(envelope, redelivered=False)
    assert_type(handled, HandleResult)
    assert_type(handled.became, MessageOutcome)
    assert_type(handled.again, float | None)
    assert_type(reserve(message), int)


async def run(consumer: Consumer) -> None:
    consumer = MemoryBroker().consumer("orders")
    async with Subscription(consumer, mail, lanes=4) as subscription:
        subscription.stop()
    await Subscription(consumer, many).arun_once()
