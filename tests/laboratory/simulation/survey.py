"""Many schedules, and what they did together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from retrysafe.protocol.records import Micros
from retrysafe.protocol.store import OperableStore
from tests.laboratory.simulation.acting import Parts
from tests.laboratory.simulation.plan import PLAN, Fault, Plan
from tests.laboratory.simulation.report import Report
from tests.laboratory.simulation.schedule import PARTS, simulate
from tests.laboratory.simulation.world import Clock, Subject, memory


class Survey(NamedTuple):
    """The result of many schedules; ``failures`` holds the reports of the first failing seeds."""

    seeds: int
    faulty: int
    faults: Counter[Fault]
    seen: Counter[str]
    failures: tuple[Report, ...]
    longest: Micros = 0
    """The longest time from the end of faults to the last answer."""

    def plus(self, other: Survey) -> Survey:
        """Both together."""
        return Survey(
            self.seeds + other.seeds,
            self.faulty + other.faulty,
            self.faults + other.faults,
            self.seen + other.seen,
            self.failures + other.failures,
            max(self.longest, other.longest),
        )


NOTHING = Survey(0, 0, Counter(), Counter(), ())


def survey(
    seeds: Iterable[int],
    *,
    store: OperableStore | None = None,
    plan: Plan = PLAN,
    parts: Parts = PARTS,
    subject: Callable[[Clock], Subject] = memory,
    stop_after: int = 3,
) -> Survey:
    """Run many schedules, until ``stop_after`` of them have failed."""
    count = faulty = 0
    faults: Counter[Fault] = Counter()
    seen: Counter[str] = Counter()
    failures: list[Report] = []
    longest = 0
    for seed in seeds:
        report = simulate(seed, store=store, plan=plan, parts=parts, subject=subject)
        count += 1
        faulty += bool(report.faults)
        for fault, number in report.faults.items():
            faults[fault] += number
        for sight, number in report.seen.items():
            seen[sight] += number
        longest = max(longest, report.answered_after or 0)
        if not report.ok:
            failures.append(report)
            if len(failures) >= stop_after:
                break
    return Survey(count, faulty, faults, seen, tuple(failures), longest)
