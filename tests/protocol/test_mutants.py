"""Hand-made breaks of the protocol, one at a time: each is caught by the check that is named for it.

A break replaces a rule, a store's step or a program inside the simulation; the same seeds pass
unbroken. Breaks that no schedule of the simulation reaches are in `test_exhaustive.py`, and those
that cost time but no safety are in `tests/programs`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

from retrysafe.backends.memory.store import MemoryStore
from retrysafe.protocol import decisions, keys, outcomes, procedures, transitions
from retrysafe.protocol.decisions import Decision
from retrysafe.protocol.outcomes import Ending, ModeKind, Settlement
from retrysafe.protocol.records import ClaimRequest, EffectiveState, Micros, Ownership, Record, State, StoredResult
from retrysafe.protocol.requests import Ask
from retrysafe.protocol.store import Store
from retrysafe.protocol.transitions import Rule, Transition
from tests.laboratory.simulation import PARTS, PLAN, Plan, Report, simulate
from tests.laboratory.simulation.acting import Parts
from tests.laboratory.simulation.judging import Check

pytestmark = pytest.mark.one_of("mutants of the protocol", of=3)

SEEDS = 3000


_tried: list[tuple[int, Plan]] = []


@cache
def passes_unbroken(seed: int, plan: Plan) -> bool:
    """Say if the shipping protocol keeps its promises there."""
    return simulate(seed, plan=plan).ok


@pytest.fixture(autouse=True)
def _unbroken_they_pass() -> Iterator[None]:
    """Set up before what breaks the protocol, and so torn down when that is undone."""
    _tried.clear()
    yield
    assert [(seed, plan) for seed, plan in _tried if not passes_unbroken(seed, plan)] == []


def first_caught(check: Check, store: Store | None = None, parts: Parts = PARTS, plan: Plan = PLAN) -> Report:
    """The first report in which the broken protocol breaks the promise."""
    for seed in range(SEEDS):
        report = simulate(seed, store=store, parts=parts, plan=plan)
        _tried.append((seed, plan))
        if any(violation.check is check for violation in report.violations):
            return report
    pytest.fail(f"{SEEDS} seeds did not show: {check.value}")


def allow(patch: pytest.MonkeyPatch, event: Transition, *more: EffectiveState) -> None:
    """Let ``event`` happen from more standings than the table says."""
    rule = transitions.RULES[event]
    patch.setitem(transitions.RULES, event, Rule(rule.sources | frozenset(more), rule.target, rule.guard))


def decide_instead(patch: pytest.MonkeyPatch, change: Callable[[Record, ClaimRequest, Decision], Decision]) -> None:
    """Change what the claim program decides."""
    patch.setattr(procedures, "decide", lambda record, want: change(record, want, decisions.decide(record, want)))


def test_terminal_writes_are_not_fenced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transitions, "_match_owner", lambda record, ownership: None)
    first_caught(Check.NAMED)


def test_a_stale_result_is_stored_without_a_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transitions, "_match_owner", lambda record, ownership: None)
    first_caught(Check.TRUTH)


class DeletesOnRelease(MemoryStore):
    """Frees a key by removing its row."""

    def settle(self, ownership: Ownership, event: Transition, result: StoredResult | None) -> Ask[bool]:
        settle = super().settle(ownership, event, result)

        def step(records: dict[bytes, Record], now: Micros) -> bool:
            done: bool = settle.request(records, now)
            if done and event is Transition.RELEASE:
                del records[ownership.key]
            return done

        return Ask(step, settle.parse)


def test_the_row_is_deleted_on_release() -> None:
    first_caught(Check.KEPT, DeletesOnRelease())


def test_tokens_count_from_one_and_the_row_is_deleted_on_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transitions, "next_token", lambda previous, now: previous + 1)
    first_caught(Check.TOKENS, DeletesOnRelease())


class JudgesLeasesByTheWorker(MemoryStore):
    """Takes a record when its lease has ended on the clock of a worker, which runs ahead."""

    def claim(self, want: ClaimRequest) -> Ask[Record | None]:
        return self._ahead(super().claim(want))

    def take(self, want: ClaimRequest, seen: Record) -> Ask[Record | None]:
        return self._ahead(super().take(want, seen))

    @staticmethod
    def _ahead(ask: Ask[Any]) -> Ask[Any]:
        return Ask(lambda records, now: ask.request(records, now + 700), ask.parse)


def test_the_clock_of_a_worker_decides_leases() -> None:
    first_caught(Check.LEASE, JudgesLeasesByTheWorker())


def test_tokens_restart_after_a_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transitions, "next_token", lambda previous, now: previous + 1)
    first_caught(Check.TOKENS)


def test_a_takeover_keeps_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transitions, "next_token", lambda previous, now: previous or now)
    first_caught(Check.FENCE)


def test_a_renewal_revives_a_lapsed_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    allow(monkeypatch, Transition.RENEW, EffectiveState.LAPSED)
    first_caught(Check.LEASE)


def test_a_record_is_taken_although_it_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transitions, "_match_seen", lambda record, seen: None)
    first_caught(Check.NAMED)


def test_a_changed_record_is_taken_with_another_payload(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transitions, "_match_seen", lambda record, seen: None)
    first_caught(Check.PAYLOAD, plan=PLAN._replace(intruder=0.5))


def test_the_payload_is_ignored_on_takeover(monkeypatch: pytest.MonkeyPatch) -> None:
    def ignore(record: Record, want: ClaimRequest, decision: Decision) -> Decision:
        unsettled = record.effective_state in (EffectiveState.LAPSED, EffectiveState.RELEASED)
        return Decision.TAKE if decision is Decision.REUSED and unsettled else decision

    decide_instead(monkeypatch, ignore)
    first_caught(Check.PAYLOAD)


class ClearsOnRelease(MemoryStore):
    """Frees a key by emptying its row."""

    emptied: dict[str, Any]

    def __init__(self, **emptied: Any) -> None:
        self.emptied = emptied

    def settle(self, ownership: Ownership, event: Transition, result: StoredResult | None) -> Ask[bool]:
        settle = super().settle(ownership, event, result)

        def step(records: dict[bytes, Record], now: Micros) -> bool:
            done: bool = settle.request(records, now)
            if done and event is Transition.RELEASE:
                records[ownership.key] = records[ownership.key]._replace(**self.emptied)
            return done

        return Ask(step, settle.parse)


def test_a_release_clears_the_token() -> None:
    first_caught(Check.TOKENS, ClearsOnRelease(token=0))


def test_a_release_clears_the_fingerprint() -> None:
    first_caught(Check.KEPT, ClearsOnRelease(fingerprint=b""))


def test_unknown_is_run_again_blindly(monkeypatch: pytest.MonkeyPatch) -> None:
    allow(monkeypatch, Transition.CLAIM, EffectiveState.UNKNOWN)
    decide_instead(monkeypatch, lambda _, __, was: Decision.TAKE if was is Decision.DOUBT else was)
    first_caught(Check.BLIND)


def test_unknown_run_again_has_its_effect_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    allow(monkeypatch, Transition.CLAIM, EffectiveState.UNKNOWN)
    decide_instead(monkeypatch, lambda _, __, was: Decision.TAKE if was is Decision.DOUBT else was)
    first_caught(Check.ONE_EFFECT)


def test_a_lapsed_external_attempt_is_taken_over_like_a_keyed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(decisions._LAPSED, "external", Decision.TAKE)
    first_caught(Check.ONE_EFFECT)


@pytest.mark.parametrize("event", [Transition.COMPLETE, Transition.FAIL, Transition.DOUBT, Transition.RELEASE])
def test_a_settled_record_is_written_again(monkeypatch: pytest.MonkeyPatch, event: Transition) -> None:
    allow(monkeypatch, event, EffectiveState.COMPLETED, EffectiveState.FAILED, EffectiveState.RELEASED)
    monkeypatch.setattr(transitions, "_match_owner", lambda record, ownership: None)
    first_caught(Check.SETTLED)


def test_completed_is_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    allow(monkeypatch, Transition.CLAIM, EffectiveState.COMPLETED)
    decide_instead(monkeypatch, lambda _, __, was: Decision.TAKE if was is Decision.REPLAY else was)
    first_caught(Check.REPLAY)


@pytest.mark.parametrize("standing", [EffectiveState.LAPSED, EffectiveState.UNKNOWN, EffectiveState.EXPIRED])
def test_a_sweep_removes_more_than_is_forgotten(monkeypatch: pytest.MonkeyPatch, standing: EffectiveState) -> None:
    allow(monkeypatch, Transition.SWEEP, standing)
    first_caught(Check.KEPT, plan=PLAN._replace(clocks=PLAN.clocks._replace(memory=4 * PLAN.clocks.window)))


def test_a_running_record_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Record.effective_state_at

    def effective_state_at(record: Record, now: int) -> EffectiveState:
        if record.state is State.RUNNING and record.expires <= now:
            return EffectiveState.EXPIRED
        return real(record, now)

    monkeypatch.setattr(Record, "effective_state_at", effective_state_at)
    first_caught(Check.BLIND)


def test_a_lapsed_lease_is_never_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(decisions._LAPSED, "keyed", Decision.BUSY)
    first_caught(Check.STUCK)


def test_released_keys_stay_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(decisions._BY_STATE, EffectiveState.RELEASED, Decision.BUSY)
    first_caught(Check.STUCK, plan=PLAN._replace(clocks=PLAN.clocks._replace(window=10**9, memory=10**9)))


class ClaimsUnconditionally(MemoryStore):
    """Writes the first record over whatever is there."""

    def claim(self, want: ClaimRequest) -> Ask[Record | None]:
        def step(records: dict[bytes, Record], now: Micros) -> Record:
            record = records[want.key] = transitions.first_claim(want, now)
            return record

        return Ask(step, lambda answer: answer)


def test_a_claim_overwrites_what_is_there() -> None:
    first_caught(Check.REPLAY, ClaimsUnconditionally())


def test_keys_for_calls_downstream_depend_on_the_attempt() -> None:
    first_caught(Check.ONE_EFFECT, parts=Parts(key_for=lambda held: keys.derive(None, held.key, held.attempt)))


def test_a_transient_failure_releases_an_external_effect() -> None:
    def settlement_of(ending: Ending, ground: ModeKind) -> Settlement:
        return outcomes.settlement_of(ending, ModeKind.KEYED if ending is Ending.TRANSIENT else ground)

    first_caught(Check.ONE_EFFECT, parts=Parts(settlement_of=settlement_of))


def test_an_effect_that_was_committed_is_released() -> None:
    def settlement_of(ending: Ending, ground: ModeKind) -> Settlement:
        return outcomes.settlement_of(Ending.NOT_EXECUTED if ending is Ending.COMMITTED else ending, ground)

    first_caught(Check.TRUTH, parts=Parts(settlement_of=settlement_of))
