"""What is asked of a store, step by step: claiming, ending, renewing, resolving and sweeping, as generators.

A procedure yields one `Ask` at a time and is sent the answer, or the error; it returns an outcome. It has no clock, no
connection and no colour: `retrysafe.backends.driver` runs it on a sync or an async client, and the simulation in the
tests on one whose every answer can be lost. Losing a race is a value that it returns; a store that cannot be used is an
exception.

A reply may be lost after the store has done what it was asked. So every write names its attempt, and a procedure that
puts a request again, or reads back, recognises what it has done itself by the attempt's id and token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from retrysafe.errors import StoreUnavailable
from retrysafe.protocol.asks import Ask, Steps, ask
from retrysafe.protocol.decisions import Decision, decide
from retrysafe.protocol.outcomes import Settlement, Transaction
from retrysafe.protocol.records import (
    ClaimRequest,
    Clocks,
    EffectiveState,
    Filter,
    Finding,
    Micros,
    Ownership,
    Page,
    Record,
    Refusal,
    State,
    StoredResult,
    Tally,
)
from retrysafe.protocol.retry_table import in_doubt
from retrysafe.protocol.store import BatchStore, OperableStore, Store, TransactionalStore
from retrysafe.protocol.transitions import RULES, Transition

# ---------------------------------------------------------------- claiming a key


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
_SETTLED = (Decision.REPLAY, Decision.REPLAY_FAILURE, Decision.REUSED, Decision.EXPIRED)
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


def settled_already(request: ClaimRequest, record: Record | None) -> NotWon | None:
    """What a record says by itself that was read without a claim; None when the key must be claimed to know."""
    if record is None:
        return None
    decision = decide(record, request)
    return NotWon(decision, record) if decision in _SETTLED else None


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


# ---------------------------------------------------------------- ending an attempt


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


# ---------------------------------------------------------------- keeping leases alive


def renew(store: Store, held: Sequence[Ownership]) -> Steps[set[Ownership]]:
    """Extend the leases of held claims; return those that are still held."""
    kept: set[Ownership] = set()
    for renewal in renewals(store, held):
        kept |= yield from renewal
    return kept


def renewals(store: Store, held: Sequence[Ownership]) -> list[Steps[set[Ownership]]]:
    """Extend the leases of held claims; each program returns those of its claims that are still held.

    They are apart so that a server which does not answer for some keys costs the others nothing. No ask has a key
    twice: it is answered by key, and of two claims to one, the first was taken over by the second.
    """
    batches: list[dict[bytes, Ownership]] = []
    for one in held:
        batch = next((known for known in batches if one.key not in known), None)
        if batch is None:
            batches.append(batch := {})
        batch[one.key] = one
    return [_renewal(request, batch) for batch in batches for request in store.renew(list(batch.values()))]


def _renewal(request: Ask[set[bytes]], batch: Mapping[bytes, Ownership]) -> Steps[set[Ownership]]:
    return {batch[key] for key in (yield from ask(request))}


# ---------------------------------------------------------------- the boundary's own transactions


def open_claim(store: TransactionalStore, request: ClaimRequest) -> Steps[Outcome]:
    """Begin, claim, and mark the savepoint; roll back when the claim is not won."""
    yield from ask(store.begin())
    outcome = yield from claim(store, request)
    if isinstance(outcome, Won):
        yield from ask(store.savepoint())
    else:
        yield from ask(store.rollback())
    return outcome


def frozen_snapshot(store: TransactionalStore) -> Steps[str | None]:
    """The isolation level, if it keeps a waiting duplicate from seeing what was committed meanwhile."""
    for request in store.isolation():
        level = yield from ask(request)
        if level in ("repeatable read", "serializable"):
            return level
    return None


def conclude(
    store: TransactionalStore, held: Ownership, verdict: Settlement, result: StoredResult | None
) -> Steps[bool]:
    """Bring an own transaction to its end; False when the record was not in it any more.

    That is the mark of a handler which committed or rolled back in the middle.
    """
    if verdict.transaction is Transaction.ROLLBACK:
        yield from ask(store.rollback())
        return True
    if verdict.transaction is Transaction.SAVEPOINT:
        yield from ask(store.rollback_to_savepoint())
    if verdict.event is not None and not (yield from settle(store, held, verdict.event, result)):
        yield from ask(store.rollback())
        return False
    yield from ask(store.commit())
    return True


# ---------------------------------------------------------------- claims of many keys at once


class Opened(NamedTuple):
    """What is to be done about each key, and what is held of those that are this attempt's."""

    decisions: dict[bytes, Decision]
    held: list[Ownership]


def open_many(store: BatchStore, requests: Sequence[ClaimRequest]) -> Steps[Opened]:
    """Begin, and claim all keys that have no record.

    Of a key that another transaction is claiming, or whose record is in the way, nothing is written: BUSY, or what its
    record means for a claim of its own.
    """
    yield from ask(store.begin())
    fresh = yield from ask(store.claim_many(requests))
    decisions = {request.key: Decision.MINE if request.key in fresh else Decision.BUSY for request in requests}
    others = [request for request in requests if request.key not in fresh]
    if others:
        records = yield from ask(store.read_many([request.key for request in others]))
        for request in others:
            record = records.get(request.key)
            if record is not None:
                decisions[request.key] = decide(record, request)
    held = [Ownership(w.key, w.attempt, fresh[w.key], w.clocks, w.transactional) for w in requests if w.key in fresh]
    return Opened(decisions, held)


def conclude_many(store: BatchStore, held: Sequence[Ownership], result: StoredResult) -> Steps[bool]:
    """Complete the keys and commit; False, after a rollback, when they are not this transaction's any more."""
    if held and (yield from ask(store.complete_many(held, result))) != len(held):
        yield from ask(store.rollback())
        return False
    yield from ask(store.commit())
    return True


def doubt_many(store: BatchStore, held: Sequence[Ownership]) -> Steps[None]:
    """Mark what a handler has committed by itself as unknown."""
    for one in held:
        yield from ask(store.settle(one._replace(transactional=False), Transition.DOUBT, None))


# ---------------------------------------------------------------- reading, and settling what is in doubt


PAGE = 500
"""How many records one ask of a scan is for."""


class Change(NamedTuple):
    """Whether a change was made, and the record as it was before, or as it is when the change was not made."""

    done: bool
    record: Record | None


def page(store: OperableStore, wanted: Filter, cursor: str | None, limit: int = PAGE) -> Steps[Page]:
    """Return a page of the records that are wanted, without their results."""
    return (yield from ask(store.scan(wanted, cursor, limit)))


def find(store: OperableStore, wanted: Filter, limit: int) -> Steps[list[Record]]:
    """Return up to ``limit`` records that are wanted, without their results."""
    found: list[Record] = []
    cursor: str | None = None
    while len(found) < limit:
        page = yield from ask(store.scan(wanted, cursor, min(PAGE, limit - len(found))))
        found += page.records
        cursor = page.cursor
        if cursor is None:
            break
    return found[:limit]


def tally(store: OperableStore) -> Steps[list[Tally]]:
    """Count the records by boundary and standing; where the store cannot, by reading them all."""
    asks = store.tally()
    if not asks:
        return (yield from _tally_by_scan(store))
    counted: list[Tally] = []
    for request in asks:
        counted += yield from ask(request)
    return counted


def _tally_by_scan(store: OperableStore) -> Steps[list[Tally]]:
    counts: dict[tuple[str, EffectiveState], tuple[int, Micros, Micros]] = {}
    cursor: str | None = None
    while True:
        page = yield from ask(store.scan(Filter(), cursor, PAGE))
        for record in page.records:
            alike = (record.boundary, record.effective_state)
            count, oldest, now = counts.get(alike, (0, record.updated, record.now))
            counts[alike] = (count + 1, min(oldest, record.updated), max(now, record.now))
        cursor = page.cursor
        if cursor is None:
            return [Tally(*alike, *counted) for alike, counted in sorted(counts.items())]


def settle_doubt(
    store: Store,
    key: bytes,
    event: Transition,
    stored: StoredResult | None,
    *,
    clocks: Clocks | None = None,
    attempt: str | None = None,
) -> Steps[Change]:
    """Settle a key whose outcome is unknown, or whose attempt died in doubt; not if it is another attempt's by now.

    Without ``clocks`` the record keeps those that it was last written with.
    """
    record = yield from read(store, key)
    if record is None or attempt not in (None, record.attempt) or not in_doubt(record):
        return Change(False, record)
    clocks, before = clocks or clocks_of(record), record
    if record.effective_state is EffectiveState.LAPSED:
        yield from suspect(store, record, clocks)
        record = yield from read(store, key)
        if record is None or record.attempt != before.attempt:
            return Change(False, record)
    if (yield from resolve(store, record, event, stored, clocks)):
        return Change(True, before)
    return Change(False, (yield from read(store, key)))


def expire_seen(store: Store, seen: Record, *, forget: bool = False) -> Steps[Change]:
    """End the window of a settled record that is still as seen."""
    if (yield from expire(store, seen, forget=forget)):
        return Change(True, seen)
    return Change(False, (yield from read(store, seen.key)))


def clocks_of(record: Record) -> Clocks:
    """The window and memory that a record was last written with."""
    return Clocks(lease=0, window=record.expires - record.updated, memory=record.tombstone_until - record.updated)


def expire(store: Store, seen: Record, *, forget: bool = False) -> Steps[bool]:
    """End the window of a settled record now, and with ``forget`` the memory of its key; False when it has changed."""
    memory = 0 if forget else max(seen.tombstone_until - seen.now, 0)
    return (yield from ask(store.resolve(seen, Transition.EXPIRE, None, Clocks(lease=0, window=0, memory=memory))))


def examine(store: OperableStore) -> Steps[list[Finding]]:
    """Look at the server's settings."""
    found: list[Finding] = []
    for request in store.examine():
        found += yield from ask(request)
    return found


# ---------------------------------------------------------------- sweeping


def sweep(store: Store, limit: int) -> Steps[int]:
    """Remove up to ``limit`` forgotten records; return how many went."""
    gone = 0
    for request in store.sweep(limit):
        gone += yield from ask(request)
    return gone


def forgotten(store: OperableStore, limit: int) -> Steps[list[Record]]:
    """Return up to ``limit`` forgotten records, to be archived and then removed."""
    found: list[Record] = []
    for request in store.forgotten(limit):
        found += yield from ask(request)
    return found


def remove(store: OperableStore, seen: Sequence[Record]) -> Steps[int]:
    """Remove what was archived; a record whose key was used again meanwhile stays."""
    gone = 0
    for request in store.remove(seen):
        gone += yield from ask(request)
    return gone
