"""Orders through outbox, three relays, a broker and three inboxes, while all six are killed. Counted in the tables.

``make pipeline`` is longer.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import closing
from pathlib import Path
from random import Random
from threading import Event

import psycopg
import pytest

from retrysafe.messaging.cdc import Slot
from tests.conftest import absent, require
from tests.faults.servers import LogicalCluster, postgresql_programs
from tests.pipeline import books
from tests.pipeline.books import Audit, audit, database, take_orders
from tests.pipeline.brokers import KILLED, KINDS
from tests.pipeline.running import Run, perform
from tests.proving.effort import effort

ORDERS = 1_500
FULL = {"kafka-cluster": 100_000}
INSERT = "INSERT INTO applied (order_id, customer, number)"


@pytest.mark.one_of("pipelines whose processes are killed", of=3)
@pytest.mark.slow
@pytest.mark.fault(7, 9, 50)
@pytest.mark.parametrize("kind", ["rabbitmq", "redis"])
async def test_every_order_is_applied_once_and_in_order_whoever_is_killed(
    kind: str, tmp_path: Path, chance: Random
) -> None:
    require("postgresql")
    require(kind)
    with database(os.environ["RETRYSAFE_TEST_POSTGRESQL"]) as url:
        run = Run(kind, KINDS[kind].url(tmp_path), url, ORDERS, every=0.3, seed=chance.randrange(100_000))
        found = await perform(run)
    assert found.kept(ORDERS), found
    assert run.left == 0
    assert min(run.kills.values()) > 0


@pytest.mark.one_of("pipelines whose processes are killed", of=3)
@pytest.mark.slow
@pytest.mark.fault(7, 9, 50, 51)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.one_of("pipelines of Kafka") if name.startswith("kafka") else ())
        for name in KILLED
    ],
)
async def test_every_order_is_applied_once_and_in_order_although_the_broker_is_killed_too(
    postgresql: str, name: str, chance: Random
) -> None:
    """On a broker of the test's own, which is killed and started again in the middle."""
    killed = KILLED[name]
    require(killed.service)
    orders = effort(500, FULL.get(name, 20_000))
    server = await asyncio.to_thread(killed.opened)
    try:
        with database(postgresql) as url:
            run = Run(killed.kind, server.url, url, orders, every=effort(0.5, 1.0), seed=chance.randrange(100_000))
            run.server, run.others_go_on = server, killed.others_go_on
            found = await perform(run)
    finally:
        await asyncio.to_thread(server.close)
    assert found.kept(orders), found
    assert run.left == 0
    assert min(run.kills.values()) > 0
    assert run.broker_kills == 1


@pytest.mark.one_of("pipelines whose processes are killed", of=3)
@pytest.mark.fault(7, 9, 50)
@pytest.mark.slow
@pytest.mark.parametrize("relays", [("log_relay",), ("relay", "log_relay", "relay")], ids=["log", "switched"])
async def test_every_order_is_applied_once_and_in_order_when_relays_read_the_log(
    relays: tuple[str, ...], tmp_path: Path, chance: Random
) -> None:
    """On a server whose log tells of rows. Relays are switched over while orders come and all are killed."""
    require("redis")
    programs = postgresql_programs()
    if programs is None:
        absent("there is no PostgreSQL server to start")
    orders = effort(500, 20_000)
    with closing(LogicalCluster(programs)) as server, database(server.url) as url:
        where = KINDS["redis"].url(tmp_path)
        run = Run("redis", where, url, orders, every=effort(0.5, 1.0), seed=chance.randrange(100_000), relays=relays)
        found = await perform(run)
        read = await asyncio.to_thread(Slot(url).drop)
    assert found.kept(orders), found
    assert run.left == 0
    assert min(run.kills.values()) > 0
    assert run.switched == len(relays) - 1
    assert read


@pytest.mark.parametrize(
    ("sql", "breach"),
    [
        ("SELECT 1", {}),
        ("DELETE FROM applied WHERE order_id = 'order-3'", {"lost": 1, "applied": 9}),
        (f"{INSERT} SELECT order_id, customer, number FROM applied LIMIT 1", {"twice": 1, "applied": 11}),
        ("UPDATE applied SET customer = 'one', number = 100 - n", {"out_of_order": 9}),
        ("UPDATE stock SET on_hand = on_hand - 1 WHERE sku = 7", {"stock_wrong": 1}),
        ("DELETE FROM orders WHERE id = 'order-3'", {"orders": 9, "stock_wrong": 1}),
    ],
)
def test_the_audit_finds_what_is_wrong(postgresql: str, sql: str, breach: dict[str, int]) -> None:
    with database(postgresql) as url:
        take_orders(url, "orders", 10, 1, Event())
        with psycopg.connect(url) as connection:
            connection.execute(b"DELETE FROM retrysafe_outbox")
            connection.execute(f"{INSERT} SELECT id, customer, number FROM orders".encode())
            connection.execute(
                b"UPDATE stock SET on_hand = on_hand - coalesce("
                b"(SELECT sum(quantity) FROM orders WHERE orders.sku = stock.sku), 0)"
            )
            connection.execute(sql.encode())
        assert audit(url) == Audit(10, 10, 0, 0, 0, 0, 0, 0)._replace(**breach)


def test_waiting_messages_of_the_outbox_are_counted(postgresql: str) -> None:
    with database(postgresql) as url:
        take_orders(url, "orders", books.AT_ONCE + 1, 1, Event())
        assert audit(url).waiting == books.AT_ONCE + 1
