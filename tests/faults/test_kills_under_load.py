"""Every server is killed under load again and again, at seeded moments: the ledger is exact in the end.

As durable as each is set up to be: PostgreSQL and MariaDB with every commit on disk, Redis with ``appendfsync always``,
DynamoDB Local with a database in a file.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from random import Random
from typing import Any

import psycopg
import pymysql
import pytest

import retrysafe.backends.sql.drivers.pool as pools
from retrysafe import Boundary, RetryTransaction, current
from retrysafe.backends.registry import connect
from tests.conftest import absent
from tests.faults import redis_servers
from tests.faults.conftest import Making
from tests.faults.helpers import DEADLINE, NOT_NOW, Bank, again, business_table, records_of, rows_of, unique, until
from tests.faults.killing import perform
from tests.faults.servers import DynamoDBLocal, OwnServer, dynamodb_jars
from tests.proving.effort import effort
from tests.proving.plugin import Record
from tests.proving.proofs import Proof
from tests.stores.harnesses.dynamodb import dynamodb_url

pytestmark = [pytest.mark.fault(3, 5, 13, 14, 28, 38)]

WORKERS = 2
KEYS_PER_KILL = 14


def _redis() -> Iterator[OwnServer]:
    if not redis_servers.installed():
        absent("no redis-server to start")
    yield redis_servers.Server("--appendonly", "yes", "--appendfsync", "always")


def _dynamodb() -> Iterator[OwnServer]:
    jars = dynamodb_jars()
    if jars is None:
        absent("no DynamoDB Local to start: run scripts/services install dynamodb")
    dynamodb_url()  # credentials
    yield DynamoDBLocal(jars)


SERVERS: dict[str, tuple[Callable[[], Iterator[OwnServer]] | str, tuple[str, ...], tuple[int, int]]] = {
    "postgresql": ("own_server", ("transactional", "keyed"), (2, 10)),
    "mysql": ("own_mariadb", ("transactional", "keyed"), (2, 8)),
    "redis": (_redis, ("keyed",), (3, 12)),
    "dynamodb": (_dynamodb, effort((), ("keyed",)), (0, 4)),
}
"""The origin of each, its modes, and the number of kills. Java takes too long to start for `make test`."""


@pytest.fixture
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[OwnServer]:
    """A server to kill, running and migrated; nobody waits long for it."""
    source = SERVERS[request.param][0]
    monkeypatch.setattr(pools, "CHECKOUT", 0.5)
    made = [] if isinstance(source, str) else list(source())
    running: OwnServer = request.getfixturevalue(source) if isinstance(source, str) else made[0]
    backend = connect(running.url)
    if backend.kind != "redis":
        backend.migrate()
    backend.close()
    yield running
    for one in made:
        one.close()


class Load:
    """Workers that charge their keys, each until it is answered."""

    def __init__(self, boundary: Boundary, work: Callable[[str], str], keys: list[str]) -> None:
        self.ran: list[str] = []
        self.answers: dict[str, str] = {}
        self._work = work
        self.charge = boundary.once(key="key", operation="charge")(self._charge)
        self._workers = [
            threading.Thread(target=self._until_answered, args=(keys[i::WORKERS],)) for i in range(WORKERS)
        ]

    def _charge(self, key: str) -> str:
        self.ran.append(key)
        return self._work(key)

    def _until_answered(self, left: list[str]) -> None:
        while left:
            key = left.pop(0)
            try:
                self.answers[key] = self.charge(key)
            except (*NOT_NOW, RetryTransaction, psycopg.Error, pymysql.MySQLError):
                left.append(key)

    def start(self) -> None:
        for one in self._workers:
            one.start()

    def goes_on(self) -> bool:
        return any(one.is_alive() for one in self._workers)

    def join(self) -> None:
        for one in self._workers:
            one.join(4 * DEADLINE)
            assert not one.is_alive(), "a caller hangs"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("server", "mode"), [(name, mode) for name, (_, modes, _) in SERVERS.items() for mode in modes], indirect=["server"]
)
def test_the_ledger_is_exact_after_kills(
    server: OwnServer, mode: str, make: Making, bank: Bank, chance: Random, proof: Record, request: Any
) -> None:
    store = request.node.callspec.params["server"]
    kills = effort(*SERVERS[store][2])
    keys = [f"order-{i}" for i in range(kills * KEYS_PER_KILL)]
    boundary = make(server.url, effects=mode, lease="1s")
    with business_table(server.url) if mode == "transactional" else nullcontext("") as table:

        def place(key: str) -> str:
            if not table:
                return bank.charge(current().key_for("bank"))
            receipt = unique("receipt")
            perform(current().tx, f"INSERT INTO {table} VALUES ('{key}', '{receipt}')")
            return receipt

        load = Load(boundary, place, keys)
        load.start()
        killed = 0
        for _ in range(kills):
            goal = len(load.ran) + chance.randrange(2, KEYS_PER_KILL)
            until(partial(lambda goal: len(load.ran) >= goal or not load.goes_on(), goal))
            killed += load.goes_on()
            server.kill()
            server.start()
        load.join()
        assert sorted(load.answers) == sorted(keys)
        assert {key: again(partial(load.charge, key)) for key in keys} == load.answers
        effects = rows_of(server.url, table) if table else list(bank.charges.items())
        assert sorted(receipt for _, receipt in effects) == sorted(load.answers.values())
        assert {state for state, _ in records_of(server.url, boundary.name)} == {"completed"}
    assert killed
    proof(Proof("server kills", store, mode, "server killed", killed, rows=(3, 5, 28, 38)))
