"""Ending an attempt: complete, fail, doubt or release, and settling what ended in doubt."""

from __future__ import annotations

from retrysafe.errors import StoreUnavailable
from retrysafe.protocol.asks import Steps, ask
from retrysafe.protocol.records import Clocks, EffectiveState, Ownership, Record, StoredResult
from retrysafe.protocol.store import Store
from retrysafe.protocol.transitions import RULES, Transition


def settle(store: Store, held: Ownership, event: Transition, result: StoredResult | None = None) -> Steps[bool]:
    """Let the owner settle its record; False when the record is no longer its own."""
    if (yield from ask(store.settle(held, event, result), again=not held.transactional)):
        return True
    return (yield from is_settled(store, held, event, result))


def is_settled(store: Store, held: Ownership, event: Transition, result: StoredResult | None) -> Steps[bool]:
    """Whether the owner has settled its record already, so that only the reply was lost.

    It has if the record is where it should be, by this attempt and token and with this result.
    """
    record = yield from ask(store.read(held.key))
    return (
        record is not None
        and (record.attempt, record.token) == (held.attempt, held.token)
        and record.state is RULES[event].target
        and record.result == result
    )


def resolve(store: Store, seen: Record, event: Transition, result: StoredResult | None, clocks: Clocks) -> Steps[bool]:
    """Settle an unknown record that is still as seen; False when it has changed meanwhile.

    A lost reply is read back: the record as it would be by this, one version on, was settled by this.
    """
    if seen.effective_state is not EffectiveState.UNKNOWN:
        return False
    request = store.resolve(seen, event, result, clocks)
    try:
        return (yield from ask(request))
    except StoreUnavailable as error:
        if error.unsent:
            raise
        if (yield from ask(request)):
            return True
    record = yield from ask(store.read(seen.key))
    return (
        record is not None
        and (record.attempt, record.version) == (seen.attempt, seen.version + 1)
        and record.state is RULES[event].target
        and record.result == result
    )


def suspect(store: Store, seen: Record, clocks: Clocks) -> Steps[bool]:
    """Mark an attempt whose lease has lapsed as in doubt; False when the record has changed meanwhile."""
    return (yield from ask(store.resolve(seen, Transition.SUSPECT, None, clocks)))


def read(store: Store, key: bytes) -> Steps[Record | None]:
    """Return the record of a key."""
    return (yield from ask(store.read(key), again=True))
