"""The kit finds six bugs that are often written, and passes their fixed twins."""

from __future__ import annotations

from functools import partial

import pytest

from retrysafe.testing.crashing import Action, crash_points
from tests.crashing.conftest import Stage
from tests.crashing.planted import BUGS
from tests.proving.plugin import Record
from tests.proving.proofs import Proof

FAULTS = {
    Action.CRASH_BEFORE: "worker killed before a call",
    Action.CRASH_AFTER: "worker killed, reply lost",
    Action.CANCEL: "cancelled",
    Action.FREEZE: "frozen beyond the lease",
    Action.OVERLAP: "duplicate",
}
explored = partial(crash_points, pairs=5)


@pytest.mark.one_of("handlers that crash at every call", of=3)
@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_the_planted_bug_is_found(bug: str, stage: Stage) -> None:
    planted = BUGS[bug]
    report = explored(planted.buggy, fresh=stage.fresh, check=stage.check)
    assert not report.ok
    found = {
        violation.point.action.value
        for violation in report.violations
        if violation.boundary is not None and planted.at in violation.boundary.label
    }
    assert planted.shown_by <= found, str(report)
    assert planted.buggy.__code__.co_filename.endswith(report.violations[0].boundary.place.file)  # type: ignore[union-attr]


@pytest.mark.one_of("handlers that crash at every call", of=3)
@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_the_fixed_twin_passes(bug: str, stage: Stage, proof: Record) -> None:
    report = explored(BUGS[bug].fixed, fresh=stage.fresh, check=stage.check)
    assert report.ok, str(report)
    assert not report.unseen
    assert f"exhaustive for single crashes at {len(report.boundaries)} boundaries" in str(report)
    assert report.points == 5 * len(report.boundaries) + 1
    store = "sqlite" if stage.is_sqlite else "postgresql"
    for action in Action:
        proof(Proof(part="crash points", store=store, mode="", fault=FAULTS[action], injected=len(report.boundaries)))
