"""A seeded simulation of the protocol: the shipping programs over a store, under every fault there is.

    report = simulate(seed)
    assert report.ok, str(report)

Everything follows from the seed and the plan: who comes when, which message is lost, delayed or applied twice, who
crashes, pauses beyond the lease or is cancelled, when the store's clock jumps and when a sweep runs.
Every write, effect and answer is judged against the promises (`Check`). Then the faults end, and every retry must get
its answer. A report prints its whole plan and the command that plays it again.
"""

from __future__ import annotations

from retrysafe.testing.simulation.acting import Parts
from retrysafe.testing.simulation.judging import LIVENESS, Check, Violation
from retrysafe.testing.simulation.network import Injected
from retrysafe.testing.simulation.plan import PLAN, PLANS, Fault, Plan
from retrysafe.testing.simulation.report import Report
from retrysafe.testing.simulation.schedule import PARTS, Script, simulate
from retrysafe.testing.simulation.survey import Survey, survey
from retrysafe.testing.simulation.world import Subject

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
