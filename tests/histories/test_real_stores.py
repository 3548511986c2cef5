"""Histories of real stores under faults, each explained key by key by the memory store's steps.

Workers on threads or tasks claim, renew, settle, settle late, resolve, expire and sweep a handful of keys; connections
are cut by a proxy, callers cancelled, and leases lapse in mid-work.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from retrysafe.backends.registry import connect, forget
from retrysafe.backends.sql.sqlite import SqliteStore
from retrysafe.protocol.records import ClaimRequest, Ownership, QuotaRefusal, Record, StoredResult
from retrysafe.protocol.requests import Ask
from retrysafe.protocol.transitions import Transition
from retrysafe.testing.harness import AsyncHarness
from tests.conftest import require
from tests.histories.cutting import Cutter
from tests.histories.workers import Stage, on_tasks, on_threads
from tests.laboratory.histories import UNKNOWN, History, Operation
from tests.laboratory.linearizability import by_key, check, is_linearizable
from tests.laboratory.specification import Traits
from tests.laboratory.timeline import drawn
from tests.proving.effort import effort
from tests.proving.proofs import Proof
from tests.stores.harnesses import HARNESSES, PROXIED, TRAITS
from tests.stores.harnesses.base import AnyHarness

ROWS = (2, 13, 14, 16, 17, 25, 28, 33, 44, 60, 64, 79, 89)
pytestmark = [pytest.mark.fault(*ROWS)]
Prove = Callable[[Proof], None]

LOCAL = ("memory", "memory async", "sqlite3", "sqlite3 async")
WORKERS = 4


def kept(keys: list[bytes], operations: list[Operation], traits: Traits) -> None:
    """Fail with the counterexample, if there is one."""
    for broken in check(operations, traits):
        whole = by_key(operations)[broken.key]
        pytest.fail(f"{broken}\nof:\n" + "\n".join(drawn(whole, [False] * len(whole))))
    assert {one.key for one in operations} >= set(keys)


@pytest.fixture(params=(*LOCAL, *PROXIED))
def name(request: pytest.FixtureRequest) -> str:
    """A store behind an executor, by the name of its harness."""
    return str(request.param)


@pytest.fixture
def prepared(name: str, tmp_path: Path) -> Iterator[AnyHarness]:
    """The store, created and directly connected to."""
    service, make = HARNESSES[name]
    if service is not None:
        require(service)
    made = make(tmp_path)
    yield made
    made.close()


@pytest.fixture
def cutter(name: str, prepared: AnyHarness, chance: Random) -> Iterator[Cutter | None]:
    """The proxy before the server, where there is one."""
    if name in LOCAL:
        yield None
        return
    server = PROXIED[name][1]()
    made = Cutter(server, Random(chance.random()))
    yield made
    made.close()


@pytest.mark.slow
def test_answers_of_a_store_under_faults_are_linearizable(
    name: str, prepared: AnyHarness, cutter: Cutter | None, chance: Random, proof: Prove
) -> None:
    kind = prepared.store.capabilities.name
    rounds = effort(2, 12)
    total = lost = 0
    faults: dict[str, int] = {}
    late: list[Operation] = []  # sweeps that nobody heard of again: they may remove what a later round has left
    for _ in range(rounds):
        keys = [secrets.token_bytes(32) for _ in range(3)]
        stage = Stage(keys, prepared.store)
        operations = _played(name, prepared, cutter, stage, chance, effort(40, 60))
        kept(keys, late + operations, TRAITS[kind])
        late += [one for one in operations if one.kind == "sweep" and one.answer is UNKNOWN]
        total += len(operations)
        lost += sum(one.answer is UNKNOWN for one in operations)
        for fault, count in stage.faults.items():
            faults[fault] = faults.get(fault, 0) + count
    faults.update({} if cutter is None else cutter.cuts)
    if cutter is not None:
        assert cutter.cuts.total() > 0
        assert lost > 0
    for fault, count in {**faults, "operation checked": total, "history checked": rounds * 3}.items():
        proof(Proof("histories", _store(kind, name), "", fault, count, rows=ROWS))


def _store(kind: str, name: str) -> str:
    return kind if name.split()[0] == kind else f"{kind}, {name}"


def _played(
    name: str, prepared: AnyHarness, cutter: Cutter | None, stage: Stage, chance: Random, acts: int
) -> list[Operation]:
    """One round, through the proxy where there is one."""
    history = History()
    backend: Any = prepared.backend if cutter is None else connect(cutter.before(PROXIED[name][0]()))
    own = backend is not prepared.backend
    stage.store = backend.store
    if isinstance(prepared, AsyncHarness):

        async def play() -> None:
            client = backend.aclient()
            await backend.acheck(client)
            _start(cutter)
            try:
                await on_tasks(stage, history, client, prepared.backend.aclient(), WORKERS, chance, acts)
            finally:
                _stop(cutter)
                if own:
                    await backend.aclose()

        prepared.loop.run_until_complete(play())
    else:
        client = backend.client()
        backend.check(client)
        _start(cutter)
        on_threads(stage, history, [client] * WORKERS, prepared.backend.client(), chance, acts)
        _stop(cutter)
        if own:
            backend.close()
    if own:
        forget(backend)
    return history.operations()


def _start(cutter: Cutter | None) -> None:
    if cutter is not None:
        cutter.rate = 0.03


def _stop(cutter: Cutter | None) -> None:
    if cutter is not None:
        cutter.rate = 0.0


class Unfenced(SqliteStore):
    """Settles whatever attempt has the record."""

    def _settle(self, clock: str, event: Transition, own: bool) -> str:
        fence = f" AND r.attempt = {self.p('attempt')} AND r.token = {self.p('token')}"
        sql = super()._settle(clock, event, own)
        assert fence in sql
        return sql.replace(fence, "")


class Hasty(SqliteStore):
    """Takes records over while their lease lasts: at least it has seen that they run."""

    def _take(self, clock: str, gate: str) -> str:
        sql = super()._take(clock, gate)
        assert "r.lease_until <= t.now" in sql
        return sql.replace("r.lease_until <= t.now", "r.lease_until > 0")

    def claim(self, want: ClaimRequest) -> Ask[Record | QuotaRefusal | None]:
        ask = super().claim(want)

        def parse(answer: Any) -> Record | QuotaRefusal | None:
            record = ask.parse(answer)
            if isinstance(record, Record) and record.attempt != want.attempt:
                return record._replace(now=max(record.now, record.lease_until))
            return record

        return Ask(ask.request, parse)


class Forgetful(SqliteStore):
    """Acknowledges a completion that it does not make."""

    def settle(self, ownership: Ownership, event: Transition, result: StoredResult | None) -> Ask[bool]:
        ask = super().settle(ownership, event, result)
        if event is not Transition.COMPLETE:
            return ask
        return Ask(super().read(ownership.key).request, lambda answer: True)


@pytest.mark.parametrize("broken", [Unfenced, Hasty, Forgetful])
def test_a_broken_store_is_found(broken: type[SqliteStore], tmp_path: Path, chance: Random) -> None:
    """On a real database, from the answers alone."""
    harness = HARNESSES["sqlite3"][1](tmp_path)
    harness.backend.store = broken()
    for _ in range(20):
        keys = [secrets.token_bytes(32) for _ in range(3)]
        stage = Stage(keys, harness.store)
        histories = by_key(_played("sqlite3", harness, None, stage, chance, 40))
        if not all(is_linearizable(key, history, TRAITS["sqlite"]) for key, history in histories.items()):
            break
    else:
        pytest.fail("not found in 60 histories")
    harness.close()
