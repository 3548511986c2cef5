"""Inventory: the stock and the record of the message change in one transaction."""

from __future__ import annotations

import asyncio
from typing import Any

from examples.shop.places import LEASE, WINDOW, consume, make_tables, store
from retrysafe import Boundary
from retrysafe.messaging import Inbox, InboxMessage

make_tables(
    "inventory",
    "stock (sku TEXT PRIMARY KEY, on_hand INTEGER NOT NULL)",
    "reservations (n INTEGER PRIMARY KEY, order_id TEXT, customer TEXT, number INTEGER)",
)
inbox = Inbox(Boundary("inventory", store=store("inventory"), effects="transactional", lease=LEASE, window=WINDOW))

TAKE = """INSERT INTO stock (sku, on_hand) VALUES (:sku, 1000 - :quantity)
ON CONFLICT (sku) DO UPDATE SET on_hand = on_hand - :quantity"""


@inbox.handler("inventory")
def reserve(message: InboxMessage[dict[str, Any]]) -> None:
    """Take the goods of an order from the stock."""
    order = message.data
    message.tx.execute(TAKE, order)
    message.tx.execute(
        "INSERT INTO reservations (order_id, customer, number) VALUES (?, ?, ?)",
        (order["id"], order["customer"], message.envelope.sequence),
    )


if __name__ == "__main__":
    asyncio.run(consume("inventory", reserve))
