"""The seeded simulation of the shipping programs: every schedule of every plan keeps every promise.

Some seeds are the same in every run, the others are new in each; what fails says how to play it again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from random import Random

import pytest

from retrysafe.backends.memory.store import MemoryStore
from retrysafe.protocol.records import ClaimRequest, Clocks, Ownership, Record, StoredResult
from retrysafe.protocol.requests import Ask
from retrysafe.protocol.transitions import Transition
from tests.laboratory.simulation import PLAN, PLANS, Fault, Plan, Report, Script, Survey, simulate, sqlite, survey
from tests.laboratory.simulation.shrinking import shrink
from tests.proving.effort import effort
from tests.proving.plugin import Record as Take
from tests.proving.proofs import Proof
from tests.tables import each_row

BASIC = effort(1_500, 100_000)
"""The number of schedules of the basic plan, from seeds that are always the same and from new ones each."""
EACH = effort(150, 3_000)
"""The number of schedules of each other plan: fixed ones, and as many new ones."""

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
    "operator settled": 1_500,
    "swept": 100,
    "replayed": 10_000,
    "busy": 3_000,
    "reused": 2_000,
    "fenced": 100,
    "recognised downstream": 3_000,
    "lease lost": 150,
    "lease lost in time": 150,
    "result_not_stored": 80,
}
"""The sights that ten thousand schedules must have come across at least so often, or they prove little."""

SIGHTS_OF = {
    "probes": {
        "probed": 200,
        "probe settled": 100,
        "probe came too late": 4,
        "probe raised": 10,
        "probe got no answer": 20,
        "probe could not tell": 15,
        "operator settled": 50,
    },
    "sweeper": {"swept": 500, "another batch": 300, "sweep failed": 200},
    "archive": {"swept": 500, "another batch": 150, "sweep failed": 200, "archived twice": 40},
    "layered": {"answered nearby": 400, "expired": 50, "not kept nearby": 40},
    "lying cache": {"answered nearby": 400, "expired": 50},
    "two versions": {
        "schema became 2": 1000,  # in every schedule
        "schema became 3": 1000,
        "migration failed": 2000,
        "schema outdated": 500,
        "unreadable": 20,
        "reused across versions": 150,
    },
    "quota": {"refused": 3000, "claimed": 1500},
    "everything": {
        "probed": 150,
        "swept": 1000,
        "archived twice": 150,
        "answered nearby": 300,
        "schema outdated": 500,
        "unreadable": 20,
        "operator settled": 100,
    },
}
"""The same for the other plans, in a thousand schedules; about a quarter of what is usual."""

WORDS = {
    Fault.UNSENT: ("request never sent", (34,)),
    Fault.REQUEST_LOST: ("request lost", (13,)),
    Fault.REPLY_LOST: ("reply lost", (2, 14)),
    Fault.DELAYED: ("applied late", (15, 17)),
    Fault.DUPLICATED: ("duplicate", (16,)),
    Fault.CRASHED_BEFORE: ("worker killed", (1, 3, 12)),
    Fault.CRASHED_AFTER: ("worker killed", (3, 5, 12)),
    Fault.PAUSED_BEFORE: ("frozen beyond the lease", (15, 64)),
    Fault.PAUSED_AFTER: ("frozen beyond the lease", (15, 64)),
    Fault.CANCELLED: ("cancelled", (89,)),
    Fault.CLOCK_JUMPED: ("clock jumped", (60, 61, 62)),
    Fault.SWEPT: ("swept meanwhile", (79,)),
    Fault.EVICTED: ("cache lost the key", ()),
    Fault.STALE: ("cache stale", ()),
}
"""The proofs' names of faults, and their rows in the catalogue."""

SITUATIONS = {
    "sweep failed": ("sweeper killed or cut off", (80, 81)),
    "schema outdated": ("schema too old for a worker", (83,)),
    "schema became 2": ("migrated under traffic", (82,)),
    "unreadable": ("result of a later version", (72,)),
    "probe got no answer": ("probe dies", (5,)),
    "refused": ("quota full", (75,)),
}
"""The same for what is no fault of a message."""


def take_down(seen: Survey, plan: Plan, proof: Take, store: str = "memory") -> None:
    """Report what the schedules injected."""
    mode = plan.effects[0] if len(plan.effects) == 1 else ""
    for fault, number in seen.faults.items():
        proof(Proof("simulation", store, mode, WORDS[fault][0], number, rows=WORDS[fault][1]))
    for sight, (words, rows) in SITUATIONS.items():
        if number := seen.seen[sight]:
            proof(Proof("simulation", store, mode, words, number, rows=rows))


def told(report: Report) -> str:
    """A failing schedule, cut down to what it takes."""
    small = shrink(report, lambda script: simulate(report.seed, plan=report.plan, script=script))
    return f"{small}\nuncut:  {report.command}"


def check(seen: Survey, asked: int) -> None:
    """Every promise was kept."""
    assert not seen.failures, told(seen.failures[0])
    assert seen.seeds == asked


def lacking(seen: Survey, sights: dict[str, int], schedules: int) -> dict[str, int]:
    """Return the sights that were rarer than ``sights`` says of so many schedules."""
    share = seen.seeds / schedules
    return {sight: seen.seen[sight] for sight, least in sights.items() if seen.seen[sight] < least * share}


# ---------------------------------------------------------------- the plans


@pytest.mark.slow
@pytest.mark.one_of("slow tests")
@pytest.mark.fault(1, 2, 3, 5, 12, 13, 14, 15, 16, 17, 60, 61, 62, 64, 79, 89)
def test_fixed_schedules_of_the_basic_plan_keep_every_promise(proof: Take) -> None:
    seen = survey(range(BASIC))
    check(seen, BASIC)
    assert seen.faulty > 0.95 * BASIC
    assert lacking(seen, SIGHTS, 10_000) == {}
    assert {fault: seen.faults[fault] for fault in PLAN.faults if seen.faults[fault] < 0.2 * BASIC} == {}
    take_down(seen, PLAN, proof)


@pytest.mark.fault(1, 2, 3, 5, 12, 13, 14, 15, 16, 17, 60, 61, 62, 64, 79, 89)
def test_new_schedules_of_the_basic_plan_keep_every_promise(chance: Random, proof: Take) -> None:
    start = chance.randrange(10**6, 10**9)
    seen = survey(range(start, start + BASIC))
    check(seen, BASIC)
    take_down(seen, PLAN, proof)


@pytest.mark.slow
@pytest.mark.fault(1, 2, 3, 5, 12, 13, 14, 15, 16, 17, 60, 61, 62, 64, 72, 75, 79, 80, 81, 82, 83, 89)
@pytest.mark.parametrize("name", [name for name in PLANS if name != "basic"])
def test_schedules_of_every_other_plan_keep_every_promise(name: str, chance: Random, proof: Take) -> None:
    plan, start = PLANS[name], chance.randrange(10**6, 10**9)
    fixed, new = survey(range(EACH), plan=plan), survey(range(start, start + EACH), plan=plan)
    for seen in (fixed, new):
        check(seen, EACH)
        take_down(seen, plan, proof)
    assert lacking(fixed, SIGHTS_OF.get(name, {}), 1_000) == {}
    assert set(plan.faults) <= set(fixed.faults)


@pytest.mark.slow
@pytest.mark.fault(1, 2, 3, 5, 12, 13, 14, 15, 16, 17, 60, 61, 62, 64, 79, 89)
@pytest.mark.parametrize("name", PLANS)
def test_the_statements_of_sqlite_keep_every_promise(name: str, chance: Random, proof: Take) -> None:
    start, count = chance.randrange(10**6, 10**9), effort(10, 400)
    seen = survey(range(start, start + count), plan=PLANS[name], subject=sqlite.subject)
    assert not seen.failures, f"{seen.failures[0]} --store tests.laboratory.simulation.sqlite:subject"
    take_down(seen, PLANS[name], proof, store="sqlite")


def test_without_faults_every_worker_is_answered_and_nothing_is_in_doubt() -> None:
    seen = survey(range(500), plan=Plan(faults=(), intruder=0.0))
    assert not seen.failures
    assert seen.faulty == 0
    assert seen.seen["suspect"] == seen.seen["fenced"] == 0


def test_an_operator_may_settle_an_effect_before_its_attempt_is_over() -> None:
    seen = survey(range(effort(700, 20_000)), plan=PLAN._replace(effects=("external",), hasty=1.0))
    assert not seen.failures, told(seen.failures[0])


@pytest.mark.fault(20, 79)
def test_tokens_increase_over_a_sweep_at_the_edge_of_what_is_promised(chance: Random) -> None:
    """The clock is off by nearly a quarter of the key memory."""
    plan = PLAN._replace(clocks=Clocks(lease=1000, window=1500, memory=2400), skew=599, chance=0.5)
    start = chance.randrange(10**9)
    seen = survey(range(start, start + effort(500, 10_000)), plan=plan)
    assert not seen.failures, told(seen.failures[0])


# ---------------------------------------------------------------- the same seed, the same schedule


def test_a_seed_gives_the_same_schedule_again() -> None:
    assert [str(simulate(seed)) for seed in range(50)] == [str(simulate(seed)) for seed in range(50)]
    assert str(simulate(1)) != str(simulate(2))


@pytest.mark.slow
def test_a_seed_gives_the_same_schedule_whatever_the_hashes_are() -> None:
    code = (
        "import hashlib; from tests.laboratory.simulation import PLANS, simulate\n"
        "told = ''.join(str(simulate(seed, plan=plan)) for plan in PLANS.values() for seed in range(5))\n"
        "print(hashlib.sha256(told.encode()).hexdigest())"
    )

    def digest(hashes: str) -> bytes:
        environment = {**os.environ, "PYTHONHASHSEED": hashes}
        return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True).stdout

    assert digest("1") == digest("2") != b""


@each_row("name", PLANS)
def test_a_schedule_follows_from_its_seed_and_its_faults(name: str) -> None:
    for seed in range(10):
        drawn = simulate(seed, plan=PLANS[name])
        given = simulate(seed, plan=PLANS[name], script=Script(drawn.injected))
        assert str(given).rpartition("again:")[0] == str(drawn).rpartition("again:")[0]
        assert (given.seen, given.injected) == (drawn.seen, drawn.injected)


# ---------------------------------------------------------------- what a failure tells


class Forgetful(MemoryStore):
    """Completes nothing, so that every schedule fails."""

    def settle(self, ownership: Ownership, event: Transition, result: StoredResult | None) -> Ask[bool]:
        return super().settle(ownership._replace(token=0), event, result)


def test_the_report_of_a_failing_seed_tells_the_story() -> None:
    report = simulate(3, store=Forgetful())
    assert not report.ok
    story = str(report)
    assert story.startswith("seed 3, plan basic\n")
    assert "a works on key0 with 'payload'" in story
    assert f"{len(report.injected)} faults" in story
    assert str(report.injected[0]) in story
    assert "claim: running by" in story
    assert "effect happened" in story
    _, liveness = story.split("liveness, after the last fault:")
    assert "BROKEN: every retry is answered in the end" in liveness
    assert "again:  python -m tests.laboratory.simulation --seed 3 --plan basic" in story


def test_safety_and_liveness_are_told_apart() -> None:
    report = simulate(3, store=Forgetful())
    assert report.liveness
    assert {*report.safety, *report.liveness} == {*report.violations}
    assert simulate(3).answered_after is not None
    assert report.answered_after is None


def test_a_word_about_a_swept_record_does_not_settle_the_next_one() -> None:
    """The operator's word comes after the sweep, and so did a late duplicate of the attempt's first claim."""
    store, records, clocks = MemoryStore(), dict[bytes, Record](), Clocks(lease=10, window=20, memory=20)
    want = ClaimRequest(b"key", "b", "", "op", b"", "a", "external", clocks)

    def claim_and_suspect(now: int) -> Record:
        seen = store.claim(want).request(records, now)
        assert store.resolve(seen, Transition.SUSPECT, None, clocks).request(records, now + 10)
        return records[b"key"]

    unknown = claim_and_suspect(100)
    assert store.resolve(unknown, Transition.RESOLVE_RELEASED, None, clocks).request(records, 120)
    assert [ask.request(records, 150) for ask in store.sweep(1)] == [1]
    claim_and_suspect(200)
    late = store.resolve(unknown, Transition.RESOLVE_COMPLETED, StoredResult(b"late", "t", 1), clocks)
    assert not late.request(records, 220)
