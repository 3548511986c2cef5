"""The state machine of a record as a table: each event with its source states, its target and its guard.

SQL, Redis and DynamoDB build their conditions from this table, the memory store executes it, and the diagram in the
documentation is drawn from it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from retrysafe.errors import ConfigurationError, IllegalTransition, StoreMisconfigured
from retrysafe.protocol.records import (
    RUNNING,
    ClaimRequest,
    Clocks,
    EffectiveState,
    Micros,
    Outcome,
    Ownership,
    Record,
    State,
    StoredResult,
)


class Transition(StrEnum):
    """The events that change a record."""

    CLAIM = "claim"
    RENEW = "renew"
    COMPLETE = "complete"
    FAIL = "fail"
    DOUBT = "doubt"
    RELEASE = "release"
    SUSPECT = "suspect"
    RESOLVE_COMPLETED = "resolve completed"
    RESOLVE_FAILED = "resolve failed"
    RESOLVE_RELEASED = "resolve released"
    EXPIRE = "expire"
    SWEEP = "sweep"


class Guard(StrEnum):
    """The condition of a write, beside the effective state of the record."""

    VACANT = "no record is there"
    SEEN = "the record is unchanged since it was seen: same attempt and version"
    OWNER = "the record is this attempt's: same attempt and fencing token"
    CLOCK = "the store's clock alone"


class Rule(NamedTuple):
    """One event: the effective states in which it is allowed, the state that it writes, and its guard."""

    sources: frozenset[EffectiveState]
    target: State | None
    guard: Guard


def _rule(target: State | None, guard: Guard, *sources: EffectiveState) -> Rule:
    return Rule(frozenset(sources), target, guard)


_CLAIMABLE = (EffectiveState.RELEASED, EffectiveState.LAPSED, EffectiveState.EXPIRED, EffectiveState.FORGOTTEN)
_UNSETTLED = (EffectiveState.RUNNING, EffectiveState.LAPSED, EffectiveState.UNKNOWN)
_RUNNING = (EffectiveState.RUNNING, EffectiveState.LAPSED)
_REMEMBERED = (EffectiveState.COMPLETED, EffectiveState.FAILED, EffectiveState.RELEASED, EffectiveState.EXPIRED)

VACANT_CLAIM = _rule(State.RUNNING, Guard.VACANT, EffectiveState.ABSENT)
"""The one rule for a key without a record; every other claim names the record it saw."""

RULES: dict[Transition, Rule] = {
    Transition.CLAIM: _rule(State.RUNNING, Guard.SEEN, *_CLAIMABLE),
    Transition.RENEW: _rule(State.RUNNING, Guard.OWNER, EffectiveState.RUNNING),
    Transition.COMPLETE: _rule(State.COMPLETED, Guard.OWNER, *_UNSETTLED),
    Transition.FAIL: _rule(State.FAILED, Guard.OWNER, *_UNSETTLED),
    Transition.DOUBT: _rule(State.UNKNOWN, Guard.OWNER, *_RUNNING),
    Transition.RELEASE: _rule(State.RELEASED, Guard.OWNER, *_RUNNING),
    Transition.SUSPECT: _rule(State.UNKNOWN, Guard.SEEN, EffectiveState.LAPSED),
    Transition.RESOLVE_COMPLETED: _rule(State.COMPLETED, Guard.SEEN, EffectiveState.UNKNOWN),
    Transition.RESOLVE_FAILED: _rule(State.FAILED, Guard.SEEN, EffectiveState.UNKNOWN),
    Transition.RESOLVE_RELEASED: _rule(State.RELEASED, Guard.SEEN, EffectiveState.UNKNOWN),
    Transition.EXPIRE: _rule(State.RELEASED, Guard.SEEN, *_REMEMBERED),
    Transition.SWEEP: _rule(None, Guard.CLOCK, EffectiveState.FORGOTTEN),
}


RESOLUTIONS: dict[Outcome, Transition] = {
    "completed": Transition.RESOLVE_COMPLETED,
    "failed": Transition.RESOLVE_FAILED,
    "released": Transition.RESOLVE_RELEASED,
}


def resolution(outcome: Outcome) -> Transition:
    """The event that settles an unknown record as ``outcome``; raise `ConfigurationError` for any other word."""
    if outcome not in RESOLUTIONS:
        raise ConfigurationError(f"outcome={outcome!r}: expected one of {', '.join(RESOLUTIONS)}.")
    return RESOLUTIONS[outcome]


_STATES = {state.value: state for state in State}


def state_of(stored: str) -> State:
    """The state that a record was written in; raise `StoreMisconfigured` for one that is not of this version.

    Nothing is known of such a key, also not that its work has ended.
    """
    try:
        return _STATES[stored]
    except KeyError:
        raise StoreMisconfigured(
            f"Its record is {stored!r}, which only a newer retrysafe understands: upgrade it here, too"
        ) from None


def check(event: Transition, state: EffectiveState) -> Rule:
    """Return the rule for ``event`` in ``state``; raise `IllegalTransition` if there is none."""
    rule = RULES[event]
    if state not in rule.sources:
        if event is Transition.CLAIM and state is EffectiveState.ABSENT:
            return VACANT_CLAIM
        raise IllegalTransition(f"{event.value!r} is not possible for a key that is {state.value}.")
    return rule


def next_token(previous: int, now: Micros) -> int:
    """The fencing token of a new claim, above every token of the key so far, even if its record was swept."""
    return max(previous + 1, now)


def first_claim(request: ClaimRequest, now: Micros) -> Record:
    """The record of the first attempt for a key.

    Its version starts at its token, so that no version comes again after a sweep.
    """
    clocks, token = request.clocks, next_token(0, now)
    return tuple.__new__(  # by place: twice as quick as `Record(…)`
        Record,
        (
            request.key,
            request.boundary,
            request.scope,
            request.recorded or request.operation,
            request.fingerprint,
            RUNNING,
            request.attempt,
            token,
            1,  # attempt
            request.effects,
            now + clocks.lease + clocks.margin,
            now,  # created
            now,  # updated
            now + clocks.window,
            now + clocks.memory,
            token,  # version
            None,  # result
            now,
        ),
    )


_OVER = (EffectiveState.EXPIRED, EffectiveState.FORGOTTEN)
"""The work that a key stood for is over: a claim of it is new work."""


def count_started(seen: Record) -> int:
    """Count the attempts of the same intent that were started before a claim on ``seen``."""
    return 0 if seen.effective_state_at(seen.now) in _OVER else seen.attempts


def merge_fingerprint(request: ClaimRequest, seen: Record) -> bytes:
    """The fingerprint after a claim on ``seen``: a claim without a payload does not erase the one that is there."""
    fresh = seen.effective_state_at(seen.now) in _OVER
    return request.fingerprint if fresh else request.fingerprint or seen.fingerprint


def take(record: Record, request: ClaimRequest, seen: Record, now: Micros) -> Record:
    """The record after a new attempt has claimed a key that had a record.

    New work under an old key is created anew: by its token, which no other work of the key has.
    """
    check(Transition.CLAIM, record.effective_state_at(now))
    _match_seen(record, seen)
    token, before = next_token(record.token, now), count_started(seen)
    return first_claim(request, now)._replace(
        fingerprint=merge_fingerprint(request, seen),
        token=token,
        attempts=before + 1,
        created=record.created if before else token,
        version=record.version + 1,
    )


def settle(record: Record, ownership: Ownership, event: Transition, result: StoredResult | None, now: Micros) -> Record:
    """The record after its own attempt completed, failed, doubted or released it."""
    rule = check(event, record.effective_state_at(now))
    _match_owner(record, ownership)
    assert rule.target is not None
    return _write(record, rule.target, result, ownership.clocks, now)


def resolve(
    record: Record, seen: Record, event: Transition, result: StoredResult | None, clocks: Clocks, now: Micros
) -> Record:
    """The record after a duplicate, a probe or a person settled it, if it is still as ``seen``.

    `Transition.EXPIRE` takes clocks without a window, so that the key is expired from now on; with one the key is
    released, so that the same work goes on.
    """
    rule = check(event, record.effective_state_at(now))
    _match_seen(record, seen)
    assert rule.target is not None
    return _write(record, rule.target, result, clocks, now)


def renew(record: Record, ownership: Ownership, now: Micros) -> Record:
    """The record with its lease extended from now."""
    check(Transition.RENEW, record.effective_state_at(now))
    _match_owner(record, ownership)
    renewed = _write(record, State.RUNNING, record.result, ownership.clocks, now)
    return renewed._replace(lease_until=now + ownership.clocks.lease + ownership.clocks.margin)


def _write(record: Record, target: State, result: StoredResult | None, clocks: Clocks, now: Micros) -> Record:
    key, boundary, scope, operation, fingerprint, _, attempt, token, attempts, effects, lease, created = record[:12]
    return tuple.__new__(  # by place, as above
        Record,
        (
            key,
            boundary,
            scope,
            operation,
            fingerprint,
            target,
            attempt,
            token,
            attempts,
            effects,
            lease,
            created,
            now,  # updated
            now + clocks.window,
            now + clocks.memory,
            record.version + 1,
            result,
            now,
        ),
    )


def _match_owner(record: Record, ownership: Ownership) -> None:
    if record.attempt != ownership.attempt or record.token != ownership.token:
        raise IllegalTransition("The record belongs to another attempt.")


def _match_seen(record: Record, seen: Record) -> None:
    if (record.attempt, record.version) != (seen.attempt, seen.version):
        raise IllegalTransition("The record has changed since it was seen.")


def mermaid() -> str:
    """Return the state diagram as Mermaid source."""
    lines = ["stateDiagram-v2", f"    [*] --> {EffectiveState.RUNNING}: claim"]
    for event, rule in RULES.items():
        lines += sorted(f"    {source} --> {_target(rule)}: {event.value}" for source in rule.sources)
    lines.append(f"    {EffectiveState.RUNNING} --> {EffectiveState.LAPSED}: lease ends")
    for settled in (EffectiveState.COMPLETED, EffectiveState.FAILED, EffectiveState.RELEASED):
        lines.append(f"    {settled} --> {EffectiveState.EXPIRED}: window ends")
    lines.append(f"    {EffectiveState.EXPIRED} --> {EffectiveState.FORGOTTEN}: memory ends")
    return "\n".join(lines) + "\n"


def table() -> str:
    """Return the transition table as Markdown, one row per event."""
    lines = ["| event | from | to | guard |", "|---|---|---|---|", _row("claim", VACANT_CLAIM)]
    lines += [_row(event.value, rule) for event, rule in RULES.items()]
    return "\n".join(lines) + "\n"


def _row(event: str, rule: Rule) -> str:
    return f"| {event} | {', '.join(sorted(rule.sources))} | {_target(rule, 'absent')} | {rule.guard.value} |"


def _target(rule: Rule, absent: str = "[*]") -> str:
    return absent if rule.target is None else rule.target.value
