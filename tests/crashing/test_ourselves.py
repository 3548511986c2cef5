"""Our own clients and modes, killed, cancelled and stopped at every request: one effect each, whatever happens."""

from __future__ import annotations

import itertools
import os
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from retrysafe import Boundary
from retrysafe.backends.registry import connect as backend_of
from retrysafe.testing.agent_tasks.bank import charges
from retrysafe.testing.crashing import crash_points
from tests.conftest import require
from tests.crashing.test_planted import FAULTS
from tests.faults.helpers import driven, unique
from tests.proving.effort import chance_of, effort
from tests.proving.plugin import Record
from tests.proving.proofs import Proof
from tests.stores.ageing import mysql_connection
from tests.stores.harnesses.dynamodb import dynamodb_url
from tests.stores.harnesses.redis import redis_url


class Where(NamedTuple):
    """The place of one run's work."""

    url: str
    bank: str
    account: str


CHARGE = "INSERT INTO charges VALUES ('A', 12)"


def boundary(where: Where, effects: Any) -> Boundary:
    return Boundary(where.account, store=where.url, effects=effects, observers=())


def post(where: Where, key: str) -> None:
    request = urllib.request.Request(where.bank, data=where.account.encode(), headers={"Idempotency-Key": key})
    urllib.request.urlopen(request, timeout=60).close()


def leased(where: Where, effects: Any = "keyed") -> None:
    shop = boundary(where, effects)
    with shop.claim(where.account) as claim:
        if not claim.replayed:
            post(where, claim.key_for("bank") if effects == "keyed" else claim.attempt_id)
            claim.result = "charged"
    shop.close()


async def aleased(where: Where, effects: Any = "keyed") -> None:
    shop = boundary(where, effects)
    async with shop.claim(where.account) as claim:
        if not claim.replayed:
            post(where, claim.key_for("bank") if effects == "keyed" else claim.attempt_id)
            claim.result = "charged"
    await shop.aclose()


def own_transaction(where: Where) -> None:
    shop = boundary(where, "transactional")
    with shop.claim(where.account) as claim:
        if not claim.replayed:
            perform(claim.tx, CHARGE)
            claim.result = "charged"
    shop.close()


async def aown_transaction(where: Where) -> None:
    shop = boundary(where, "transactional")
    async with shop.claim(where.account) as claim:
        if not claim.replayed:
            done = perform(claim.tx, CHARGE)
            if hasattr(done, "__await__"):
                await done
            claim.result = "charged"
    await shop.aclose()


def perform(tx: Any, sql: str) -> Any:
    return tx.execute(sql) if hasattr(tx, "execute") else tx.query(sql) if hasattr(tx, "query") else None


class Combination(NamedTuple):
    """A client library and a mode."""

    client: str
    mode: str
    colour: str

    def __str__(self) -> str:
        return f"{self.client}-{self.mode}-{self.colour}"

    @property
    def run(self) -> Callable[[Where], Any]:
        if self.mode == "transactional":
            return aown_transaction if self.colour == "async" else own_transaction
        return partial(leased, effects=self.mode) if self.colour == "sync" else _AleasedAs(self.mode)


class _AleasedAs:
    """A coroutine function with a mode."""

    def __init__(self, mode: str) -> None:
        self._mode = mode

    def __new__(cls, mode: str) -> Any:
        async def run(where: Where) -> None:
            await aleased(where, mode)

        return run


SQL = {"sqlite": "sync async", "psycopg": "sync async", "asyncpg": "async", "pymysql": "sync", "asyncmy": "async"}
OTHERS = {"redis": "sync async", "dynamodb": "sync async"}
STORES = {
    "psycopg": "postgresql+psycopg",
    "asyncpg": "postgresql+asyncpg",
    "pymysql": "mysql+pymysql",
    "asyncmy": "mysql+asyncmy",
}
COMBINATIONS = [
    Combination(client, mode, colour)
    for clients, modes in ((SQL, ("transactional", "keyed", "external")), (OTHERS, ("keyed", "external")))
    for client, colours in clients.items()
    for colour in colours.split()
    for mode in modes
]
CHOSEN = effort(sorted(chance_of("our own combinations").sample(COMBINATIONS, 4)), COMBINATIONS)


class Places:
    """Makes places for one client."""

    def __init__(self, client: str, folder: Path, bank: tuple[str, str]) -> None:
        self._client, self._folder, (self._bank, self._ledger) = client, folder, bank
        self._numbers = itertools.count()
        self.prefix = f"crashed_{os.getpid()}_"
        self._tables = client in SQL

    def fresh(self) -> Where:
        name = f"{self.prefix}{os.getpid()}_{next(self._numbers)}"
        url = getattr(self, f"_{self._client}")(name)
        if self._tables:
            backend = backend_of(url.replace("+asyncpg", "").replace("+asyncmy", ""))
            backend.migrate()
            with backend.client().transaction() as opened:
                perform(opened.handle, "CREATE TABLE charges (id VARCHAR(9), amount INT)")
                opened.handle.commit()
            backend.close()
        return Where(url, f"{self._bank}/charges", unique("order"))

    def _sqlite(self, name: str) -> str:
        return f"sqlite:///{self._folder}/{name}.db"

    def _psycopg(self, name: str) -> str:
        import psycopg

        url = os.environ["RETRYSAFE_TEST_POSTGRESQL"]
        with psycopg.connect(url, autocommit=True) as db:
            db.execute(f"CREATE SCHEMA {name}".encode())
        return f"{url}?options=-csearch_path%3D{name}"

    def _asyncpg(self, name: str) -> str:
        return driven(self._psycopg(name), "asyncpg")

    def _pymysql(self, name: str) -> str:
        url = os.environ["RETRYSAFE_TEST_MYSQL"]
        with closing(mysql_connection(url, autocommit=True)) as db:
            db.cursor().execute(f"CREATE DATABASE {name}")
        return url.rpartition("/")[0] + f"/{name}"

    def _asyncmy(self, name: str) -> str:
        return driven(self._pymysql(name), "asyncmy")

    def _redis(self, name: str) -> str:
        return redis_url()

    def _dynamodb(self, name: str) -> str:
        return dynamodb_url()

    def check(self, where: Where, least: int) -> None:
        """Exactly one charge, or at most one where an attempt may end unknown."""
        count = charges(self._ledger, where.account)
        if self._tables:
            backend = backend_of(where.url.replace("+asyncpg", "").replace("+asyncmy", ""))
            with backend.client().transaction() as opened:
                count += len(_rows(opened.handle))
            backend.close()
        assert least <= count <= 1, f"{count} charges"


def _rows(tx: Any) -> list[Any]:
    cursor = tx.cursor()
    cursor.execute("SELECT * FROM charges")
    return list(cursor.fetchall())


@pytest.fixture
def places(request: pytest.FixtureRequest, tmp_path: Path, bank: tuple[str, str]) -> Iterator[Places]:
    client = request.getfixturevalue("combination").client
    service = {"psycopg": "postgresql", "asyncpg": "postgresql", "pymysql": "mysql", "asyncmy": "mysql"}.get(
        client, client
    )
    if service != "sqlite":
        require(service)
    if service == "dynamodb":
        backend = backend_of(dynamodb_url())
        backend.migrate()
        backend.close()
    made = Places(client, tmp_path, bank)
    yield made
    _clean(service, made.prefix)


def _clean(service: str, prefix: str) -> None:
    if service == "postgresql":
        import psycopg

        with psycopg.connect(os.environ["RETRYSAFE_TEST_POSTGRESQL"], autocommit=True) as db:
            for (name,) in db.execute(
                "SELECT nspname FROM pg_namespace WHERE starts_with(nspname, %s)", (prefix,)
            ).fetchall():
                db.execute(f"DROP SCHEMA {name} CASCADE".encode())
    if service == "mysql":
        with closing(mysql_connection(os.environ["RETRYSAFE_TEST_MYSQL"], autocommit=True)) as db:
            cursor = db.cursor()
            cursor.execute("SHOW DATABASES")
            for (name,) in [row for row in cursor.fetchall() if row[0].startswith(prefix)]:
                cursor.execute(f"DROP DATABASE {name}")


@pytest.mark.slow
@pytest.mark.fault(1, 2, 3, 4, 5, 6, 14, 28, 32, 43, 64, 77, 89)
@pytest.mark.parametrize("combination", CHOSEN, ids=str)
def test_every_request_of_ours_may_be_the_last(
    combination: Combination, places: Places, proof: Record, request: pytest.FixtureRequest
) -> None:
    least = 0 if combination.mode == "external" else 1
    report = crash_points(
        combination.run,
        fresh=places.fresh,
        check=partial(places.check, least=least),
        pairs=effort(3, 30),
        seed=chance_of(request.node.nodeid).randrange(10**6),
    )
    assert report.ok, str(report)
    assert not report.unseen
    assert bool(report.unknown) == (combination.mode == "external")
    store = STORES.get(combination.client, combination.client)
    for fault in FAULTS.values():
        proof(Proof("crash points", store, combination.mode, fault, len(report.boundaries)))
    proof(Proof("crash points", store, combination.mode, "worker killed twice", report.pairs))
