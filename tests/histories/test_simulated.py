"""Two judges of one simulation: the one that watches every write, and the checker, which knows only the answers."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from retrysafe.backends.memory.store import MemoryStore
from retrysafe.protocol import decisions, transitions
from retrysafe.protocol.decisions import Decision
from retrysafe.protocol.records import EffectiveState, Ownership, Record, StoredResult
from retrysafe.protocol.requests import Ask
from retrysafe.protocol.store import Store
from retrysafe.protocol.transitions import Transition
from tests.laboratory.histories import Operation
from tests.laboratory.linearizability import Traits, check
from tests.laboratory.simulation import PLAN, PLANS, Plan, simulate
from tests.protocol.test_mutants import (
    ClaimsUnconditionally,
    ClearsOnRelease,
    DeletesOnRelease,
    JudgesLeasesByTheWorker,
    allow,
    decide_instead,
)
from tests.proving.effort import effort
from tests.proving.proofs import Proof

pytestmark = [pytest.mark.fault(2, 12, 14, 15, 16, 17, 61, 62, 64)]

JUMPING = Traits(skew=2 * PLAN.skew)
"""The clock may be off by so much to one side, and then to the other."""
Prove = Callable[[Proof], None]


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_both_judges_find_nothing_in_the_shipping_protocol(name: str, chance: Random, proof: Prove) -> None:
    first, seeds, operations = chance.randrange(10**9), effort(80, 1_500), 0
    for seed in range(first, first + seeds):
        history: list[Operation] = []
        report = simulate(seed, plan=PLANS[name], history=history)
        assert report.ok, str(report)
        broken = check(history, JUMPING)
        assert not broken, f"seed {seed} of {name!r}:\n{broken[0]}"
        operations += len(history)
    for fault, count in (("simulated schedule", seeds), ("operation of simulated schedules", operations)):
        proof(Proof("histories", "", "", fault, count))


class SettlesWithoutWord(MemoryStore):
    """Says that it has settled what it has not."""

    def settle(self, ownership: Ownership, event: Transition, result: StoredResult | None) -> Ask[bool]:
        ask = super().settle(ownership, event, result)
        return Ask(lambda records, now: ask.request(dict(records), now), ask.parse)


class ReadsFromAReplica(MemoryStore):
    """Reads what was there at the read before."""

    def __init__(self) -> None:
        self._kept: dict[bytes, Record] = {}

    def read(self, key: bytes) -> Ask[Record | None]:
        ask = super().read(key)

        def step(records: dict[bytes, Record], now: int) -> Record | None:
            lagging: Record | None = ask.request(self._kept, now)
            self._kept = dict(records)
            return lagging

        return Ask(step, ask.parse)


def _unfenced(patch: pytest.MonkeyPatch) -> Store:
    patch.setattr(transitions, "_match_owner", lambda record, ownership: None)
    return MemoryStore()


def _unseen(patch: pytest.MonkeyPatch) -> Store:
    patch.setattr(transitions, "_match_seen", lambda record, seen: None)
    return MemoryStore()


def _settled_again(patch: pytest.MonkeyPatch) -> Store:
    for event in (Transition.COMPLETE, Transition.FAIL, Transition.DOUBT, Transition.RELEASE):
        allow(patch, event, EffectiveState.COMPLETED, EffectiveState.FAILED, EffectiveState.RELEASED)
    return _unfenced(patch)


def _completed_again(patch: pytest.MonkeyPatch) -> Store:
    allow(patch, Transition.CLAIM, EffectiveState.COMPLETED)
    decide_instead(patch, lambda _, __, was: Decision.TAKE if was is Decision.REPLAY else was)
    return MemoryStore()


def _unknown_again(patch: pytest.MonkeyPatch) -> Store:
    allow(patch, Transition.CLAIM, EffectiveState.UNKNOWN)
    decide_instead(patch, lambda _, __, was: Decision.TAKE if was is Decision.DOUBT else was)
    return MemoryStore()


def _live_taken(patch: pytest.MonkeyPatch) -> Store:
    allow(patch, Transition.CLAIM, EffectiveState.RUNNING)
    patch.setitem(decisions._BY_STATE, EffectiveState.RUNNING, Decision.TAKE)
    return MemoryStore()


def _revived(patch: pytest.MonkeyPatch) -> Store:
    allow(patch, Transition.RENEW, EffectiveState.LAPSED)
    return MemoryStore()


def _same_token(patch: pytest.MonkeyPatch) -> Store:
    patch.setattr(transitions, "next_token", lambda previous, now: previous or now)
    return MemoryStore()


def _swept_early(patch: pytest.MonkeyPatch) -> Store:
    allow(patch, Transition.SWEEP, EffectiveState.LAPSED, EffectiveState.UNKNOWN, EffectiveState.COMPLETED)
    return MemoryStore()


BREAKS: dict[str, Callable[[pytest.MonkeyPatch], Store]] = {
    "a terminal write is not fenced": _unfenced,
    "a record is written although it changed since it was seen": _unseen,
    "a settled record is written again": _settled_again,
    "completed is run again": _completed_again,
    "unknown is run again blindly": _unknown_again,
    "a live lease is taken": _live_taken,
    "a renewal revives a lapsed lease": _revived,
    "a takeover keeps the token": _same_token,
    "a sweep removes more than is forgotten": _swept_early,
    "the row is deleted on release": lambda patch: DeletesOnRelease(),
    "a release clears the token": lambda patch: ClearsOnRelease(token=0),
    "a release clears the fingerprint": lambda patch: ClearsOnRelease(fingerprint=b""),
    "the clock of a worker decides leases": lambda patch: JudgesLeasesByTheWorker(),
    "a claim overwrites what is there": lambda patch: ClaimsUnconditionally(),
    "a settlement is acknowledged and not made": lambda patch: SettlesWithoutWord(),
    "a read lags behind": lambda patch: ReadsFromAReplica(),
}
INVISIBLE = {"a read lags behind"}
"""To the judge of writes: no write is wrong."""
LONG: Plan = PLAN._replace(clocks=PLAN.clocks._replace(memory=4 * PLAN.clocks.window))


@pytest.mark.one_of("seconds of a core", of=3)
@pytest.mark.parametrize("name", BREAKS)
def test_both_judges_find_a_broken_store(name: str, monkeypatch: pytest.MonkeyPatch, chance: Random) -> None:
    """The store is broken while the simulation runs; the checker judges by the table as it ships."""
    plan = LONG if "sweep" in name else PLAN
    first = chance.randrange(10**9)
    by_writes = by_answers = 0
    for seed in range(first, first + 3_000):
        history: list[Operation] = []
        with monkeypatch.context() as patch:
            report = simulate(seed, store=BREAKS[name](patch), plan=plan, history=history)
        by_writes += not report.ok
        by_answers += bool(check(history, JUMPING))
        if by_answers and (by_writes or name in INVISIBLE):
            return
    pytest.fail(f"in 3,000 seeds from {first} on, the judge found {by_writes} and the checker {by_answers}")
