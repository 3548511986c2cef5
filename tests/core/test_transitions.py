"""Every event at every standing, against the table as it is written in DESIGN.md; guards, tokens and clocks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrysafe.errors import IllegalTransition
from retrysafe.protocol import transitions
from retrysafe.protocol.records import ClaimRequest, Clocks, EffectiveState, Ownership, Record, State, StoredResult
from retrysafe.protocol.transitions import Guard, Transition
from tests.tables import each_row

NOW = 1_000_000
CLOCKS = Clocks(lease=10, window=100, memory=200)
RESULT = StoredResult(b"result", "text/plain", 1)
RESOLUTIONS = {
    Transition.RESOLVE_COMPLETED: State.COMPLETED,
    Transition.RESOLVE_FAILED: State.FAILED,
    Transition.RESOLVE_RELEASED: State.RELEASED,
}

TABLE: dict[tuple[Transition, EffectiveState], State | None] = {
    (Transition.CLAIM, EffectiveState.ABSENT): State.RUNNING,
    (Transition.CLAIM, EffectiveState.LAPSED): State.RUNNING,
    (Transition.CLAIM, EffectiveState.RELEASED): State.RUNNING,
    (Transition.CLAIM, EffectiveState.EXPIRED): State.RUNNING,
    (Transition.CLAIM, EffectiveState.FORGOTTEN): State.RUNNING,
    (Transition.RENEW, EffectiveState.RUNNING): State.RUNNING,
    (Transition.COMPLETE, EffectiveState.RUNNING): State.COMPLETED,
    (Transition.COMPLETE, EffectiveState.LAPSED): State.COMPLETED,
    (Transition.COMPLETE, EffectiveState.UNKNOWN): State.COMPLETED,
    (Transition.FAIL, EffectiveState.RUNNING): State.FAILED,
    (Transition.FAIL, EffectiveState.LAPSED): State.FAILED,
    (Transition.FAIL, EffectiveState.UNKNOWN): State.FAILED,
    (Transition.DOUBT, EffectiveState.RUNNING): State.UNKNOWN,
    (Transition.DOUBT, EffectiveState.LAPSED): State.UNKNOWN,
    (Transition.RELEASE, EffectiveState.RUNNING): State.RELEASED,
    (Transition.RELEASE, EffectiveState.LAPSED): State.RELEASED,
    (Transition.SUSPECT, EffectiveState.LAPSED): State.UNKNOWN,
    (Transition.RESOLVE_COMPLETED, EffectiveState.UNKNOWN): State.COMPLETED,
    (Transition.RESOLVE_FAILED, EffectiveState.UNKNOWN): State.FAILED,
    (Transition.RESOLVE_RELEASED, EffectiveState.UNKNOWN): State.RELEASED,
    (Transition.EXPIRE, EffectiveState.COMPLETED): State.RELEASED,
    (Transition.EXPIRE, EffectiveState.FAILED): State.RELEASED,
    (Transition.EXPIRE, EffectiveState.RELEASED): State.RELEASED,
    (Transition.EXPIRE, EffectiveState.EXPIRED): State.RELEASED,
    (Transition.SWEEP, EffectiveState.FORGOTTEN): None,
}
"""Written out once more by hand, so that a slip in the shipping table shows."""

OWNED = (Transition.COMPLETE, Transition.FAIL, Transition.DOUBT, Transition.RELEASE)
BY_SIGHT = (Transition.SUSPECT, *RESOLUTIONS, Transition.EXPIRE)


def want(**changes: object) -> ClaimRequest:
    made = ClaimRequest(b"key", "b", "s", "op", b"print", "new", "keyed", CLOCKS)
    return made._replace(**changes)  # type: ignore[arg-type]


def at(standing: EffectiveState, **changes: object) -> Record:
    """A record of attempt "old" with that standing at NOW."""
    record = transitions.first_claim(want(attempt="old"), NOW - 5)._replace(now=NOW, version=4, attempts=2)
    shapes: dict[EffectiveState, dict[str, object]] = {
        EffectiveState.RUNNING: {},
        EffectiveState.LAPSED: {"lease_until": NOW},
        EffectiveState.COMPLETED: {"state": State.COMPLETED, "result": RESULT},
        EffectiveState.FAILED: {"state": State.FAILED, "result": RESULT},
        EffectiveState.UNKNOWN: {"state": State.UNKNOWN},
        EffectiveState.RELEASED: {"state": State.RELEASED},
        EffectiveState.EXPIRED: {"state": State.COMPLETED, "result": RESULT, "expires": NOW},
        EffectiveState.FORGOTTEN: {
            "state": State.COMPLETED,
            "result": RESULT,
            "expires": NOW - 9,
            "tombstone_until": NOW,
        },
    }
    record = record._replace(**{**shapes[standing], **changes})  # type: ignore[arg-type]
    assert record.effective_state is standing or changes
    return record


def owner(record: Record) -> Ownership:
    return Ownership(record.key, record.attempt, record.token, CLOCKS, False)


def apply(event: Transition, record: Record) -> Record:
    """The event, by whoever may."""
    if event is Transition.CLAIM:
        return transitions.take(record, want(), record, NOW)
    if event is Transition.RENEW:
        return transitions.renew(record, owner(record), NOW)
    if event in OWNED:
        return transitions.settle(record, owner(record), event, RESULT, NOW)
    return transitions.resolve(record, record, event, RESULT, CLOCKS, NOW)


@each_row(("event", "standing"), list(product(Transition, EffectiveState)))
def test_every_pair_is_in_the_table_or_raises(event: Transition, standing: EffectiveState) -> None:
    if (event, standing) in TABLE:
        assert transitions.check(event, standing).target is TABLE[event, standing]
    else:
        with pytest.raises(IllegalTransition, match="not possible"):
            transitions.check(event, standing)


@each_row(
    ("event", "standing"),
    [
        pair
        for pair in list(product(Transition, EffectiveState))
        if pair[0] is not Transition.SWEEP and pair[1] is not EffectiveState.ABSENT
    ],
)
def test_every_pair_changes_a_record_as_the_table_says_or_raises(event: Transition, standing: EffectiveState) -> None:
    record = at(standing)
    if (event, standing) not in TABLE:
        with pytest.raises(IllegalTransition):
            apply(event, record)
        return
    after = apply(event, record)
    assert after.state is TABLE[event, standing]
    assert after.version == record.version + 1
    assert (after.updated, after.expires, after.tombstone_until) == (NOW, NOW + 100, NOW + 200)
    new_work = event is Transition.CLAIM and standing in (EffectiveState.EXPIRED, EffectiveState.FORGOTTEN)
    assert after.created == (after.token if new_work else record.created)


def test_illegal_transitions_are_one_error() -> None:
    """One error for all pairs, and none of another kind hides behind it."""
    assert IllegalTransition.__subclasses__() == []


GUARDS = {
    Transition.CLAIM: Guard.SEEN,
    Transition.SWEEP: Guard.CLOCK,
    **dict.fromkeys((Transition.RENEW, *OWNED), Guard.OWNER),
    **dict.fromkeys(BY_SIGHT, Guard.SEEN),
}


def test_every_event_has_its_guard() -> None:
    assert {event: rule.guard for event, rule in transitions.RULES.items()} == GUARDS
    assert transitions.VACANT_CLAIM.guard is Guard.VACANT
    assert set(transitions.RULES) == set(Transition)


@each_row("event", [Transition.RENEW, *OWNED])
@each_row("change", [{"attempt": "another"}, {"token": 1}], ids=["attempt", "token"])
def test_a_late_owner_changes_nothing(event: Transition, change: dict[str, object]) -> None:
    """Powertools, exactly-once, justonce, drf-idempotency, CAP, River #1302, Oban: a completion that is not fenced."""
    record = at(EffectiveState.RUNNING)
    held = owner(record)._replace(**change)  # type: ignore[arg-type]
    call: Callable[[], Record] = lambda: (  # noqa: E731
        transitions.renew(record, held, NOW)
        if event is Transition.RENEW
        else transitions.settle(record, held, event, RESULT, NOW)
    )
    with pytest.raises(IllegalTransition, match=r"(?m)^The record belongs to another attempt\.$"):
        call()


@each_row("event", [Transition.CLAIM, *BY_SIGHT])
@each_row("change", [{"attempt": "another"}, {"version": 3}], ids=["attempt", "version"])
def test_a_record_that_changed_since_it_was_seen_stays(event: Transition, change: dict[str, object]) -> None:
    record = at(
        next(standing for _, standing in TABLE if (event, standing) in TABLE and standing is not EffectiveState.ABSENT)
    )
    seen = record._replace(**change)  # type: ignore[arg-type]
    with pytest.raises(IllegalTransition, match=r"(?m)^The record has changed since it was seen\.$"):
        if event is Transition.CLAIM:
            transitions.take(record, want(), seen, NOW)
        else:
            transitions.resolve(record, seen, event, RESULT, CLOCKS, NOW)


# ---------------------------------------------------------------- what a write changes


def test_a_release_keeps_the_row_with_fingerprint_token_and_count() -> None:
    record = at(EffectiveState.RUNNING)
    after = transitions.settle(record, owner(record), Transition.RELEASE, None, NOW)
    kept = ("key", "fingerprint", "attempt", "token", "attempts", "created")
    assert [getattr(after, name) for name in kept] == [getattr(record, name) for name in kept]


def test_a_renewal_extends_the_lease_from_now_and_the_window_with_it() -> None:
    record = at(EffectiveState.RUNNING)
    after = transitions.renew(record, owner(record), NOW + 1)
    assert after.lease_until == NOW + 1 + CLOCKS.lease
    assert after.expires == NOW + 1 + CLOCKS.window
    assert (after.attempt, after.token, after.attempts) == (record.attempt, record.token, record.attempts)


@each_row("event", BY_SIGHT)
def test_a_key_settled_by_another_has_the_given_result_at_the_stores_time(event: Transition) -> None:
    record = at(
        EffectiveState.LAPSED
        if event is Transition.SUSPECT
        else EffectiveState.COMPLETED
        if event is Transition.EXPIRE
        else EffectiveState.UNKNOWN
    )
    after = transitions.resolve(record, record, event, RESULT, CLOCKS, NOW + 3)
    assert (after.result, after.now, after.updated, after.version) == (RESULT, NOW + 3, NOW + 3, record.version + 1)


def test_a_token_is_one_more_where_the_clock_is_behind() -> None:
    assert transitions.next_token(10, 5) == 11
    assert transitions.first_claim(want(), 1).token == 1


def test_a_margin_makes_a_lease_longer_for_others() -> None:
    clocks, record = CLOCKS._replace(margin=7), at(EffectiveState.RUNNING)
    after = transitions.renew(record, owner(record)._replace(clocks=clocks), NOW)
    assert after.lease_until == NOW + CLOCKS.lease + 7
    assert transitions.first_claim(want(clocks=clocks), NOW).lease_until == NOW + CLOCKS.lease + 7


@each_row(
    "standing", [EffectiveState.RELEASED, EffectiveState.LAPSED, EffectiveState.EXPIRED, EffectiveState.FORGOTTEN]
)
def test_a_claim_without_a_payload_keeps_the_fingerprint_until_the_window_is_over(standing: EffectiveState) -> None:
    seen = at(standing)
    kept = b"" if standing in (EffectiveState.EXPIRED, EffectiveState.FORGOTTEN) else b"print"
    assert transitions.take(seen, want(fingerprint=b""), seen, NOW).fingerprint == kept
    assert transitions.take(seen, want(fingerprint=b"other"), seen, NOW).fingerprint == b"other"


def test_a_rule_is_its_sources_target_and_guard() -> None:
    made = transitions._rule(State.RUNNING, Guard.OWNER, EffectiveState.RUNNING, EffectiveState.LAPSED)
    assert made == (frozenset({EffectiveState.RUNNING, EffectiveState.LAPSED}), State.RUNNING, Guard.OWNER)


def test_a_settlement_is_judged_by_the_stores_time_and_not_by_what_was_seen() -> None:
    """A record that was read as running has lapsed by the time of the write."""
    seen_running = at(EffectiveState.RUNNING)
    with pytest.raises(IllegalTransition):
        transitions.renew(seen_running, owner(seen_running), seen_running.lease_until)
    with pytest.raises(IllegalTransition):
        transitions.take(seen_running, want(), seen_running, seen_running.lease_until - 1)
    assert transitions.take(seen_running, want(), seen_running, seen_running.lease_until)


def test_a_claim_counts_attempts_within_a_window_and_starts_over_after_it() -> None:
    assert transitions.take(at(EffectiveState.LAPSED), want(), at(EffectiveState.LAPSED), NOW).attempts == 3
    assert transitions.take(at(EffectiveState.RELEASED), want(), at(EffectiveState.RELEASED), NOW).attempts == 3
    assert transitions.take(at(EffectiveState.EXPIRED), want(), at(EffectiveState.EXPIRED), NOW).attempts == 1
    assert transitions.take(at(EffectiveState.FORGOTTEN), want(), at(EffectiveState.FORGOTTEN), NOW).attempts == 1


def test_a_claim_drops_the_old_result() -> None:
    assert transitions.take(at(EffectiveState.EXPIRED), want(), at(EffectiveState.EXPIRED), NOW).result is None


@given(previous=st.integers(0, 2**60), now=st.integers(1, 2**60))
def test_a_token_is_above_every_token_before_and_at_least_the_stores_time(previous: int, now: int) -> None:
    token = transitions.next_token(previous, now)
    assert token > previous
    assert token >= now


@given(clocks=st.lists(st.integers(-50, 50), max_size=20))
def test_tokens_increase_over_takeovers_although_the_clock_goes_back(clocks: list[int]) -> None:
    record = transitions.first_claim(want(), NOW)
    now = NOW
    for number, step in enumerate(clocks):
        now += step
        lapsed = record._replace(lease_until=now, now=now)
        after = transitions.take(lapsed, want(attempt=f"a{number}"), lapsed, now)
        assert after.token > record.token
        record = after


# ---------------------------------------------------------------- standings


@given(
    state=st.sampled_from(State),
    lease=st.integers(-3, 3),
    expires=st.integers(-3, 3),
    memory=st.integers(0, 3),
)
def test_the_standing_of_every_record(state: State, lease: int, expires: int, memory: int) -> None:
    record = at(EffectiveState.RUNNING)._replace(
        state=state, lease_until=NOW + lease, expires=NOW + expires, tombstone_until=NOW + expires + memory
    )
    if state is State.RUNNING:
        assert record.effective_state is (EffectiveState.RUNNING if lease > 0 else EffectiveState.LAPSED)
    elif state is State.UNKNOWN:
        assert record.effective_state is EffectiveState.UNKNOWN
    elif expires + memory <= 0:
        assert record.effective_state is EffectiveState.FORGOTTEN
    elif expires <= 0:
        assert record.effective_state is EffectiveState.EXPIRED
    else:
        assert record.effective_state.value == state.value


@each_row("state", [State.RUNNING, State.UNKNOWN])
def test_open_records_never_expire_and_are_never_swept(state: State) -> None:
    """django-outbox-pattern: a cleanup by age whatever the status."""
    record = at(EffectiveState.RUNNING)._replace(state=state, expires=0, tombstone_until=0, now=NOW * 9)
    assert record.effective_state in (EffectiveState.LAPSED, EffectiveState.UNKNOWN)
    assert record.effective_state not in transitions.RULES[Transition.SWEEP].sources


def test_a_crash_does_not_lock_the_key_for_its_window() -> None:
    """IdempotentAPI, asgi-idempotency-header: marker and result share one clock, so a crash is a conflict for a day."""
    record = transitions.first_claim(want(clocks=Clocks(lease=10, window=10**9, memory=10**9)), NOW)
    assert record._replace(now=NOW + 10).effective_state in transitions.RULES[Transition.CLAIM].sources


def test_lease_left_is_on_the_stores_clock() -> None:
    assert at(EffectiveState.RUNNING, lease_until=NOW + 2_500_000).lease_left == 2.5
    assert at(EffectiveState.LAPSED, lease_until=NOW - 1_000_000).lease_left == -1.0


# ---------------------------------------------------------------- the diagram


def test_the_diagram_shows_the_table_and_nothing_else() -> None:
    drawn = transitions.mermaid().splitlines()
    assert drawn[0] == "stateDiagram-v2"
    for (event, standing), target in TABLE.items():
        source = "[*]" if standing is EffectiveState.ABSENT else standing.value
        goal = "[*]" if target is None else target.value
        assert f"    {source} --> {goal}: {event.value}" in drawn
    clock_lines = 1 + 3 + 1
    assert len(drawn) == 1 + len(TABLE) + clock_lines


def test_the_table_in_the_documentation_has_a_row_for_each_event() -> None:
    head, line, *rows = transitions.table().splitlines()
    assert (head, line) == ("| event | from | to | guard |", "|---|---|---|---|")
    assert rows[-1] == "| sweep | forgotten | absent | the store's clock alone |"
    assert " | completed, expired, failed, released | released | " in rows[-2]
    assert [row.split(" | ")[0].strip("| ") for row in rows] == ["claim", *(event.value for event in transitions.RULES)]
