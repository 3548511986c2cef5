"""The processes that are killed: a relay, which asks the table or reads the log, and a consumer with its inbox."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Any

from retrysafe import Boundary
from retrysafe.messaging import Inbox, InboxMessage, Subscription
from retrysafe.messaging.cdc import Slot
from retrysafe.messaging.relay.relay import Relay
from tests.pipeline.brokers import GROUP, broker


def relay(database: str, where: str, topic: str, cdc: Slot | None = None) -> None:
    """Publish what is in the outbox."""

    async def work() -> None:
        publisher = broker(where, topic).publisher()
        working = Relay(database, publisher, cdc=cdc, max_crashes=1000)  # they are innocent
        _on_sigterm(working.stop)
        await working.arun_forever()
        await publisher.aclose()

    asyncio.run(work())


def log_relay(database: str, where: str, topic: str) -> None:
    """Publish what PostgreSQL's log says is new; one relay at a time reads it, and the others ask the table."""
    relay(database, where, topic, Slot(database))


def inventory(database: str, where: str, topic: str) -> None:
    """Take what was ordered from the stock."""
    store = database.replace("postgresql://", "postgresql+asyncpg://")
    boundary = Boundary(
        "inventory", store=store, effects="transactional", window="15d"
    )  # longer than Kafka keeps messages
    inbox = Inbox(boundary)

    @inbox.handler("inventory", max_crashes=1000)  # they are innocent
    async def reserve(message: InboxMessage[Any]) -> None:
        order, tx = message.data, message.tx
        taking = "UPDATE stock SET on_hand = on_hand - $1 WHERE sku = $2"
        await tx.execute(taking, order["quantity"], order["sku"])
        noting = "INSERT INTO applied (order_id, customer, number) VALUES ($1, $2, $3)"
        await tx.execute(noting, order["id"], message.envelope.key, message.envelope.sequence)

    async def work() -> None:
        subscription = Subscription(broker(where, topic).consumer(topic, GROUP), reserve)
        _on_sigterm(subscription.stop)
        await subscription.arun_forever()
        await boundary.aclose()

    asyncio.run(work())


ROLES: dict[str, Callable[[str, str, str], None]] = {
    "relay": relay,
    "log_relay": log_relay,
    "inventory": inventory,
}


def is_ready(role: str, database: str) -> bool:
    """Tell whether processes of a role do what is peculiar to it: one of those that read the log has its slot."""
    return role != "log_relay" or Slot(database).status().active


def begin(role: str, *arguments: str) -> None:
    """Work in a role, in a process of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who watches
    ROLES[role](*arguments)


def _on_sigterm(stop: Callable[[], Any]) -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
