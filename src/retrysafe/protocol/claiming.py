"""Claiming a key: from nothing, from a released, lapsed or expired record, or not at all."""

from __future__ import annotations

from typing import NamedTuple

from retrysafe.protocol.asks import Steps, ask
from retrysafe.protocol.decisions import Decision, decide
from retrysafe.protocol.records import ClaimRequest, Ownership, Record, Refusal, State
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
_UNDECIDED = (Decision.TAKE, Decision.SUSPECT)


def claim(store: Store, request: ClaimRequest) -> Steps[Outcome]:
    """Claim the key, or find out why not. A lost reply is recognised by the attempt id."""
    refusal = None if request.quota is None else (yield from _refused(store, request))
    if refusal is not None:
        return NotWon(Decision.REFUSED, None, refusal)
    met = yield from ask(store.claim(request), again=not request.transactional)
    found = judged(request, met)
    return (yield from claim_again(store, request, found)) if isinstance(found, Record) else found


def judged(request: ClaimRequest, met: Record | Refusal | None, seen: Record | None = None) -> Outcome | Record:
    """What the store's answer to a claim decides by itself; or the record, when that is to be taken or marked.

    ``seen`` is the record that was there before.
    """
    if met is None:
        return NotWon(Decision.BUSY, None)
    if isinstance(met, Refusal):
        return NotWon(Decision.REFUSED, None, met)
    if met.attempt == request.attempt and met.state is State.RUNNING:  # as `decide` says, too
        return _won(request, met, seen)
    decision = decide(met, request)
    return met if decision in _UNDECIDED else NotWon(decision, met)


def claim_again(store: Store, request: ClaimRequest, met: Record) -> Steps[Outcome]:
    """Go on from a record that can be taken, or whose attempt is in doubt, and look again when a race is lost."""
    again = not request.transactional
    seen: Record | None = None
    for left in reversed(range(ROUNDS)):
        if decide(met, request) is Decision.TAKE:
            seen = met
            taken = yield from ask(store.take(request, met), again=again)
            if taken is not None:
                return _won(request, taken, seen)
        else:
            yield from ask(store.resolve(met, Transition.SUSPECT, None, request.clocks), again=again)
        if left:
            found = judged(request, (yield from ask(store.claim(request), again=again)), seen)
            if not isinstance(found, Record):
                return found
            met = found
    return NotWon(Decision.BUSY, None)


def _refused(store: Store, request: ClaimRequest) -> Steps[Refusal | None]:
    """Ask for room where the claim itself cannot; a key that has a record needs none, whatever was counted."""
    for admission in store.admit(request):
        refusal = yield from ask(admission, again=True)
        if refusal is not None and (yield from ask(store.read(request.key), again=True)) is None:
            return refusal
    return None


def _won(request: ClaimRequest, record: Record, seen: Record | None) -> Won:
    held = Ownership(request.key, request.attempt, record.token, request.clocks, request.effects == "transactional")
    return Won(held, record, seen)
