"""The three services: what each of them keeps, and what it does about an order. Nothing here knows what goes wrong."""

from __future__ import annotations

import json
import os
import random
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from retrysafe import Boundary
from retrysafe.backends.registry import connect
from retrysafe.messaging import Handler, Inbox, InboxMessage, Outbox
from retrysafe.messaging.brokers.sqlite import declare

LEASE = 1.0
"""Seconds for which a relay or a consumer is believed to be alive without a renewal."""
TOPIC = "orders.placed"
STOCK = 10_000
CUSTOMERS, SKUS, MOST = 12, 5, 4
_ORDERS = """
CREATE TABLE IF NOT EXISTS customers (id TEXT PRIMARY KEY, orders INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS orders (
    id TEXT PRIMARY KEY, customer TEXT NOT NULL, number INTEGER NOT NULL, sku TEXT NOT NULL, quantity INTEGER NOT NULL
);
"""
_INVENTORY = """
CREATE TABLE IF NOT EXISTS stock (sku TEXT PRIMARY KEY, on_hand INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS applied (
    n INTEGER PRIMARY KEY AUTOINCREMENT, order_id TEXT NOT NULL, customer TEXT NOT NULL, number INTEGER NOT NULL
);
"""


class Order(NamedTuple):
    """The order of a customer."""

    id: str
    customer: str
    sku: str
    quantity: int


class Places(NamedTuple):
    """The files of the services."""

    folder: Path

    @property
    def orders(self) -> str:
        """Of the orders and their outbox."""
        return f"sqlite:///{self.folder / 'orders.db'}"

    @property
    def inventory(self) -> str:
        """Of the stock and its inbox."""
        return f"sqlite:///{self.folder / 'inventory.db'}"

    @property
    def mail(self) -> str:
        """Of the inbox of who sends mails."""
        return f"sqlite:///{self.folder / 'mail.db'}"

    @property
    def mailbox(self) -> Path:
        """The folder of mails; it recognises keys."""
        return self.folder / "mails.jsonl"

    @property
    def broker(self) -> Path:
        """The queues."""
        return self.folder / "broker.db"


def intents(seed: int, number: int) -> list[Order]:
    """The orders: a pure function of the seed."""
    chance = random.Random(f"retrysafe shop {seed}")
    return [
        Order(
            f"order-{i:06d}",
            f"customer-{chance.randrange(CUSTOMERS):02d}",
            f"sku-{chance.randrange(SKUS)}",
            chance.randint(1, MOST),
        )
        for i in range(number)
    ]


def furnish(places: Places, orders: Sequence[Order]) -> None:
    """Make databases, queues and the mailbox."""
    for store in (places.orders, places.inventory, places.mail):
        connect(store).close()  # makes the tables of records, outbox and inbox
    with sqlite3.connect(path_of(places.orders)) as file:
        file.executescript(_ORDERS)
        customers = sorted({order.customer for order in orders})
        file.executemany("INSERT INTO customers VALUES (?, 0)", [(customer,) for customer in customers])
    file.close()
    with sqlite3.connect(path_of(places.inventory)) as file:
        file.executescript(_INVENTORY)
        file.executemany("INSERT INTO stock VALUES (?, ?)", [(f"sku-{i}", STOCK) for i in range(SKUS)])
    file.close()
    places.mailbox.touch()
    declare(places.broker, [(TOPIC, "inventory"), (TOPIC, "mail")])


def path_of(store: str) -> str:
    """The path of a SQLite store."""
    return store.removeprefix("sqlite:///")


# ------------------------------------------------------------ orders

Hook = Callable[[], None]


def nothing() -> None:
    """Do nothing: the usual mishap."""


def taking(places: Places, *, written: Hook = nothing) -> tuple[Boundary, Callable[[Order], bool]]:
    """Make the function that takes an order, or finds that it was taken before (False).

    The order, the customer's count and the event are there together, or none of them. The customer's row is locked
    before the event is written, so events of one customer are in the order of the counts.
    """
    orders = Boundary("orders", store=places.orders, effects="transactional")
    outbox = Outbox(places.orders, source="/shop/orders")

    def take(order: Order) -> bool:
        with orders.claim(order.id, payload=list(order)) as claim:
            if claim.replayed:
                return False
            tx: sqlite3.Connection = claim.tx
            counted = "UPDATE customers SET orders = orders + 1 WHERE id = ? RETURNING orders"
            ((number,),) = tx.execute(counted, [order.customer]).fetchall()
            row = [order.id, order.customer, number, order.sku, order.quantity]
            tx.execute("INSERT INTO orders VALUES (?, ?, ?, ?, ?)", row)
            outbox.add(tx, TOPIC, order._asdict(), key=order.customer, sequence=number)
            written()
            claim.result = number
        return True

    return orders, take


# ------------------------------------------------------------ inventory and mail


def reserving(places: Places, *, written: Hook = nothing) -> tuple[Boundary, Handler[..., None]]:
    """Make the handler that takes an order's goods from the stock: with its inbox in one transaction, so once."""
    boundary = Boundary("inventory", store=places.inventory, effects="transactional", lease=LEASE)
    inbox = Inbox(boundary)

    @inbox.handler("inventory")
    def reserve(message: InboxMessage[Any]) -> None:
        order, tx = Order(**message.data), message.tx
        tx.execute("UPDATE stock SET on_hand = on_hand - ? WHERE sku = ?", [order.quantity, order.sku])
        tx.execute(
            "INSERT INTO applied (order_id, customer, number) VALUES (?, ?, ?)",
            [order.id, order.customer, message.envelope.sequence],
        )
        written()

    return boundary, reserve


def mailing(places: Places, *, sent: Hook = nothing) -> tuple[Boundary, Handler[..., None]]:
    """Make the handler that writes to customers: the mailbox is foreign, but recognises the key derived from the
    message's.
    """
    boundary = Boundary("mail", store=places.mail, effects="keyed", lease=LEASE)
    inbox = Inbox(boundary)

    @inbox.handler("mail")
    def confirm(message: InboxMessage[Any]) -> None:
        order = Order(**message.data)
        post(places.mailbox, message.claim.key_for("mailbox"), {"order": order.id, "to": order.customer})
        sent()

    return boundary, confirm


def post(mailbox: Path, key: str, mail: dict[str, Any]) -> None:
    """Put a mail into the mailbox, unless one with this key is in it: what a provider of mails does."""
    import fcntl  # as the whole demo, for POSIX systems

    with mailbox.open("r+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if any(json.loads(line)["key"] == key for line in file):
            return
        file.write(json.dumps({"key": key, **mail}) + "\n")
        file.flush()
        os.fsync(file.fileno())
