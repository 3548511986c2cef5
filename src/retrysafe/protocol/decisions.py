"""The decision of an attempt about a record that already exists for its key, as one table."""

from __future__ import annotations

from enum import StrEnum

from retrysafe.protocol.records import LAPSED_AS, ClaimRequest, EffectiveState, OnExpired, Record


class Decision(StrEnum):
    """The next step of a claim, given the existing record."""

    MINE = "the record is this attempt's own: an earlier reply was lost"
    TAKE = "claim the record, provided that it is still as seen"
    SUSPECT = "its attempt died with the effect in doubt: mark it unknown"
    REUSED = "refuse: the same key came with another payload"
    REPLAY = "answer with the stored result"
    REPLAY_FAILURE = "answer with the stored failure"
    BUSY = "another attempt is running"
    DOUBT = "the outcome is unknown"
    EXPIRED = "refuse: the key was used before its window ended"
    REFUSED = "refuse: the key is new, and the quota of its scope has no room"


_BY_STATE: dict[EffectiveState, Decision] = {
    EffectiveState.RUNNING: Decision.BUSY,
    EffectiveState.COMPLETED: Decision.REPLAY,
    EffectiveState.FAILED: Decision.REPLAY_FAILURE,
    EffectiveState.UNKNOWN: Decision.DOUBT,
    EffectiveState.RELEASED: Decision.TAKE,
}
_LAPSED = {
    effects: Decision.TAKE if left is EffectiveState.LAPSED else Decision.SUSPECT for effects, left in LAPSED_AS.items()
}
"""By the effects of the lapsed attempt. A transactional record is visible while it runs only if the handler committed
it, so its effect is in doubt."""
_UNFINISHED = frozenset((EffectiveState.RUNNING, EffectiveState.LAPSED))
_OVER = frozenset((EffectiveState.EXPIRED, EffectiveState.FORGOTTEN))
_EXPIRED: dict[OnExpired, Decision] = {"new": Decision.TAKE, "refuse": Decision.EXPIRED}


def decide(record: Record, request: ClaimRequest) -> Decision:
    """Return what the attempt that made ``request`` does about ``record``."""
    state = record.effective_state_at(record.now)
    if record.attempt == request.attempt and state in _UNFINISHED:
        return Decision.MINE
    if state in _OVER:
        return _EXPIRED[request.on_expired] if state is EffectiveState.EXPIRED else Decision.TAKE
    if record.fingerprint != request.fingerprint and not _agree(record.fingerprint, request):
        return Decision.REUSED
    return _BY_STATE.get(state) or _LAPSED[record.effects]


def _agree(stored: bytes, request: ClaimRequest) -> bool:
    """Tell whether unequal fingerprints are of one payload; an empty one means that the check is off."""
    if not stored or not request.fingerprint:
        return True
    payload, secrets = request.payload, request.secrets
    return payload is not None and secrets is not None and secrets.agree(stored, payload, request.key)
