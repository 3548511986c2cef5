"""Every state that a few attempts can reach: no promise is broken in any, and breaks are found."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from retrysafe.errors import IllegalTransition
from retrysafe.protocol import decisions, transitions
from retrysafe.protocol.decisions import Decision
from retrysafe.protocol.records import Clocks, EffectiveState, Ownership, Record
from retrysafe.protocol.transitions import Rule, Transition
from tests.laboratory.simulation.judging import Check
from tests.protocol.search import Size, search
from tests.tables import each_row

SIZES = {
    "two keyed attempts, a duplicate": (Size("keyed"), 40_000),
    "two external attempts, a duplicate": (Size("external"), 50_000),
    "two keyed attempts that ask again": (Size("keyed", ticks=3, resends=1, duplicates=0), 35_000),
    "two external attempts that ask again": (Size("external", ticks=3, resends=1, duplicates=0), 40_000),
    "three keyed attempts": (Size("keyed", attempts=3, ticks=2, duplicates=0), 29_000),
    "three external attempts": (Size("external", attempts=3, ticks=2, duplicates=0), 20_000),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SIZES)
def test_no_state_breaks_a_promise(name: str, record_property: Callable[[str, object], None]) -> None:
    size, at_least = SIZES[name]
    found = search(size)
    record_property("states", found.states)
    assert found.violation is None, "\n".join((*found.path, str(found.violation)))
    assert found.states >= at_least


@pytest.mark.slow
@pytest.mark.one_of("slow tests")
def test_a_clock_behind_by_more_than_the_memory_repeats_tokens_and_nothing_else() -> None:
    """The limit of the promise: the token repeats, and the attempt id still keeps the writes apart."""
    size = Size("keyed", ticks=2, jumps=(-2,), clocks=Clocks(lease=1, window=1, memory=1))
    found = search(size)
    assert found.violation is not None
    assert found.violation.check is Check.TOKENS
    assert search(size, checks={Check.NAMED, Check.SETTLED, Check.REPLAY, Check.KEPT}).violation is None


def _only_attempt(record: Record, ownership: Ownership) -> None:
    if record.attempt != ownership.attempt:
        raise IllegalTransition


def _only_token(record: Record, ownership: Ownership) -> None:
    if record.token != ownership.token:
        raise IllegalTransition


def test_a_fence_without_the_token_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A late duplicate of a claim makes a record of the same attempt anew after the sweep."""
    size = Size("keyed", attempts=1, ticks=2, resends=1)
    assert search(size).violation is None
    monkeypatch.setattr(transitions, "_match_owner", _only_attempt)
    found = search(size)
    assert found.violation is not None
    assert found.violation.check is Check.NAMED


def test_a_fence_without_the_attempt_id_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token repeats after the clock went back too far, and only the attempt id tells two owners apart."""
    size = Size("keyed", ticks=2, jumps=(-2,), clocks=Clocks(lease=1, window=1, memory=1))
    monkeypatch.setattr(transitions, "_match_owner", _only_token)
    found = search(size, checks={Check.NAMED})
    assert found.violation is not None


BREAKS = {
    "running is claimed": (Transition.CLAIM, EffectiveState.RUNNING, Check.LEASE),
    "completed is claimed": (Transition.CLAIM, EffectiveState.COMPLETED, Check.SETTLED),
    "completed is completed again": (Transition.COMPLETE, EffectiveState.COMPLETED, Check.SETTLED),
    "running is swept": (Transition.SWEEP, EffectiveState.RUNNING, Check.KEPT),
    "lapsed is swept": (Transition.SWEEP, EffectiveState.LAPSED, Check.KEPT),
    "unknown is swept": (Transition.SWEEP, EffectiveState.UNKNOWN, Check.KEPT),
    "running is suspected": (Transition.SUSPECT, EffectiveState.RUNNING, Check.LEASE),
    "unknown is claimed": (Transition.CLAIM, EffectiveState.UNKNOWN, Check.BLIND),
}
_EAGER = {
    EffectiveState.RUNNING: Decision.TAKE,
    EffectiveState.COMPLETED: Decision.TAKE,
    EffectiveState.UNKNOWN: Decision.TAKE,
}


@each_row("name", BREAKS)
def test_a_rule_too_many_is_found(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    event, standing, check = BREAKS[name]
    rule = transitions.RULES[event]
    broken = Rule(rule.sources | {standing}, rule.target, rule.guard)
    monkeypatch.setitem(transitions.RULES, event, broken)
    if event is Transition.CLAIM:
        monkeypatch.setitem(decisions._BY_STATE, standing, _EAGER[standing])
    if event is Transition.SUSPECT:
        monkeypatch.setitem(decisions._BY_STATE, standing, Decision.SUSPECT)
    found = search(Size("external"))
    assert found.violation is not None
    assert found.violation.check is check


def test_a_takeover_of_an_external_attempt_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(decisions._LAPSED, "external", Decision.TAKE)
    found = search(Size("external"), checks={Check.ONE_EFFECT})
    assert found.violation is not None


def test_a_fence_that_compares_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transitions, "_match_owner", lambda record, ownership: None)
    found = search(Size("keyed"))
    assert found.violation is not None
    assert found.violation.check is Check.NAMED
