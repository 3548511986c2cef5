"""The contents of the database: orders with their events, and their effects; and the audit of both."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from threading import Event
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg

from retrysafe.backends.registry import connect
from retrysafe.messaging import Message, Outbox

CUSTOMERS, SKUS, STOCK = 2_000, 1_000, 1_000_000
AHEAD = 2_000
"""The number of orders that may be under way."""
AT_ONCE = 50
"""Orders of one transaction."""
_TABLES = """
CREATE TABLE customers (id text PRIMARY KEY, orders integer NOT NULL);
CREATE TABLE orders (id text PRIMARY KEY, customer text NOT NULL, number integer NOT NULL, sku integer NOT NULL,
    quantity integer NOT NULL);
CREATE TABLE stock (sku integer PRIMARY KEY, on_hand integer NOT NULL);
CREATE TABLE applied (n bigint GENERATED ALWAYS AS IDENTITY, order_id text NOT NULL, customer text NOT NULL,
    number integer NOT NULL);
"""
"""``applied`` has no key: whatever is applied twice is in it twice."""


@contextmanager
def database(server: str) -> Iterator[str]:
    """The URL of a new database with all tables; dropped in the end."""
    name = f"pipeline_{uuid4().hex}"
    url = urlsplit(server)._replace(path=f"/{name}").geturl()
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}".encode())
        try:
            backend = connect(url)
            backend.migrate()
            backend.close()
            with psycopg.connect(url) as connection:
                connection.execute(_TABLES)
                made = "INSERT INTO customers SELECT 'customer-' || i, 0 FROM generate_series(0, %s) AS i"
                connection.execute(made, [CUSTOMERS - 1])
                connection.execute("INSERT INTO stock SELECT i, %s FROM generate_series(0, %s) AS i", [STOCK, SKUS - 1])
            yield url
        finally:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def take_orders(
    url: str, topic: str, orders: int, seed: int, stop: Event, allowed: Callable[[], float] = lambda: inf
) -> None:
    """Take so many orders, each with its event, in one transaction with it; fewer if it is to stop.

    Waits while as many are taken as are ``allowed``.

    The customer's row is locked before the event is written, so events of one customer are in the order of the counts.
    """
    chance, outbox = random.Random(f"pipeline {seed}"), Outbox(url, source="/shop/orders")
    counting = "UPDATE customers SET orders = orders + 1 WHERE id = %s RETURNING orders"
    with psycopg.connect(url) as connection:
        for start in range(0, orders, AT_ONCE):
            while start >= allowed() and not stop.is_set():
                stop.wait(0.05)
            _wait_for_those_before(connection, start, stop)
            if stop.is_set():
                return
            messages = []
            with connection.transaction():
                for i in range(start, min(start + AT_ONCE, orders)):
                    customer = f"customer-{chance.randrange(CUSTOMERS)}"
                    ((number,),) = connection.execute(counting, [customer]).fetchall()
                    order = {"id": f"order-{i}", "sku": chance.randrange(SKUS), "quantity": chance.randint(1, 4)}
                    row = [order["id"], customer, number, order["sku"], order["quantity"]]
                    connection.execute("INSERT INTO orders VALUES (%s, %s, %s, %s, %s)", row)
                    messages.append(Message(topic, order, key=customer, sequence=number))
                outbox.add_many(connection, messages)


def _wait_for_those_before(connection: psycopg.Connection[Any], taken: int, stop: Event) -> None:
    """Customers come no faster than orders are applied, so that relays and broker have work to the end."""
    while taken > AHEAD and not stop.is_set():
        row = connection.execute("SELECT coalesce(max(n), 0) FROM applied").fetchone()
        connection.commit()
        if row is None or row[0] > taken - AHEAD:
            return
        stop.wait(0.05)


class Audit(NamedTuple):
    """Orders that were taken, and how they were applied."""

    orders: int
    applied: int
    lost: int
    twice: int
    out_of_order: int
    stock_wrong: int
    waiting: int
    dead: int

    def kept(self, orders: int) -> bool:
        """Tell whether everything was applied once, in order, and nothing is left."""
        return self == Audit(orders, orders, 0, 0, 0, 0, 0, 0)


_LOST = "SELECT count(*) FROM orders AS o WHERE NOT EXISTS (SELECT 1 FROM applied AS a WHERE a.order_id = o.id)"
_TWICE = "SELECT count(*) FROM (SELECT 1 FROM applied GROUP BY order_id HAVING count(*) > 1) AS t"
_OUT_OF_ORDER = """
SELECT count(*) FROM (
    SELECT number, max(number) OVER (PARTITION BY customer ORDER BY n ROWS UNBOUNDED PRECEDING) AS highest FROM applied
) AS t WHERE number < highest
"""
_STOCK_WRONG = f"""
SELECT count(*) FROM stock AS s
WHERE s.on_hand <> {STOCK} - coalesce((SELECT sum(o.quantity) FROM orders AS o WHERE o.sku = s.sku), 0)
"""


def audit(url: str) -> Audit:
    """Count, in the tables alone."""
    with psycopg.connect(url) as connection:

        def count(sql: str) -> int:
            row = connection.execute(sql.encode()).fetchone()
            assert row is not None
            return int(row[0])

        return Audit(
            orders=count("SELECT count(*) FROM orders"),
            applied=count("SELECT count(*) FROM applied"),
            lost=count(_LOST),
            twice=count(_TWICE),
            out_of_order=count(_OUT_OF_ORDER),
            stock_wrong=count(_STOCK_WRONG),
            waiting=count("SELECT count(*) FROM retrysafe_outbox"),
            dead=sum(count(f"SELECT count(*) FROM {table}") for table in DEAD),
        )


DEAD = ("retrysafe_outbox_dead", "retrysafe_inbox_dead")


def progress(url: str) -> tuple[int, int]:
    """Count the applied orders, and the events that wait in the outbox."""
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT (SELECT count(*) FROM applied), (SELECT count(*) FROM retrysafe_outbox)")
        applied, waiting = row.fetchall()[0]
        return int(applied), int(waiting)


_LEFT = """
SELECT coalesce(a.error, ''), ceil((max(a.not_before) - extract(epoch FROM clock_timestamp()) * 1000000) / 1000000),
    count(*)
FROM retrysafe_outbox AS o LEFT JOIN retrysafe_outbox_attempts AS a ON a.id = o.id GROUP BY 1 ORDER BY 3 DESC LIMIT 10
"""


def left(url: str) -> list[tuple[Any, ...]]:
    """Count what is in the outbox by its error, with the most seconds that any of it rests for."""
    with psycopg.connect(url) as connection:
        return connection.execute(_LEFT.encode()).fetchall()
