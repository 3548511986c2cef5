"""The register of the cases: one per rule."""

from __future__ import annotations

from collections.abc import Callable

from retrysafe.conformance.harness import ServerHarness
from retrysafe.conformance.rules import RULES

Case = Callable[[ServerHarness], None]
CASES: dict[str, Case] = {}


def case(rule: str) -> Callable[[Case], Case]:
    """Register the case of a rule; what it needs and where it applies stands in `RULES`."""

    def register(function: Case) -> Case:
        assert RULES[rule].visible, rule
        assert rule not in CASES, rule
        CASES[rule] = function
        return function

    return register
