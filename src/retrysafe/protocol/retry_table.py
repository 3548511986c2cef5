"""The answer to a retry: found by taking a record through the transition table and asking for the decision."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from retrysafe.protocol import transitions
from retrysafe.protocol.decisions import Decision, decide
from retrysafe.protocol.outcomes import Ending, ModeKind, settlement_of
from retrysafe.protocol.records import (
    ClaimRequest,
    Clocks,
    EffectiveState,
    Effects,
    OnExpired,
    Ownership,
    Record,
    StoredResult,
)
from retrysafe.protocol.transitions import RULES, Transition

ANSWERS: dict[Decision, str] = {
    Decision.TAKE: "runs the work",
    Decision.REPLAY: "gets the stored result",
    Decision.REPLAY_FAILURE: "gets the stored failure (StoredFailure)",
    Decision.BUSY: "is told that an attempt is running (InProgress)",
    Decision.DOUBT: "is refused until the key is settled (OutcomeUnknown)",
    Decision.REUSED: "is refused (KeyReused)",
    Decision.EXPIRED: "is refused (KeyExpired)",
}
"""The meaning of each decision for the caller, unless the boundary says otherwise."""
WITHHELD = "is told that the result could not be stored (ResultNotEncodable)"

EFFECTS: dict[ModeKind, Effects] = {
    ModeKind.OWN: "transactional",
    ModeKind.JOINED: "transactional",
    ModeKind.KEYED: "keyed",
    ModeKind.EXTERNAL: "external",
}
_CLOCKS = Clocks(lease=10, window=20, memory=30)
_PAYLOAD, _OTHER = b"a payload", b"another payload"


class Prospect(NamedTuple):
    """A situation, the record that it leaves if any, and what the next caller with this key gets."""

    situation: str
    standing: EffectiveState
    decision: Decision
    withheld: bool = False


def retry(record: Record, on_expired: OnExpired = "new") -> Decision:
    """Decide on a retry with the same payload now; an attempt that died in doubt is marked unknown on the way."""
    decision = decide(record, _request(record.effects, record.fingerprint, on_expired))
    return Decision.DOUBT if decision is Decision.SUSPECT else decision


def prospects(mode: ModeKind, on_expired: OnExpired) -> Iterator[Prospect]:
    """The answer to a retry after each way in which work can end, or be under way, in this mode."""
    request = _request(EFFECTS[mode], _PAYLOAD, on_expired)
    running = transitions.first_claim(request._replace(attempt="first"), now=0)
    owner = Ownership(running.key, running.attempt, running.token, _CLOCKS, request.transactional)
    done = transitions.settle(running, owner, Transition.COMPLETE, StoredResult(b"", "", 0), now=1)

    def prospect(situation: str, record: Record | None, fingerprint: bytes = _PAYLOAD) -> Prospect:
        if record is None:
            return Prospect(situation, EffectiveState.ABSENT, Decision.TAKE)
        if decide(record, _request(record.effects, fingerprint, on_expired)) is Decision.SUSPECT:
            record = transitions.resolve(record, record, Transition.SUSPECT, None, _CLOCKS, record.now)
        met = decide(record, _request(record.effects, fingerprint, on_expired))
        withheld = record.result is not None and record.result.body is None
        return Prospect(situation, record.effective_state, met, withheld)

    for ending in Ending:
        event = settlement_of(ending, mode).event
        stored = StoredResult(None if ending is Ending.UNENCODABLE else b"", "", 0)
        left = None if event is None else transitions.settle(running, owner, event, stored, now=1)
        yield prospect(ending.value, left)
    in_transaction = request.transactional
    yield prospect("its process died", None if in_transaction else _at(running, 10))
    yield prospect("it is still running", running)
    yield prospect("it is paused for longer than its lease", running if in_transaction else _at(running, 10))
    yield prospect("the window is over", _at(done, done.expires))
    yield prospect("the memory is over", _at(done, done.tombstone_until))
    yield prospect("the same key comes with another payload", _at(done, 2), _OTHER)


def possible(record: Record) -> tuple[Transition, ...]:
    """Return the transitions that a person may make from a record now: resolve it, or expire it."""
    events = (Transition.RESOLVE_COMPLETED, Transition.RESOLVE_FAILED, Transition.RESOLVE_RELEASED, Transition.EXPIRE)
    return tuple(event for event in events if record.reported_state in RULES[event].sources)


def in_doubt(record: Record) -> bool:
    """Tell whether the outcome is in doubt: it is unknown, or the attempt died and may have had its effect."""
    return record.reported_state is EffectiveState.UNKNOWN


def _at(record: Record, now: int) -> Record:
    return record._replace(now=now)


def _request(effects: Effects, fingerprint: bytes, on_expired: OnExpired) -> ClaimRequest:
    return ClaimRequest(b"", "", "", "", fingerprint, "", effects, _CLOCKS, on_expired)
