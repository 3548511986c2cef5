"""Quotas: a scope that claims too many new keys is told so, and nobody else is."""

from __future__ import annotations

import os
import secrets
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import psycopg
import pytest
from pymongo import MongoClient

from retrysafe import Boundary, ConfigurationError, Event, InProgress, KeyReused, Quota, QuotaExceeded, wait
from retrysafe.backends import migrations
from retrysafe.backends.counted_keys import find
from retrysafe.backends.driver import run
from retrysafe.backends.registry import connect
from retrysafe.protocol.procedures import page, sweep
from retrysafe.protocol.quotas import holder
from retrysafe.protocol.records import Filter
from tests.boundary.shops import Shop
from tests.conftest import require
from tests.stores.ageing import mysql_connection
from tests.stores.harnesses.dynamodb import dynamodb_url
from tests.stores.harnesses.mongodb import mongodb_url
from tests.stores.harnesses.sql import postgresql_url
from tests.tables import each_row

TWO = Quota(rate="2/1h")


async def use(shop: Shop, made: Boundary, key: str, tx: Any = None) -> bool:
    """Claim a key in the shop's colour; whether that was a replay."""
    async with shop.entered(made.claim(key, payload="p", tx=tx)) as claim:
        if not claim.replayed:
            claim.result = key
    return claim.replayed


# ---------------------------------------------------------------- in every store, transaction and colour


async def test_a_lease(shop: Shop) -> None:
    made = shop.boundary(quota=TWO)
    for key in ("a", "b"):
        assert not await use(shop, made, key)
    with pytest.raises(QuotaExceeded) as refused:
        await use(shop, made, "c")
    assert (refused.value.limit, refused.value.effect_happened) == ("rate", "no")
    assert 3590 < refused.value.retry_after <= 3600
    assert await use(shop, made, "a")
    assert len(shop.state(made)) == 2


async def test_a_transaction_of_our_own(shop: Shop) -> None:
    made = shop.boundary(quota=Quota(outstanding=2), effects="transactional")
    for key in ("a", "b"):
        assert not await use(shop, made, key)
    with pytest.raises(QuotaExceeded) as refused:
        await use(shop, made, "c")
    assert refused.value.limit == "outstanding"
    assert await use(shop, made, "a")
    assert len(shop.state(made)) == 2


async def test_a_transaction_of_the_callers_can_go_on(shop: Shop) -> None:
    made = shop.boundary(quota=TWO, effects="transactional")
    async with shop.transaction() as tx:
        for key in ("a", "b"):
            assert not await use(shop, made, key, tx)
        with pytest.raises(QuotaExceeded):
            await use(shop, made, "c", tx)
        assert await use(shop, made, "a", tx)
        await shop.insert(tx, "done")
    assert shop.rows() == ["done"]
    assert shop.state(made) == ["completed", "completed"]
    async with shop.transaction() as tx:
        with pytest.raises(QuotaExceeded):
            await use(shop, made, "c", tx)
        assert await use(shop, made, "b", tx)


class Undone(Exception):
    """Rolls a transaction back."""


async def test_claims_rolled_back_are_not_counted(shop: Shop) -> None:
    made = shop.boundary(quota=Quota(rate="1/1h", outstanding=1), effects="transactional")
    for key in ("a", "b"):
        with suppress(Undone):
            async with shop.transaction() as tx:
                await use(shop, made, key, tx)
                raise Undone
    assert not await use(shop, made, "c")


async def test_released_keys_are_counted_once(shop: Shop) -> None:
    made = shop.boundary(quota=TWO)
    for _ in range(5):
        with pytest.raises(ZeroDivisionError):
            async with shop.entered(made.claim("a")):
                1 / 0  # noqa: B018
    assert not await use(shop, made, "b")
    assert not await use(shop, made, "a")
    with pytest.raises(QuotaExceeded):
        await use(shop, made, "c")


# ---------------------------------------------------------------- who is counted


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def boundary(file: Path, **terms: Any) -> Boundary:
    return Boundary(terms.pop("name", "b"), store=f"sqlite:///{file}", **{"observers": (), "quota": TWO, **terms})


def claim(made: Boundary, key: str, **named: Any) -> bool:
    with made.claim(key, **named) as entered:
        if not entered.replayed:
            entered.result = 1
    return entered.replayed


def fill(made: Boundary, count: int, **named: Any) -> int:
    """Claim new keys until one is refused; how many were not."""
    for number in range(count):
        try:
            claim(made, f"{secrets.token_hex(8)}", **named)
        except QuotaExceeded:
            return number
    return count


def test_each_scope_of_each_boundary_has_a_quota_of_its_own(file: Path) -> None:
    one, other = boundary(file), boundary(file, name="other")
    assert [fill(one, 5, scope=scope) for scope in ("", "x", "y", "x")] == [2, 2, 2, 0]
    assert fill(other, 5) == 2
    one.close()
    other.close()


def test_operations_of_a_boundary_share_it(file: Path) -> None:
    made = boundary(file)
    claim(made, "k", operation="first")
    claim(made, "k", operation="second")
    with pytest.raises(QuotaExceeded):
        claim(made, "k", operation="third")
    made.close()


def test_only_what_is_claimed_under_a_quota_is_counted_and_indexed(file: Path) -> None:
    free = boundary(file, quota=None)
    for number in range(5):
        claim(free, f"before {number}")
    made = boundary(file)
    assert fill(made, 5) == 2
    assert not claim(free, "after")
    with closing(sqlite3.connect(file)) as database:
        counted = database.execute("SELECT quota, count(*) FROM retrysafe_records GROUP BY 1").fetchall()
    assert dict(counted) == {holder("b", ""): 2, None: 6}
    made.close()
    free.close()


def test_a_quota_that_was_lowered_refuses_until_enough_is_forgotten(file: Path) -> None:
    made = boundary(file, quota=Quota(outstanding=5))
    assert fill(made, 9) == 5
    made.close()
    made = boundary(file, quota=Quota(outstanding=3))
    with closing(sqlite3.connect(file)) as database, database:
        for left in (4, 3):
            database.execute(
                "UPDATE retrysafe_records SET expires = 1, tombstone_until = 1 WHERE key_hash IN "
                "(SELECT key_hash FROM retrysafe_records WHERE tombstone_until > 1 LIMIT 1)"
            )
            database.commit()
            assert fill(made, 9) == 0, left
        database.execute("UPDATE retrysafe_records SET expires = 1, tombstone_until = 1")
        database.commit()
    assert fill(made, 9) == 3
    made.close()


def test_keys_that_run_or_are_in_doubt_stay_outstanding(file: Path) -> None:
    made = boundary(file, quota=Quota(outstanding=2), effects="external")
    with pytest.raises(TimeoutError), made.claim("unknown"):
        raise TimeoutError
    with made.claim("running") as running:
        with closing(sqlite3.connect(file)) as database, database:
            database.execute("UPDATE retrysafe_records SET expires = 1, tombstone_until = 1")
        with pytest.raises(QuotaExceeded) as refused:
            claim(made, "new")
        assert refused.value.retry_after == 60, "nobody knows"
        running.result = 1
    made.close()


# ---------------------------------------------------------------- whom it never refuses


def test_a_known_key_is_answered_whatever_its_answer_is(file: Path) -> None:
    made = boundary(file)
    claim(made, "done", payload="p")
    with made.claim("running"):
        with pytest.raises(QuotaExceeded):
            claim(made, "new")
        with pytest.raises(InProgress):
            claim(made, "running")
        with pytest.raises(KeyReused):
            claim(made, "done", payload="other")
        assert claim(made, "done", payload="p")
    made.close()


def shared(quota: Quota | None, name: str) -> Boundary:
    """A transactional boundary on PostgreSQL, which has its schema."""
    require("postgresql")
    connect(postgresql_url()).migrate()
    return Boundary(name, store=postgresql_url(), quota=quota, effects="transactional", observers=())


@pytest.mark.parametrize("room", [False, True])
def test_the_duplicate_of_a_claim_that_is_not_committed_yet_is_told_of_it_at_once(room: bool) -> None:
    """PostgreSQL hides the record, but the closed gate is looked at before the quota."""
    free = shared(None, secrets.token_hex(8))
    made = shared(Quota(outstanding=2 if room else 1), free.name)
    claim(made, "first")
    bounded = "-c statement_timeout=5000"
    with psycopg.connect(postgresql_url()) as one, psycopg.connect(postgresql_url(), options=bounded) as other:
        claim(free, "k", tx=one)
        with pytest.raises(InProgress):
            claim(made, "k", tx=other)
        if room:
            assert not claim(made, "new", tx=other)
        else:
            with pytest.raises(QuotaExceeded):
                claim(made, "new", tx=other)
    made.close()
    free.close()


def test_a_waiter_for_others_does_not_wait_for_room(file: Path) -> None:
    made = boundary(file, concurrency=wait(600))
    assert fill(made, 5) == 2
    made.close()


# ---------------------------------------------------------------- many at once


def store_url(kind: str, path: Path) -> str:
    if kind == "sqlite":
        return f"sqlite:///{path}/store.db"
    if kind == "memory":
        return "memory://"
    require(kind)
    urls = {"dynamodb": dynamodb_url, "mongodb": mongodb_url}
    url = urls[kind]() if kind in urls else os.environ[f"RETRYSAFE_TEST_{kind.upper()}"]
    if kind != "redis":
        connect(url).migrate()
    return url


@pytest.mark.fault(75)
@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgresql", "mysql", "redis", "dynamodb", "mongodb"])
def test_a_flood_from_many_threads(kind: str, tmp_path: Path) -> None:
    """Exact where claims are serial; elsewhere too many by no more than are claiming at once."""
    threads, limit = 8, 10
    made = Boundary(
        f"flood-{secrets.token_hex(8)}", store=store_url(kind, tmp_path), quota=Quota(outstanding=limit), observers=()
    )
    start = threading.Barrier(threads)

    def flood(number: int) -> int:
        start.wait(60)
        won = 0
        for one in range(20):
            with suppress(QuotaExceeded):
                won += not claim(made, f"{number} {one}")
        return won

    with ThreadPoolExecutor(threads) as pool:
        won = sum(pool.map(flood, range(threads)))
    exact = kind not in ("postgresql", "mysql")
    assert limit <= won <= (limit if exact else limit + threads - 1)
    assert fill(made, 5) == 0
    made.close()


# ---------------------------------------------------------------- counted in a document beside the records


def test_two_transactions_of_mongodb_count_their_keys_without_waiting_for_each_other() -> None:
    """A key that was rolled back stays counted, and its retry needs no more room."""
    url = store_url("mongodb", Path())
    made = Boundary(secrets.token_hex(8), store=url, quota=TWO, effects="transactional", observers=())
    with MongoClient[Any](url) as client, client.start_session() as one, client.start_session() as other:
        one.start_transaction()
        other.start_transaction()
        assert not claim(made, "a", tx=one)
        assert not claim(made, "b", tx=other)
        assert claim(made, "a", tx=one)
        with pytest.raises(QuotaExceeded):
            claim(made, "c", tx=other)
        one.abort_transaction()
        other.commit_transaction()
        assert [claim(made, key) for key in ("a", "b")] == [False, True]
    made.close()


@pytest.mark.parametrize("kind", ["dynamodb", "mongodb"])
def test_the_document_of_the_count_is_no_key(kind: str) -> None:
    """It is not listed and not swept, and a second claim of a key leaves it as it is."""
    url, name = store_url(kind, Path()), secrets.token_hex(8)
    made, backend = Boundary(name, store=url, quota=TWO, observers=()), connect(url)
    claim(made, "a")
    store: Any = backend.store
    look = find(store, holder(name, ""))
    counted = look.parse(backend.client()(look.request))
    assert counted is not None
    assert len(counted.made) == 1
    assert claim(made, "a")
    run(sweep(store, 1000), backend.client())
    listed = run(page(store, Filter(), None), backend.client()).records
    assert [one.boundary for one in listed].count(name) == 1
    assert look.parse(backend.client()(look.request)) == counted._replace(now=ANY)
    made.close()


# ---------------------------------------------------------------- who is told


def test_a_refusal_is_told_and_says_no_key(file: Path) -> None:
    told: list[Event] = []
    made = boundary(file, observers=[told.append], quota=Quota(rate="1/1h"))
    claim(made, "first")
    told.clear()
    with pytest.raises(QuotaExceeded, match=r"after 3\d\d\d seconds") as refused:
        claim(made, "s3cret")
    assert [one.name for one in told] == ["received", "store_request", "quota_refused"]
    assert told[-1].fields == {"limit": "rate", "retry_after": refused.value.retry_after}
    assert "s3cret" not in str(refused.value)
    assert refused.value.boundary == "b"
    made.close()


# ---------------------------------------------------------------- what is refused when it is built


@each_row(
    ("terms", "said"),
    [
        ({"quota": "100/1m"}, "is a Quota"),
        ({"quota": Quota(rate="1/48h")}, "counts over 172800 s, and keys are forgotten after 86400 s"),
        ({"quota": Quota(rate="1/1h"), "window": "1m"}, "longer memory="),
        (
            {"store": "dynamodb://table?region=eu-west-1", "quota": Quota(outstanding=20_001)},
            "of a dynamodb store counts up to 20000 keys",
        ),
    ],
)
def test_a_quota_that_cannot_be_kept_is_refused(terms: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Boundary("b", **{"store": "memory://", "quota": TWO, **terms})


# ---------------------------------------------------------------- the schema


def test_a_file_of_version_1_is_brought_up_to_date_with_its_records(file: Path) -> None:
    with closing(sqlite3.connect(file)) as database:
        for statement in migrations.forward("sqlite", 1):
            database.execute(statement)
        database.execute(
            "INSERT INTO retrysafe_records SELECT randomblob(32), 'b', '', 'o', x'', 'released', 'a', 1, 1, 'keyed', "
            "1, 1, 1, 9e15, 9e15, 1, NULL, NULL, NULL"
        )
        database.commit()
    made = boundary(file)
    assert fill(made, 5) == 2
    made.close()
    with closing(sqlite3.connect(file)) as database:
        for statement in migrations.backward("sqlite", 2):
            database.execute(statement)
        database.commit()
        assert database.execute("SELECT count(*) FROM retrysafe_records").fetchone() == (3,)
    made = boundary(file, quota=None)
    assert fill(made, 5) == 5
    made.close()


def test_the_migration_of_mysql_can_be_repeated(mysql: str) -> None:
    connect(mysql).migrate()
    with closing(mysql_connection(mysql, autocommit=True)) as connection, connection.cursor() as cursor:
        for statement in migrations.load("mysql")[1].statements:
            cursor.execute(statement)
        for statement in (*migrations.backward("mysql", 2), *migrations.forward("mysql", 2)):
            cursor.execute(statement)
        cursor.execute("SHOW INDEX FROM retrysafe_records WHERE Key_name = 'retrysafe_records_quota'")
        assert len(cursor.fetchall()) == 2


def test_counting_takes_the_index(file: Path) -> None:
    made = boundary(file, quota=Quota(rate="2/1h", outstanding=5))
    store: Any = made._settings.backend.store
    params = {"quota": b"", "period": 1, "rate_before": 1, "kept_before": 4, "key": b""}
    with closing(sqlite3.connect(file)) as database:
        plan = [
            row[3]
            for row in database.execute(
                f"EXPLAIN QUERY PLAN SELECT 1 FROM {store.clock} WHERE {store._room_sql[True, True]}", params
            )
            if "retrysafe_records" in row[3] or " q " in row[3]
        ]
    assert len(plan) == 2
    assert all("INDEX retrysafe_records_quota (quota=?" in step for step in plan), plan
    made.close()
