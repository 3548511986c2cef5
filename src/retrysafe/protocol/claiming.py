"""Claiming a key: from nothing, from a released, lapsed or expired record, or not at all."""

from __future__ import annotations

from typing import NamedTuple

from retrysafe.protocol.asks import Steps, ask
from retrysafe.protocol.decisions import Decision, decide
from retrysafe.protocol.records import ClaimRequest, Ownership, Record, Refusal
from retrysafe.protocol.store import Store
from retrysafe.protocol.transitions import Transition

ROUNDS = 4
"""How often a claim looks again after losing a race before it calls the key busy."""


class Won(NamedTuple):
    """The key is this attempt's. ``seen`` is the record before, when there was one."""

    held: Ownership
    record: Record
    seen: Record | None


class NotWon(NamedTuple):
    """The key is not this attempt's, and why; no record when somebody else's claim is not committed, or refused."""

    decision: Decision
    record: Record | None
    refusal: Refusal | None = None


Outcome = Won | NotWon


def claim(store: Store, want: ClaimRequest) -> Steps[Outcome]:
    """Claim the key, or find out why not. A lost reply is recognised by the attempt id."""
    again = not want.transactional
    seen: Record | None = None
    refusal = None if want.quota is None else (yield from _refused(store, want))
    if refusal is not None:
        return NotWon(Decision.REFUSED, None, refusal)
    for _ in range(ROUNDS):
        record = yield from ask(store.claim(want), again=again)
        if record is None:
            break
        if isinstance(record, Refusal):
            return NotWon(Decision.REFUSED, None, record)
        decision = decide(record, want)
        if decision is Decision.MINE:
            return _won(want, record, seen)
        if decision is Decision.TAKE:
            seen = record
            taken = yield from ask(store.take(want, record), again=again)
            if taken is not None:
                return _won(want, taken, seen)
        elif decision is Decision.SUSPECT:
            yield from ask(store.resolve(record, Transition.SUSPECT, None, want.clocks), again=again)
        else:
            return NotWon(decision, record)
    return NotWon(Decision.BUSY, None)


def _refused(store: Store, want: ClaimRequest) -> Steps[Refusal | None]:
    """Ask for room where the claim itself cannot; a key that has a record needs none, whatever was counted."""
    for request in store.admit(want):
        refusal = yield from ask(request, again=True)
        if refusal is not None and (yield from ask(store.read(want.key), again=True)) is None:
            return refusal
    return None


def _won(want: ClaimRequest, record: Record, seen: Record | None) -> Won:
    held = Ownership(want.key, want.attempt, record.token, want.clocks, want.transactional)
    return Won(held, record, seen)
