"""The table of records, and what can be said of its rows in SQL: read off the transition table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from retrysafe.protocol import standing
from retrysafe.protocol.records import LAPSED_AS, EffectiveState
from retrysafe.protocol.standing import Standing
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


def _condition(condition: Standing) -> str:
    """With OR, as the index of what can be swept has it: SQLite uses that only for a statement with the same words."""
    states = " OR ".join(f"r.state = '{state}'" for state in condition.states)
    over = (f"r.{name} <= t.now" for name in condition.over)
    ahead = (f"r.{name} > t.now" for name in condition.ahead)
    return " AND ".join([f"({states})" if len(condition.states) > 1 else states, *over, *ahead])


_LAPSED = EffectiveState.LAPSED
STANDING: dict[EffectiveState, str] = {one: _condition(condition) for one, condition in standing.STANDING.items()}
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
