"""Breaks of what surrounds the protocol: sweeping, the cache, probes and operators, two versions, quotas.

As in `test_mutants.py`, one thing at a time is broken, and the check that is named for it finds out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from retrysafe.backends.memory import store as memory
from retrysafe.backends.memory.store import MemoryStore
from retrysafe.claims.outcome import HandlerSignals
from retrysafe.protocol import migrating, procedures
from retrysafe.protocol.decisions import Decision
from retrysafe.protocol.migrating import Migration
from retrysafe.protocol.procedures import Change, ClaimResult, NotWon
from retrysafe.protocol.records import (
    Allowance,
    ClaimRequest,
    Clocks,
    EffectiveState,
    Micros,
    QuotaRefusal,
    Record,
    StoredResult,
)
from retrysafe.protocol.requests import Ask, Program, ask
from retrysafe.protocol.store import Cache, Store
from retrysafe.protocol.transitions import Transition
from tests.laboratory.simulation import PARTS, PLANS, Check, Fault, Parts, Plan, simulate, survey
from tests.laboratory.simulation.acting import answer_of, decode
from tests.laboratory.simulation.plan import PAUSES
from tests.protocol.test_mutants import allow, decide_instead, first_caught
from tests.proving.effort import effort
from tests.tables import each_row

pytestmark = pytest.mark.one_of("mutants of the protocol", of=3)

SWEEPER, ARCHIVE, PROBES = PLANS["sweeper"], PLANS["archive"], PLANS["probes"]
LAYERED, FLEET, QUOTA = PLANS["layered"], PLANS["two versions"], PLANS["quota"]


@pytest.fixture(autouse=True, scope="module")
def _unbroken_first() -> None:
    for plan in (SWEEPER, ARCHIVE, PROBES, LAYERED, FLEET, QUOTA):
        assert not survey(range(effort(25, 100)), plan=plan).failures


# ---------------------------------------------------------------- sweeping


def test_a_sweeper_removes_what_it_has_not_archived_as_it_is() -> None:
    def forgotten(store: Any, limit: int) -> Program[list[Record]]:
        records = yield from procedures.forgotten(store, limit)
        return [record._replace(result=None) for record in records]

    first_caught(Check.ARCHIVED, parts=Parts(forgotten=forgotten), plan=ARCHIVE)


class RemovesByKey(MemoryStore):
    """Removes the records of the keys that it saw, whatever they have become."""

    def remove(self, seen: Sequence[Record]) -> list[Ask[int]]:
        def step(records: dict[bytes, Record], now: Micros) -> int:
            return sum(records.pop(one.key, None) is not None for one in seen)

        return [Ask(step, lambda answer: answer)]


@each_row("check", [Check.ARCHIVED, Check.KEPT])
def test_archived_records_are_removed_although_they_changed(check: Check) -> None:
    first_caught(check, RemovesByKey(), plan=ARCHIVE)


@each_row("plan", [SWEEPER, ARCHIVE])
def test_a_sweeper_that_removes_nothing_is_found_out_in_the_end(plan: Plan) -> None:
    def nothing(store: Any, records: Any) -> Program[int]:
        return 0
        yield

    first_caught(Check.SWEPT, parts=Parts(sweep=nothing, remove=nothing), plan=plan)


# ---------------------------------------------------------------- the cache


def test_a_kept_answer_outlives_the_window_of_its_record() -> None:
    def keep(cache: Cache, outcome: ClaimResult, looked: Micros, at_most: Micros) -> Program[None]:
        if isinstance(outcome, NotWon) and outcome.decision is Decision.REPLAY and outcome.record is not None:
            yield from ask(cache.keep(outcome.record, looked + at_most))

    first_caught(Check.NEARBY, parts=Parts(keep=keep), plan=LAYERED._replace(cached=9000, skew=0))


def test_an_expired_key_is_not_dropped_from_the_cache() -> None:
    def drop(cache: Cache, changed: Record, at_most: Micros) -> Program[None]:
        return
        yield

    first_caught(Check.TAKEN_BACK, parts=Parts(drop=drop, drop_again=drop), plan=LAYERED)


def test_an_operator_who_is_frozen_between_cache_and_store_does_not_drop_again() -> None:
    def drop(cache: Cache, changed: Record, at_most: Micros) -> Program[None]:
        return
        yield

    plan = LAYERED._replace(workers=6, effects=("keyed",), cached=500, faults=(Fault.PAUSED_AFTER,))
    first_caught(Check.TAKEN_BACK, parts=Parts(drop_again=drop), plan=plan)


def test_a_dropped_key_leaves_no_version_behind() -> None:
    def drop(cache: Cache, changed: Record, at_most: Micros) -> Program[None]:
        found = yield from ask(cache.look(changed.key))
        yield from ask(cache.drop(changed, found.now))

    late = (Fault.DELAYED, Fault.PAUSED_BEFORE, Fault.PAUSED_AFTER)
    plan = LAYERED._replace(workers=6, effects=("keyed",), cached=3000, faults=late, chance=0.4)
    first_caught(Check.TAKEN_BACK, parts=Parts(drop=drop, drop_again=drop), plan=plan)


# ---------------------------------------------------------------- probes and operators


@each_row("check", [Check.ONE_EFFECT, Check.TRUTH])
def test_a_probe_that_says_nothing_is_taken_to_say_that_nothing_happened(check: Check) -> None:
    def guess(said: HandlerSignals, result: Any) -> tuple[Transition, StoredResult | None] | None:
        return answer_of(said, result) or (Transition.RESOLVE_RELEASED, None)

    first_caught(check, parts=Parts(answer_of=guess), plan=PROBES)


def test_a_probe_that_says_nothing_is_taken_to_say_that_it_happened() -> None:
    def guess(said: HandlerSignals, result: Any) -> tuple[Transition, StoredResult | None] | None:
        return answer_of(said, result) or (Transition.RESOLVE_COMPLETED, StoredResult(b'"guessed"', "t", 1))

    first_caught(Check.TRUTH, parts=Parts(answer_of=guess), plan=PROBES)


def test_a_probe_speaks_of_whatever_record_is_there_when_it_has_found_out() -> None:
    def newest(
        store: Store, seen: Record, event: Transition, result: StoredResult | None, clocks: Clocks
    ) -> Program[bool]:
        record = yield from procedures.read(store, seen.key)
        return record is not None and (yield from procedures.resolve(store, record, event, result, clocks))

    first_caught(Check.TRUTH, parts=Parts(resolve=newest), plan=PROBES._replace(chance=0.5, workers=5))


def test_an_operator_settles_the_doubt_of_another_attempt_than_he_looked_into() -> None:
    def settle_doubt(store: Store, key: bytes, event: Transition, stored: Any, **how: Any) -> Program[Change]:
        return (yield from procedures.settle_doubt(store, key, event, stored, clocks=how["clocks"]))

    frozen = (*PAUSES, Fault.REPLY_LOST, Fault.CRASHED_AFTER)
    plan = PROBES._replace(workers=6, effects=("external",), faults=frozen, chance=0.5, hasty=0.0, horizon=14_000)
    first_caught(Check.TRUTH, parts=Parts(settle_doubt=settle_doubt), plan=plan)


@each_row("check", [Check.STUCK, Check.IN_DOUBT])
def test_a_quarantined_key_that_nobody_settles_is_found_in_the_end(check: Check) -> None:
    def never(store: Store, key: bytes, event: Transition, stored: Any, **how: Any) -> Program[Change]:
        return Change(False, None)
        yield

    first_caught(check, parts=Parts(settle_doubt=never))


# ---------------------------------------------------------------- two versions


def test_a_worker_does_not_look_at_the_schema() -> None:
    def require(store: Any, needed: int, migrate_with: str) -> Program[None]:
        return
        yield

    first_caught(Check.SCHEMA, parts=Parts(require=require), plan=FLEET)


def test_a_worker_is_content_with_an_older_schema() -> None:
    def require(store: Any, needed: int, migrate_with: str) -> Program[None]:
        return (yield from migrating.require(store, needed - 1, migrate_with))

    first_caught(Check.SCHEMA, parts=Parts(require=require), plan=FLEET)


def test_two_migrate_at_once() -> None:
    def migrate(store: Any, wanted: Sequence[Migration], lock: Any, unlock: Any) -> Program[Any]:
        return (yield from migrating.migrate(store, wanted, None))

    first_caught(Check.MIGRATED, parts=Parts(migrate=migrate), plan=FLEET)


def test_the_version_is_read_before_the_lock_is_taken() -> None:
    def migrate(store: Any, wanted: Sequence[Migration], lock: Any, unlock: Any) -> Program[Any]:
        version = yield from migrating.schema_version(store)
        missing = [migration for migration in wanted if migration.version > version]
        yield from ask(store.begin())
        yield from ask(Ask(lock, migrating._locked))
        for migration in missing:
            for statement in migration.statements:
                yield from ask(Ask(migrating.Query(statement, {}), migrating._ignore))
            yield from ask(Ask(migrating.Query("INSERT", migration._asdict()), migrating._ignore))
        yield from ask(store.commit())
        yield from ask(Ask(unlock, migrating._ignore))

    first_caught(Check.MIGRATED, parts=Parts(migrate=migrate), plan=FLEET)


def test_a_migration_is_applied_statement_by_statement() -> None:
    def migrate(store: Any, wanted: Sequence[Migration], lock: Any, unlock: Any) -> Program[Any]:
        version = yield from migrating.schema_version(store)
        for migration in wanted:
            if migration.version > version:
                for query in (*(migrating.Query(one, {}) for one in migration.statements), _noted(migration)):
                    yield from ask(store.begin())
                    yield from ask(Ask(query, migrating._ignore))
                    yield from ask(store.commit())

    first_caught(Check.MIGRATED, parts=Parts(migrate=migrate), plan=FLEET)


def _noted(migration: Migration) -> migrating.Query:
    return migrating.Query("INSERT", migration._asdict())


def test_a_migration_that_is_never_committed_is_found_in_the_end() -> None:
    def migrate(store: Any, wanted: Sequence[Migration], lock: Any, unlock: Any) -> Program[Any]:
        yield from ask(store.begin())

    first_caught(Check.CONTRACTED, parts=Parts(migrate=migrate), plan=FLEET)


def test_a_codec_reads_what_a_later_one_wrote() -> None:
    first_caught(Check.READ, parts=Parts(decode=lambda stored, version: decode(stored, 2)), plan=FLEET)


def test_an_unreadable_result_is_taken_for_none_and_the_work_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    allow(monkeypatch, Transition.CLAIM, EffectiveState.COMPLETED)

    def rerun(record: Record, want: ClaimRequest, decision: Decision) -> Decision:
        unreadable = record.result is not None and record.result.codec_version > 1
        return Decision.TAKE if decision is Decision.REPLAY and unreadable else decision

    decide_instead(monkeypatch, rerun)
    first_caught(Check.SETTLED, plan=FLEET)


# ---------------------------------------------------------------- quotas


@each_row("limit", ["outstanding", "rate"])
def test_a_quota_lets_one_more_in(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    refused = memory._judge_quota

    def generous(records: Any, allowance: Allowance, now: Micros) -> QuotaRefusal | None:
        allowed = getattr(allowance, limit)
        return refused(records, allowance._replace(**{limit: allowed + 1}), now)

    monkeypatch.setattr(memory, "_judge_quota", generous)
    first_caught(Check.QUOTA, plan=QUOTA._replace(**{"outstanding": 0, "rate": 0, limit: 2}))


def test_the_parts_are_the_shipping_ones() -> None:
    """No break above leaks into another test."""
    assert Parts() == PARTS._replace(key_for=Parts().key_for)
    assert simulate(1, plan=FLEET).ok
