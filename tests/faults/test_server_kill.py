"""The PostgreSQL server is killed in mid-run and started again: nothing is doubled, and the words are right."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import psycopg
import pytest

import retrysafe.backends.sql.drivers.pool as pools
from retrysafe import OutcomeUnknown, StoreUnavailable, current
from retrysafe.backends.registry import connect
from tests.faults.conftest import Making
from tests.faults.helpers import (
    DEADLINE,
    NOT_NOW,
    Bank,
    Told,
    again,
    driven,
    records_of,
    rows_of,
    seeded,
    unique,
    until,
)
from tests.faults.servers import Cluster

KEYS = [f"order-{i}" for i in range(40)]


@pytest.fixture
def server(own_server: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A server to kill, running and migrated; a pool does not wait ten seconds for it."""
    monkeypatch.setattr(pools, "CHECKOUT", 0.5)
    backend = connect(own_server.url)
    backend.migrate()
    backend.close()
    return own_server


@pytest.fixture
def shop(server: Cluster) -> str:
    """A business table on that server."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS shop (key text NOT NULL, receipt text NOT NULL)")
        connection.execute("TRUNCATE shop")
    return "shop"


def _refuses(operation: Callable[[], Any]) -> None:
    """While the server is down: unavailable, and the same key may be asked again."""
    with pytest.raises(StoreUnavailable) as caught:
        operation()
    assert caught.value.retry_same_key
    assert not caught.value.safe_new_key
    assert "Retry with the same key once the store is back" in str(caught.value)


@pytest.mark.slow
@pytest.mark.fault(28)
def test_transactions_over_kills_of_the_server(server: Cluster, shop: str, make: Making) -> None:
    boundary, chance = make(server.url, effects="transactional"), seeded("server kill")
    ran: list[str] = []

    @boundary.once(key="key")
    def charge(key: str) -> str:
        ran.append(key)
        receipt = unique("receipt")
        current().tx.execute(f"INSERT INTO {shop} VALUES ('{key}', '{receipt}')")
        return receipt

    answers: dict[str, str] = {}
    stop = threading.Event()

    def worker(keys: list[str]) -> None:
        while keys:
            key = keys.pop(0)
            try:
                answers[key] = charge(key)
            except (*NOT_NOW, psycopg.Error):
                keys.append(key)
                if stop.is_set():
                    return

    workers = [threading.Thread(target=worker, args=(KEYS[i::2],)) for i in range(2)]
    for one in workers:
        one.start()

    def reached(count: int) -> bool:
        return len(ran) >= count or not any(one.is_alive() for one in workers)

    for kills in range(1, 4):
        reach = len(ran) + chance.randrange(3, 8)
        until(partial(reached, reach))
        server.kill()
        if kills == 1:
            before = len(ran)
            _refuses(lambda: charge("while it is down"))
            assert "while it is down" not in ran[before:]
        server.start()
    for one in workers:
        one.join(DEADLINE)
    stop.set()
    rows = dict(rows_of(server.url, shop))
    assert len(rows_of(server.url, shop)) == len(rows) == len(KEYS)
    assert rows == answers
    assert {key: again(partial(charge, key)) for key in KEYS} == answers


@pytest.mark.slow
@pytest.mark.parametrize("effects", ["keyed", "external"])
def test_a_store_that_is_gone_at_completion_returns_the_value(
    effects: str, server: Cluster, make: Making, told: Told, bank: Bank
) -> None:
    boundary = make(server.url, effects=effects, lease="2s")

    @boundary.once(key="key")
    def charge(key: str) -> str:
        receipt = bank.charge(current().key_for("bank"))
        if len(bank.requests) == sum(bank.requests.values()) == 1:
            server.kill()
        return receipt

    receipt = charge("k")
    assert [receipt] == list(bank.charges.values())
    assert told.names["settle_deferred"] == 1
    told.wait_for("result_not_stored")
    assert "completed" not in told.names
    _refuses(lambda: charge("k"))
    server.start()
    if effects == "keyed":
        assert again(lambda: charge("k")) == receipt  # taken over after the lease, under the same derived key
        assert told.names["takeover"] == 1
        assert len(bank.charges) == 1
        return

    def doubted() -> bool:
        try:
            charge("k")
        except OutcomeUnknown:
            return True
        except NOT_NOW:
            return False
        raise AssertionError("an effect in doubt was run again")

    until(doubted)
    assert list(bank.requests.values()) == [1]
    assert ("unknown", 1) in records_of(server.url, boundary.name)


@pytest.mark.slow
@pytest.mark.fault(28)
@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_async_transactions_over_a_kill(driver: str, server: Cluster, shop: str, make: Making) -> None:
    boundary = make(driven(server.url, driver), effects="transactional")
    inside, killed = asyncio.Event(), asyncio.Event()

    async def charge() -> tuple[bool, str]:
        async with boundary.claim("key") as claim:
            if not claim.replayed:
                await claim.tx.execute(f"INSERT INTO {shop} VALUES ('key', 'receipt')")
                inside.set()
                await killed.wait()
                claim.result = "receipt"
        return claim.replayed, claim.result

    task = asyncio.create_task(charge())
    await inside.wait()
    await asyncio.to_thread(server.kill)
    killed.set()
    with pytest.raises(StoreUnavailable):
        await task
    with pytest.raises(StoreUnavailable):
        await charge()
    await asyncio.to_thread(server.start)
    assert rows_of(server.url, shop) == []
    for replayed in (False, True):
        while True:
            try:
                assert await charge() == (replayed, "receipt")
                break
            except StoreUnavailable:  # a dead connection of the pool
                await asyncio.sleep(0.002)
    assert rows_of(server.url, shop) == [("key", "receipt")]
    await boundary.aclose()
