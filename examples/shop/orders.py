"""Orders: an order and the event that tells of it are written together, or neither is."""

from __future__ import annotations

import random
import sys
from typing import Any

from examples.shop.places import TOPIC, make_tables, store
from retrysafe import Boundary
from retrysafe.messaging import Outbox

make_tables(
    "orders",
    "customers (name TEXT PRIMARY KEY, orders INTEGER NOT NULL)",
    "orders (id TEXT PRIMARY KEY, customer TEXT, number INTEGER, sku TEXT, quantity INTEGER)",
)
orders = Boundary("orders", store=store("orders"), effects="transactional")
outbox = Outbox(store("orders"), source="/shop/orders")

COUNT = """INSERT INTO customers (name, orders) VALUES (:customer, 1)
ON CONFLICT (name) DO UPDATE SET orders = orders + 1 RETURNING orders"""


def place(order: dict[str, Any]) -> int:
    """Place an order once, however often it is asked for; return which one of its customer it is."""
    with orders.claim(order["id"], payload=order) as claim:
        if not claim.replayed:
            [(number,)] = claim.tx.execute(COUNT, order).fetchall()  # locks the customer: the order of events
            row = {**order, "number": number}
            claim.tx.execute("INSERT INTO orders VALUES (:id, :customer, :number, :sku, :quantity)", row)
            outbox.add(claim.tx, TOPIC, order, key=order["customer"], sequence=number)
            claim.result = number
        return int(claim.result)


def main() -> None:
    """A client that asks for so many orders, and begins anew when it was interrupted: with the same ids."""
    chance = random.Random("customers")
    for number in range(int(sys.argv[1])):
        customer, sku = f"customer {chance.randrange(10)}", f"sku {chance.randrange(5)}"
        place({"id": f"order {number}", "customer": customer, "sku": sku, "quantity": chance.randint(1, 4)})


if __name__ == "__main__":
    main()
