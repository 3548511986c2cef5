"""The seeded simulation of the shipping programs: a hundred thousand schedules keep every promise."""

from __future__ import annotations

import pytest

from retrysafe.core.transitions import Event
from retrysafe.ports import Ask
from retrysafe.stores.memory import MemoryStore
from retrysafe.testing.simulation import PLAN, Fault, Plan, simulate, survey
from retrysafe.types import Clocks, Held, Record, Stored, Want

CHUNK = 10_000

SIGHTS = {
    "claimed": 9_000,
    "claimed when released": 2_000,
    "claimed when running": 1_000,
    "claimed after its window": 5_000,
    "complete": 10_000,
    "fail": 500,
    "release": 1_500,
    "renew": 5_000,
    "suspect": 700,
    "resolve completed": 800,
    "resolve failed": 200,
    "resolve released": 400,
    "swept": 150,
    "replayed": 10_000,
    "busy": 3_000,
    "reused": 2_000,
    "fenced": 100,
    "recognised downstream": 3_000,
    "lease lost": 150,
    "lease lost in time": 150,
    "unrecorded": 80,
}
"""What ten thousand schedules must have come across at least so often, or they prove little."""


@pytest.mark.parametrize("chunk", range(10))
def test_a_hundred_thousand_schedules_keep_every_promise(chunk: int) -> None:
    seen = survey(range(chunk * CHUNK, (chunk + 1) * CHUNK))
    assert not seen.failures, str(seen.failures[0])
    assert seen.seeds == CHUNK
    assert seen.faulty > 0.95 * CHUNK
    assert {fault: seen.faults[fault] for fault in Fault if seen.faults[fault] < 3_000} == {}
    assert {sight: seen.seen[sight] for sight, least in SIGHTS.items() if seen.seen[sight] < least} == {}


PLANS = {
    "keyed only, six workers, many faults": PLAN._replace(workers=6, effects=("keyed",), chance=0.6),
    "external only, six workers, many faults": PLAN._replace(workers=6, effects=("external",), chance=0.6),
    "several keys": PLAN._replace(workers=6, keys=3),
    "payloads differ half the time": PLAN._replace(intruder=0.5),
    "key memory beyond the window": PLAN._replace(clocks=Clocks(lease=1000, window=1500, memory=3000)),
    "duplicates and delays only": PLAN._replace(faults=(Fault.DUPLICATED, Fault.DELAYED), chance=0.6),
    "crashes and pauses only": PLAN._replace(
        faults=(Fault.CRASHED_BEFORE, Fault.CRASHED_AFTER, Fault.PAUSED_BEFORE, Fault.PAUSED_AFTER), chance=0.6
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_other_plans_keep_every_promise(name: str) -> None:
    plan = PLANS[name]
    seen = survey(range(1_500), plan=plan)
    assert not seen.failures, str(seen.failures[0])
    assert set(plan.faults) <= set(seen.faults)


def test_without_faults_every_worker_is_answered_and_nothing_is_in_doubt() -> None:
    seen = survey(range(500), plan=Plan(faults=(), intruder=0.0))
    assert not seen.failures
    assert seen.faulty == 0
    assert seen.seen["suspect"] == seen.seen["fenced"] == 0


def test_a_seed_gives_the_same_schedule_again() -> None:
    assert [str(simulate(seed)) for seed in range(50)] == [str(simulate(seed)) for seed in range(50)]
    assert str(simulate(1)) != str(simulate(2))


class Forgetful(MemoryStore):
    """Completes nothing, so that every schedule fails."""

    def settle(self, held: Held, event: Event, result: Stored | None) -> Ask[bool]:
        return super().settle(held._replace(token=0), event, result)


def test_the_report_of_a_failing_seed_tells_the_story() -> None:
    report = simulate(3, store=Forgetful())
    assert not report.ok
    story = str(report)
    assert story.startswith("seed 3\n")
    assert "claim: running by" in story
    assert "effect happened" in story
    assert "BROKEN: every retry is answered in the end" in story


def test_an_operator_may_settle_an_effect_before_its_attempt_is_over() -> None:
    seen = survey(range(4_000), plan=PLAN._replace(effects=("external",), hasty=1.0))
    assert not seen.failures, str(seen.failures[0])


def test_a_word_about_a_swept_record_does_not_settle_the_next_one() -> None:
    """The operator's word comes after the sweep, and so did a late duplicate of the attempt's first claim."""
    store, records, clocks = MemoryStore(), dict[bytes, Record](), Clocks(lease=10, window=20, memory=20)
    want = Want(b"key", "b", "", "op", b"", "a", "external", clocks)

    def claim_and_suspect(now: int) -> Record:
        seen = store.claim(want).request(records, now)
        assert store.resolve(seen, Event.SUSPECT, None, clocks).request(records, now + 10)
        return records[b"key"]

    unknown = claim_and_suspect(100)
    assert store.resolve(unknown, Event.RESOLVE_RELEASED, None, clocks).request(records, 120)
    assert [ask.request(records, 150) for ask in store.sweep(1)] == [1]
    claim_and_suspect(200)
    late = store.resolve(unknown, Event.RESOLVE_COMPLETED, Stored(b"late", "t", 1), clocks)
    assert not late.request(records, 220)
