"""Time that passes in a store: for whom, how far, and what it waits for."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from retrysafe import Boundary, ConfigurationError
from retrysafe.backends.driver import run
from retrysafe.backends.registry import connect
from retrysafe.protocol.procedures import Won, claim, read, settle
from retrysafe.protocol.records import EffectiveState, Ownership
from retrysafe.protocol.requests import Ask
from retrysafe.protocol.transitions import Transition
from retrysafe.testing import Clock, age
from retrysafe.testing.bench import LEASE, MEMORY, RESULT, WINDOW, Bench
from retrysafe.testing.time_travel import clear, elapse, elapse_all, lapse
from tests.conftest import require
from tests.faults.helpers import unique
from tests.stores.harnesses.base import AnyHarness
from tests.stores.harnesses.dynamodb import dynamodb_sync
from tests.stores.harnesses.redis import redis_sync
from tests.stores.harnesses.sql import mysql_url, postgresql_url, sqlite
from tests.tables import each_row


@pytest.fixture
def bench(harness: AnyHarness) -> Bench:
    """A key in a boundary of its own."""
    return Bench(harness, secrets.token_bytes(32), boundary=unique())


def settled(bench: Bench, event: Transition) -> None:
    held = bench.win()
    assert bench.settle(held, event, RESULT if event in (Transition.COMPLETE, Transition.FAIL) else None)


def standing(bench: Bench) -> EffectiveState:
    record = bench.read()
    return EffectiveState.FORGOTTEN if record is None else record.effective_state


def test_every_instant_of_a_record_goes_back_alike(bench: Bench) -> None:
    settled(bench, Transition.COMPLETE)
    before = bench.record()
    bench.harness.do(elapse(bench.harness.store, [bench.key], 5_000_000))
    after = bench.record()
    for name in ("lease_until", "created", "updated", "expires", "tombstone_until"):
        assert getattr(before, name) - getattr(after, name) == 5_000_000, name
    assert after._replace(now=0) == before._replace(
        now=0,
        **{name: getattr(after, name) for name in ("lease_until", "created", "updated", "expires", "tombstone_until")},
    )


def test_time_passes_for_the_boundaries_that_are_named(bench: Bench) -> None:
    other = Bench(bench.harness, secrets.token_bytes(32), boundary=unique())
    for one in (bench, other):
        settled(one, Transition.COMPLETE)
    passed = bench.harness.do(elapse_all(bench.harness.store, round((WINDOW + 1) * 1e6), [bench.boundary]))
    assert [record.key for record in passed] == [bench.key]
    assert (standing(bench), standing(other)) == (EffectiveState.EXPIRED, EffectiveState.COMPLETED)


def test_only_running_records_lapse(bench: Bench) -> None:
    done = bench.sibling(1)
    settled(done, Transition.COMPLETE)
    held = bench.win(bench.want(lease=LEASE * 20))
    lapsed = bench.harness.do(lapse(bench.harness.store, [bench.boundary]))
    assert [record.key for record in lapsed] == [held.key]
    assert (standing(bench), standing(done)) == (EffectiveState.LAPSED, EffectiveState.COMPLETED)
    assert done.record().updated > done.record().now - 600_000_000


@pytest.mark.slow
def test_every_kind_of_record_is_cleared_and_no_other(bench: Bench) -> None:
    other = Bench(bench.harness, secrets.token_bytes(32), boundary=unique())
    settled(other, Transition.COMPLETE)
    benches = [bench.sibling(number) for number in range(5)]
    benches[0].win()
    for one, event in zip(
        benches[1:], (Transition.COMPLETE, Transition.FAIL, Transition.DOUBT, Transition.RELEASE), strict=True
    ):
        settled(one, event)
    assert bench.harness.do(clear(bench.harness.store, [bench.boundary])) == 5
    assert {standing(one) for one in benches} == {EffectiveState.FORGOTTEN}
    assert all(one.win() for one in benches)
    assert standing(other) is EffectiveState.COMPLETED


def test_keys_without_a_record_are_passed_over(bench: Bench) -> None:
    bench.harness.do(elapse(bench.harness.store, [secrets.token_bytes(32)], 1))
    assert bench.read() is None


def test_more_records_than_one_statement_ages(tmp_path: Path) -> None:
    harness = sqlite(tmp_path)
    try:
        first = Bench(harness, bytes(32), boundary="many")
        benches = [Bench(harness, number.to_bytes(2) + bytes(30), boundary="many") for number in range(600)]
        for one in benches:
            one.win()
        assert len(first.harness.do(elapse_all(harness.store, round((LEASE + 1) * 1e6)))) == 600
        assert {standing(one) for one in benches} == {EffectiveState.LAPSED}
    finally:
        harness.close()


class Strange:
    """A store of a kind that nobody has told about time."""


def test_a_store_of_another_kind_must_say_how_time_passes() -> None:
    with pytest.raises(ConfigurationError, match=r"how time passes in a Strange.*age\.register"):
        run(elapse(Strange(), [b"k"], 1), lambda request: request)


def test_a_store_of_another_kind_can_say_how_time_passes() -> None:
    class Told(Strange):
        """One that somebody has."""

    @age.register(Told)
    def _told(store: object, keys: list[bytes], micros: int) -> list[Ask[None]]:
        return [Ask((key, micros), asked.append) for key in keys]

    asked: list[tuple[bytes, int]] = []
    run(elapse(Told(), [b"k"], 7), lambda request: request)
    assert asked == [(b"k", 7)]


# ---------------------------------------------------------------- open transactions


@pytest.fixture(params=["postgresql", "mysql"])
def transactional(request: pytest.FixtureRequest) -> Iterator[Boundary]:
    """A boundary whose transactions lock rows."""
    require(request.param)
    url = {"postgresql": postgresql_url, "mysql": mysql_url}[request.param]()
    connect(url).migrate()
    boundary = Boundary(unique(), store=url, effects="transactional", observers=())
    yield boundary
    boundary.close()


def test_rows_locked_by_an_open_transaction_are_not_waited_for(transactional: Boundary) -> None:
    with Clock(transactional) as clock:
        with transactional.claim("K") as claim:
            claim.result = "first"
        clock.advance("25h")
        with transactional.claim("K") as claim:
            assert not claim.replayed
            assert clock.advance("25h") == 1  # it is there, as it was committed, and locked
            claim.result = "second"
        with transactional.claim("K") as claim:
            assert claim.replayed
            assert claim.result == "second"


# ---------------------------------------------------------------- what is native to a store


@each_row("topology", ["", "_CLUSTER"])
def test_redis_forgets_by_itself_what_has_grown_old(topology: str) -> None:
    require("redis-cluster" if topology else "redis")
    harness = redis_sync(topology)(Path())
    try:
        bench = Bench(harness, secrets.token_bytes(32), boundary=unique())
        settled(bench, Transition.COMPLETE)
        bench.elapse(MEMORY - 60)
        assert standing(bench) is EffectiveState.EXPIRED
        bench.elapse(61)
        assert bench.read() is None
    finally:
        harness.close()


def test_dynamodb_loses_what_has_grown_old() -> None:
    require("dynamodb")
    harness = dynamodb_sync(Path())
    try:
        bench = Bench(harness, secrets.token_bytes(32), boundary=unique())
        settled(bench, Transition.COMPLETE)
        bench.elapse(MEMORY + 10)
        assert bench.read() is None
    finally:
        harness.close()


def test_a_frozen_owner_has_lost_its_lease_when_another_took_over(bench: Bench) -> None:
    first = bench.win()
    bench.harness.do(lapse(bench.harness.store, [bench.boundary]))
    outcome = bench.harness.do(claim(bench.harness.store, bench.want()))
    assert isinstance(outcome, Won)
    assert outcome.ownership.token > first.token
    assert not bench.harness.do(settle(bench.harness.store, Ownership(*first), Transition.COMPLETE, RESULT))
    assert bench.harness.do(read(bench.harness.store, bench.key)).attempt == outcome.ownership.attempt
