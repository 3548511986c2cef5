"""A seeded simulation of the protocol: the shipping programs over a store, under every fault there is.

    report = simulate(seed)
    assert report.ok, str(report)

Everything follows from the seed and the plan: who comes when, which message is lost, delayed or applied twice, who
crashes, pauses beyond the lease or is cancelled, when the store's clock jumps and when a sweep runs.
Every write, effect and answer is judged against the promises (`Check`). Then the faults end, and every retry must get
its answer. A report prints its whole plan and the command that plays it again.
"""

from __future__ import annotations

from tests.laboratory.simulation.acting import Parts
from tests.laboratory.simulation.judging import LIVENESS, Check, Violation
from tests.laboratory.simulation.network import Injected
from tests.laboratory.simulation.plan import PLAN, PLANS, Fault, Plan
from tests.laboratory.simulation.report import Report
from tests.laboratory.simulation.schedule import PARTS, Script, simulate
from tests.laboratory.simulation.survey import Survey, survey
from tests.laboratory.simulation.world import Subject

__all__ = [
    "LIVENESS",
    "PARTS",
    "PLAN",
    "PLANS",
    "Check",
    "Fault",
    "Injected",
    "Parts",
    "Plan",
    "Report",
    "Script",
    "Subject",
    "Survey",
    "Violation",
    "simulate",
    "survey",
]
