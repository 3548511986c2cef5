"""The audit of the pipeline: the intended orders against tables and mailbox, not against what workers claim.

orders: those that were taken. events_lost: orders that the stock or the mailbox has not heard of. applied_twice: orders
that were taken from the stock more than once. out_of_order: orders that were applied after a later one of their
customer. mails_twice: orders with more than one mail. stock_wrong: goods of which the orders leave another number.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

from retrysafe_demo.pipeline.shop import SKUS, STOCK, Order, Places, path_of


class PipelineCount(NamedTuple):
    """The findings of the audit; ``kills`` and ``duplicates`` are the faults that the pipeline had to stand."""

    orders: int
    events_lost: int
    applied_twice: int
    out_of_order: int
    mails_twice: int
    stock_wrong: int
    orders_missing: int
    kills: int = 0
    duplicates: int = 0

    @property
    def kept(self) -> bool:
        """True if nothing was lost, applied twice, in the wrong order, or mailed twice."""
        return not self.breaches()

    def breaches(self) -> dict[str, int]:
        """Return the counts that must be zero, and are not."""
        names = ("events_lost", "applied_twice", "out_of_order", "mails_twice", "stock_wrong", "orders_missing")
        return {name: getattr(self, name) for name in names if getattr(self, name)}


class Applied(NamedTuple):
    """An order as it was taken from the stock, and the how many-th of its customer it was."""

    order: str
    customer: str
    number: int


class Books(NamedTuple):
    """The final records of the services: orders, applications in their order, stock, and the orders of mails."""

    orders: Sequence[Order]
    applied: Sequence[Applied]
    stock: Mapping[str, int]
    mails: Sequence[str]


def read(places: Places) -> Books:
    """Read the tables and the mailbox."""
    with closing(sqlite3.connect(path_of(places.orders))) as file:
        orders = [Order(*row) for row in file.execute("SELECT id, customer, sku, quantity FROM orders")]
    with closing(sqlite3.connect(path_of(places.inventory))) as file:
        rows = file.execute("SELECT order_id, customer, number FROM applied ORDER BY n")
        applied = [Applied(*row) for row in rows]
        stock = dict(file.execute("SELECT sku, on_hand FROM stock").fetchall())
    mails = [json.loads(line)["order"] for line in places.mailbox.read_text(encoding="utf-8").splitlines()]
    return Books(orders, applied, stock, mails)


def audit(intended: Iterable[Order], books: Books) -> PipelineCount:
    """Compare intents and books."""
    applied = Counter(one.order for one in books.applied)
    mails = Counter(books.mails)
    taken = {order.id for order in books.orders}
    left = Counter({f"sku-{i}": STOCK for i in range(SKUS)})
    for order in books.orders:
        left[order.sku] -= order.quantity
    return PipelineCount(
        orders=len(taken),
        events_lost=len([name for name in taken if not applied[name] or not mails[name]]),
        applied_twice=sum(count > 1 for count in applied.values()),
        out_of_order=overtaken(books.applied),
        mails_twice=sum(count > 1 for count in mails.values()),
        stock_wrong=sum(books.stock.get(sku) != number for sku, number in left.items()),
        orders_missing=len(set(intended) - set(books.orders)),
    )


def overtaken(applied: Iterable[Applied]) -> int:
    """Count the orders that were first applied after a later one of the same customer."""
    highest: dict[str, int] = {}
    seen: set[str] = set()
    found = 0
    for one in applied:
        found += one.order not in seen and one.number < highest.get(one.customer, 0)
        seen.add(one.order)
        highest[one.customer] = max(one.number, highest.get(one.customer, 0))
    return found
