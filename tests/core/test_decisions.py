"""The decisions of an attempt about the record in its way: every standing, effects mode and payload."""

from __future__ import annotations

from itertools import product

from retrysafe.protocol.decisions import Decision, decide
from retrysafe.protocol.fingerprint import Secrets, of_parts
from retrysafe.protocol.records import EffectiveState, Effects, OnExpired, Record
from tests.core.test_transitions import at, want
from tests.tables import each_row

MODES: tuple[Effects, ...] = ("transactional", "keyed", "external")
STANDINGS = [standing for standing in EffectiveState if standing is not EffectiveState.ABSENT]


def expected(record: Record, on_expired: OnExpired, same: bool) -> Decision:
    """The rows of DESIGN.md, written out by hand."""
    standing = record.effective_state
    if standing is EffectiveState.FORGOTTEN:
        return Decision.TAKE
    if standing is EffectiveState.EXPIRED:
        return Decision.TAKE if on_expired == "new" else Decision.EXPIRED
    if not same:
        return Decision.REUSED
    if standing is EffectiveState.LAPSED:
        return Decision.TAKE if record.effects == "keyed" else Decision.SUSPECT
    return {
        EffectiveState.RUNNING: Decision.BUSY,
        EffectiveState.COMPLETED: Decision.REPLAY,
        EffectiveState.FAILED: Decision.REPLAY_FAILURE,
        EffectiveState.UNKNOWN: Decision.DOUBT,
        EffectiveState.RELEASED: Decision.TAKE,
    }[standing]


@each_row(("standing", "effects", "same"), list(product(STANDINGS, MODES, (True, False))))
@each_row("on_expired", ["new", "refuse"])
def test_every_record_of_another_attempt(
    standing: EffectiveState, effects: Effects, same: bool, on_expired: OnExpired
) -> None:
    record = at(standing, effects=effects)
    mine = want(effects=effects, on_expired=on_expired, fingerprint=b"print" if same else b"another")
    assert decide(record, mine) is expected(record, on_expired, same)


@each_row("standing", STANDINGS)
def test_ones_own_record_is_recognised_while_it_runs(standing: EffectiveState) -> None:
    """The reply to the claim was lost, or a duplicate of the claim came first."""
    record = at(standing)
    mine = decide(record, want(attempt=record.attempt)) is Decision.MINE
    assert mine == (standing in (EffectiveState.RUNNING, EffectiveState.LAPSED))


@each_row("standing", STANDINGS)
def test_a_live_attempt_is_never_taken_over(standing: EffectiveState) -> None:
    """River's rescuer, Oban Lifeline: live jobs are run again after a hard age cap."""
    if decide(at(standing), want()) is Decision.TAKE:
        assert standing is not EffectiveState.RUNNING


@each_row("effects", MODES)
def test_an_outcome_in_doubt_is_never_run_again_by_itself(effects: Effects) -> None:
    assert decide(at(EffectiveState.UNKNOWN, effects=effects), want(effects=effects)) is Decision.DOUBT


def test_the_mode_of_the_dead_attempt_decides_not_that_of_the_next() -> None:
    """Its effect is the one in doubt."""
    assert decide(at(EffectiveState.LAPSED, effects="external"), want(effects="keyed")) is Decision.SUSPECT
    assert decide(at(EffectiveState.LAPSED, effects="keyed"), want(effects="external")) is Decision.TAKE


def test_an_empty_fingerprint_switches_the_check_off() -> None:
    for stored, given, agree in ((b"", b"x", True), (b"x", b"", True), (b"x", b"x", True), (b"x", b"y", False)):
        record = at(EffectiveState.COMPLETED)._replace(fingerprint=stored)
        assert (decide(record, want(fingerprint=given)) is Decision.REPLAY) == agree


def test_a_keyed_fingerprint_is_compared_with_plain_ones_and_with_those_of_other_secrets() -> None:
    payload, secrets, key = of_parts({"a": b"1"}), Secrets([b"old"]), b"k" * 32
    mine = want(fingerprint=Secrets([b"new"]).hashed_for(payload, key))._replace(key=key, payload=payload)
    for other in (payload.plain, secrets.hashed_for(payload, key), Secrets().hashed_for(payload, key)):
        record = at(EffectiveState.COMPLETED)._replace(fingerprint=other)
        for print_, agree in ((payload, True), (of_parts({"a": b"2"}), False)):
            found = mine._replace(payload=print_, secrets=Secrets([b"new", b"old"]))
            assert (decide(record, found) is Decision.REPLAY) == agree
