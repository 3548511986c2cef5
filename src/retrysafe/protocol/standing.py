"""Effective states as conditions, which SQL and stores of documents render."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from retrysafe.protocol.records import EffectiveState, State


class Standing(NamedTuple):
    """A condition for a record to stand in one way: the states it may have, and its instants, at one time."""

    states: tuple[State, ...]
    over: tuple[str, ...] = ()
    """Instants that are not after that time."""
    ahead: tuple[str, ...] = ()
    """Instants that are after it."""


_SETTLED = (State.COMPLETED, State.FAILED, State.RELEASED)
_KEPT = ("expires", "tombstone_until")
STANDING: Mapping[EffectiveState, Standing] = {
    EffectiveState.RUNNING: Standing((State.RUNNING,), ahead=("lease_until",)),
    EffectiveState.LAPSED: Standing((State.RUNNING,), over=("lease_until",)),
    EffectiveState.UNKNOWN: Standing((State.UNKNOWN,)),
    EffectiveState.COMPLETED: Standing((State.COMPLETED,), ahead=_KEPT),
    EffectiveState.FAILED: Standing((State.FAILED,), ahead=_KEPT),
    EffectiveState.RELEASED: Standing((State.RELEASED,), ahead=_KEPT),
    EffectiveState.EXPIRED: Standing(_SETTLED, over=("expires",), ahead=("tombstone_until",)),
    EffectiveState.FORGOTTEN: Standing(_SETTLED, over=("tombstone_until",)),
}
"""`Record.effective_state` as a condition."""
SETTLED = Standing(_SETTLED)
