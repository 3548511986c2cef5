"""SIGKILL at random moments, restart, until all is done: each effect exactly once, and replays are equal."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from retrysafe import Boundary
from tests.faults.conftest import server_of
from tests.faults.helpers import ROOT, Bank, business_table, environment, plain, records_of, rows_of, unique
from tests.faults.killing import KEYS, KILLS

STORES = ["sqlite sync", "sqlite async", "psycopg sync", "psycopg async", "asyncpg async"]
STORES += ["pymysql sync", "asyncmy async", "psycopg django"]
LEASED_STORES = [f"{kind} {colour}" for kind in ("redis", "redis-cluster", "dynamodb") for colour in ("sync", "async")]


def _supervised(*arguments: str) -> int:
    command = [sys.executable, "-m", "tests.faults.killing", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, check=False, env=environment(), cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.fault(1, 3, 4, 6)
@pytest.mark.parametrize("kind", STORES)
def test_killed_workers_charge_once_in_a_transaction(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    library, colour = kind.split()
    bank = str(tmp_path / "bank.db")
    if library == "sqlite":
        path, name = tmp_path / "shop.db", unique("charges")
        store = f"sqlite:///{path}"
        Boundary(name, store=store).close()
        with closing(sqlite3.connect(path)) as shop:
            shop.execute(f"CREATE TABLE {name} (key TEXT NOT NULL, receipt TEXT NOT NULL)")
        kills = _supervised(store, "transactional", colour, name, bank, kind)
        with closing(sqlite3.connect(path)) as shop:
            rows = shop.execute(f"SELECT key, receipt FROM {name}").fetchall()
        _judge(store, name, rows, kills)
        return
    store = server_of(library, request)
    url = plain(store)
    with business_table(url) as name:
        kills = _supervised(store, "transactional", colour, name, bank, kind)
        _judge(plain(store), name, rows_of(url, name), kills)


def _judge(store: str, name: str, rows: list[tuple[str, str]], kills: int) -> None:
    assert kills >= KILLS
    assert sorted(key for key, _ in rows) == sorted(f"order-{i}" for i in range(KEYS))
    boundary = Boundary(name, store=store, effects="transactional", observers=())
    for key, receipt in rows:
        with boundary.claim(key, operation="charge", payload={"key": key}) as claim:
            assert (claim.replayed, claim.result) == (True, receipt)
    boundary.close()
    assert {state for state, _ in records_of(store, name)} == {"completed"}


@pytest.mark.slow
@pytest.mark.fault(1, 3, 5, 6)
@pytest.mark.parametrize("kind", [*STORES, *LEASED_STORES])
def test_killed_workers_charge_once_under_a_derived_key(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    library, colour = kind.split()
    bank, name = Bank(tmp_path / "bank.db"), unique("charges")
    if library == "sqlite":
        store = f"sqlite:///{tmp_path}/records.db"
        Boundary(name, store=store).close()
    else:
        store = server_of(library, request)
    kills = _supervised(store, "keyed", colour, name, str(bank.path), kind)
    assert kills >= KILLS
    boundary = Boundary(name, store=plain(store), observers=())
    receipts = bank.charges
    assert len(receipts) == KEYS
    for i in range(KEYS):
        with boundary.claim(f"order-{i}", operation="charge", payload={"key": f"order-{i}"}) as claim:
            assert claim.replayed
            assert claim.result == receipts[claim.key_for("bank")]
    boundary.close()
    records = records_of(plain(store), name)
    assert {state for state, _ in records} == {"completed"}
    assert sum(attempts for _, attempts in records) > KEYS, "no attempt was ever taken over"
    assert sum(bank.requests.values()) >= KEYS
