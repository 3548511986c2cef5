"""The table of records, and what can be said of its rows in SQL: read off the transition table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from retrysafe.protocol.records import LAPSED_AS, EffectiveState
from retrysafe.protocol.transitions import RULES, Transition

TABLE = "retrysafe_records"
COLUMNS = (
    "key_hash",
    "boundary",
    "scope",
    "operation",
    "fingerprint",
    "state",
    "attempt",
    "token",
    "attempts",
    "effects",
    "lease_until",
    "created",
    "updated",
    "expires",
    "tombstone_until",
    "version",
    "result",
    "media_type",
    "codec_version",
)

KEPT = "(q.state IN ('running', 'unknown') OR q.tombstone_until > t.now)"
"""The SQL condition for a record ``q`` not to be forgotten."""

_SETTLED = "(r.state = 'completed' OR r.state = 'failed' OR r.state = 'released')"
"""As in the condition of the index of what can be swept: SQLite uses that only where a statement has the same words."""
_LAPSED = EffectiveState.LAPSED
STANDING: dict[EffectiveState, str] = {
    EffectiveState.RUNNING: "r.state = 'running' AND r.lease_until > t.now",
    EffectiveState.LAPSED: "r.state = 'running' AND r.lease_until <= t.now",
    EffectiveState.UNKNOWN: "r.state = 'unknown'",
    EffectiveState.COMPLETED: "r.state = 'completed' AND r.expires > t.now AND r.tombstone_until > t.now",
    EffectiveState.FAILED: "r.state = 'failed' AND r.expires > t.now AND r.tombstone_until > t.now",
    EffectiveState.RELEASED: "r.state = 'released' AND r.expires > t.now AND r.tombstone_until > t.now",
    EffectiveState.EXPIRED: f"{_SETTLED} AND r.expires <= t.now AND r.tombstone_until > t.now",
    EffectiveState.FORGOTTEN: f"{_SETTLED} AND r.tombstone_until <= t.now",
}

_IN_DOUBT = " OR ".join(f"r.effects = '{effects}'" for effects, left in LAPSED_AS.items() if left is not _LAPSED)
LAPSED_IN_DOUBT = f"{STANDING[_LAPSED]} AND ({_IN_DOUBT})"
"""An attempt died, and its effect may have happened."""
REPORTED: dict[EffectiveState, str] = STANDING | {
    _LAPSED: f"{STANDING[_LAPSED]} AND NOT ({_IN_DOUBT})",
    EffectiveState.UNKNOWN: f"{STANDING[EffectiveState.UNKNOWN]} OR ({LAPSED_IN_DOUBT})",
}
"""`Record.reported_state` in SQL."""


def allowed(event: Transition) -> str:
    """The SQL condition for a record ``r`` at time ``t.now`` to take ``event``, from the table."""
    return any_of(RULES[event].sources)


def any_of(standings: Iterable[EffectiveState], conditions: Mapping[EffectiveState, str] = STANDING) -> str:
    """The SQL condition for a record ``r`` to stand in one of these ways at time ``t.now``."""
    return "(" + " OR ".join(f"({conditions[standing]})" for standing in sorted(standings)) + ")"


def columns(prefix: str = "") -> str:
    """The columns of a record, in the order in which they are read."""
    return ", ".join(prefix + column for column in COLUMNS)
