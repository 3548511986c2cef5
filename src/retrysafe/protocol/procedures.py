"""The procedures of a store, as generators: claim, settle, resolve, renew, the boundary's own transactions, and sweep.

How a procedure works
---------------------
A procedure yields one `Ask` at a time: a request that the store has built, and the function that parses its answer. It
is sent the parsed answer, or the error is raised at the ``yield``, and in the end it returns an outcome. It has no
clock and no connection. Drivers run it: `retrysafe.backends.driver.run` on a sync client, ``arun`` on an async one. So
each rule is written once, and the simulation in the tests runs this code on a store that loses any request or reply.

A lost race is a returned value: `NotWon`, or False. A store that cannot be used raises `StoreUnavailable` or another
error of `retrysafe.errors`. No procedure turns one into the other.

How a claim proceeds
--------------------
`claim` puts the store's claim, which writes the first record of a key or returns the record that exists. `judge_claim`
turns that answer into one of these:

    answer                                  outcome
    a record of this attempt, running       Won: the claim was written, now or by a request whose reply was lost
    None                                    NotWon, BUSY: another transaction is claiming the key
    a refusal of the quota                  NotWon, REFUSED
    any other record                        what `decide` says: replay, reuse, busy, doubt, expired; or go on

A record that can be taken (it was released, has lapsed with keyed effects, or is past its window) is taken with a
higher token. One that has lapsed with external or transactional effects is first marked unknown. Both writes are
conditional on the record as it was seen, so of several attempts one succeeds; `claim_again` lets the others look again,
`ROUNDS` times.

How lost replies are recognised
-------------------------------
A reply may be lost after the store has performed the request. Every write names its attempt, and:

    claim, take    are put again; the attempt finds its own running record, by its id, and has won
    settle         is put again; False may then mean that the first one succeeded, so `is_settled` reads the record
                   back and compares attempt, token, state and result
    resolve        is put again; then the record is read back, and must be one version above the one that was seen
    renew          is not put again here: the heartbeat renews again before the lease ends
    commit         is not put again: the mode reads the record back, on another connection

``ask(…, again=True)`` repeats a request once, and only outside of a transaction: there, a connection that failed has
rolled everything back, so that a repeated request would be written without the rest of the transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from retrysafe.errors import StoreUnavailable
from retrysafe.protocol.decisions import Decision, decide
from retrysafe.protocol.outcomes import Settlement, Transaction
from retrysafe.protocol.records import (
    RUNNING,
    ClaimRequest,
    Clocks,
    Count,
    EffectiveState,
    Filter,
    Finding,
    Micros,
    Ownership,
    Page,
    QuotaRefusal,
    Record,
    StoredResult,
    Tally,
)
from retrysafe.protocol.requests import Ask, Program, TransactionEnded, ask
from retrysafe.protocol.retry_table import in_doubt
from retrysafe.protocol.store import BatchStore, CountingStore, OperableStore, Removal, Store, TransactionalStore
from retrysafe.protocol.transitions import RULES, Transition

# ---------------------------------------------------------------- claiming a key


ROUNDS = 4
"""The number of rounds in which a claim can lose a race before it reports the key as busy."""


class Won(NamedTuple):
    """The attempt holds the key. ``seen`` is the record before, if there was one."""

    ownership: Ownership
    record: Record
    seen: Record | None


class NotWon(NamedTuple):
    """The attempt does not hold the key. ``record`` is None when another claim is uncommitted, or the quota refused."""

    decision: Decision
    record: Record | None
    refusal: QuotaRefusal | None = None


ClaimResult = Won | NotWon
_SETTLED = (Decision.REPLAY, Decision.REPLAY_FAILURE, Decision.REUSED, Decision.EXPIRED)
_UNDECIDED = (Decision.TAKE, Decision.SUSPECT)


def claim(store: Store, request: ClaimRequest) -> Program[ClaimResult]:
    """Claim the key, or return the reason why it cannot be claimed."""
    refusal = None if request.quota is None else (yield from _check_quota(store, request))
    if refusal is not None:
        return NotWon(Decision.REFUSED, None, refusal)
    met = yield from ask(store.claim(request), again=not request.transactional)
    found = judge_claim(request, met)
    return (yield from claim_again(store, request, found)) if isinstance(found, Record) else found


def judge_claim(
    request: ClaimRequest, met: Record | QuotaRefusal | None, seen: Record | None = None
) -> ClaimResult | Record:
    """Turn the store's answer to a claim into an outcome, or return the record if it must be taken or marked first.

    ``seen`` is the record before.
    """
    if met is None:
        return NotWon(Decision.BUSY, None)
    if isinstance(met, QuotaRefusal):
        return NotWon(Decision.REFUSED, None, met)
    if met.attempt == request.attempt and met.state is RUNNING:  # as `decide` says, too
        transactional = request.effects == "transactional"
        ownership = Ownership(request.key, request.attempt, met.token, request.clocks, transactional, request.scoped)
        return Won(ownership, met, seen)
    decision = decide(met, request)
    return met if decision in _UNDECIDED else NotWon(decision, met)


def outcome_if_settled(request: ClaimRequest, record: Record | None) -> NotWon | None:
    """The outcome of a record that was read without a claim, if it is settled; None when the key must be claimed."""
    if record is None:
        return None
    decision = decide(record, request)
    return NotWon(decision, record) if decision in _SETTLED else None


def claim_again(store: Store, request: ClaimRequest, met: Record) -> Program[ClaimResult]:
    """Take a record, or mark its lapsed attempt as in doubt, and look again after a lost race."""
    again = not request.transactional
    seen: Record | None = None
    for left in reversed(range(ROUNDS)):
        if decide(met, request) is Decision.TAKE:
            seen = met
            taken = yield from ask(store.take(request, met), again=again)
            if taken is not None:
                won = judge_claim(request, taken, seen)
                assert isinstance(won, Won), "the store has given another record than the one that it has written"
                return won
        else:
            yield from suspect(store, met, request.clocks, again=again)
        if left:
            found = judge_claim(request, (yield from ask(store.claim(request), again=again)), seen)
            if not isinstance(found, Record):
                return found
            met = found
    return NotWon(Decision.BUSY, None)


def _check_quota(store: Store, request: ClaimRequest) -> Program[QuotaRefusal | None]:
    """Check the quota before a claim that cannot do so itself; a key that has a record needs no room."""
    refusal = yield from store.admit(request)
    if refusal is None or (yield from ask(store.read(request.key), again=True)) is not None:
        return None
    return refusal


# ---------------------------------------------------------------- ending an attempt


def settle(store: Store, ownership: Ownership, event: Transition, result: StoredResult | None = None) -> Program[bool]:
    """Settle the record by its owner; False when another attempt owns it."""
    if (yield from ask(store.settle(ownership, event, result), again=not ownership.transactional)):
        return True
    return (yield from is_settled(store, ownership, event, result))


def is_settled(store: Store, ownership: Ownership, event: Transition, result: StoredResult | None) -> Program[bool]:
    """Tell whether the owner has settled its record already, so that only the reply was lost.

    It has if the record is where it should be, by this attempt and token and with this result.
    """
    record = yield from ask(store.read(ownership.key))
    return (
        record is not None
        and (record.attempt, record.token) == (ownership.attempt, ownership.token)
        and record.state is RULES[event].target
        and record.result == result
    )


def resolve(
    store: Store, seen: Record, event: Transition, result: StoredResult | None, clocks: Clocks
) -> Program[bool]:
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


def suspect(store: Store, seen: Record, clocks: Clocks, *, again: bool = False) -> Program[bool]:
    """Mark an attempt whose lease has lapsed as in doubt; False when the record has changed meanwhile."""
    return (yield from ask(store.resolve(seen, Transition.SUSPECT, None, clocks), again=again))


def read(store: Store, key: bytes) -> Program[Record | None]:
    """Return the record of a key."""
    return (yield from ask(store.read(key), again=True))


# ---------------------------------------------------------------- keeping leases alive


def renew(store: Store, ownerships: Sequence[Ownership]) -> Program[set[Ownership]]:
    """Extend the leases of held claims; return those that are still held."""
    kept: set[Ownership] = set()
    for renewal in renewals(store, ownerships):
        kept |= yield from renewal
    return kept


def renewals(store: Store, ownerships: Sequence[Ownership]) -> list[Program[set[Ownership]]]:
    """Extend the leases of held claims; each program returns those of its claims that are still held.

    They are separate programs so that a server which does not answer for some keys does not delay the others. No ask
    has a key twice, because its answer is by key; of two claims to one key, the second has taken over the first.
    """
    batches: list[dict[bytes, Ownership]] = []
    for one in ownerships:
        batch = next((known for known in batches if one.key not in known), None)
        if batch is None:
            batches.append(batch := {})
        batch[one.key] = one
    return [_renewal(request, batch) for batch in batches for request in store.renew(list(batch.values()))]


def _renewal(request: Ask[set[bytes]], batch: Mapping[bytes, Ownership]) -> Program[set[Ownership]]:
    return {batch[key] for key in (yield from ask(request))}


# ---------------------------------------------------------------- the boundary's own transactions


def open_claim(store: TransactionalStore, request: ClaimRequest) -> Program[ClaimResult]:
    """Begin, claim, and mark the savepoint; roll back when the claim is not won."""
    yield from ask(store.begin())
    outcome = yield from claim(store, request)
    if isinstance(outcome, Won):
        yield from ask(store.savepoint())
    else:
        yield from ask(store.rollback())
    return outcome


def find_frozen_snapshot(store: TransactionalStore) -> Program[str | None]:
    """The isolation level, if under it a waiting duplicate cannot see what was committed meanwhile; else None."""
    for request in store.isolation():
        level = yield from ask(request)
        if level in ("repeatable read", "serializable"):
            return level
    return None


def conclude(
    store: TransactionalStore, ownership: Ownership, settlement: Settlement, result: StoredResult | None
) -> Program[bool]:
    """End an own transaction; False when its record is no longer in it.

    That happens when the handler has committed or rolled back by itself. If the work was refused, what it has begun
    since then is committed all the same.
    """
    if settlement.transaction is Transaction.ROLLBACK:
        yield from ask(store.rollback())
        return True
    if settlement.transaction is Transaction.SAVEPOINT:
        yield from ask(store.rollback_to_savepoint())
    if settlement.event is not None:
        either = settlement.transaction is Transaction.EITHER
        try:
            recorded = yield from settle(store, ownership, settlement.event, result)
        except TransactionEnded:
            if not either:
                raise
            yield from ask(store.rollback_to_savepoint())
            recorded = yield from settle(store, ownership, settlement.event, result)
        if not recorded:
            yield from ask(store.commit() if either else store.rollback())
            return False
    yield from ask(store.commit())
    return True


# ---------------------------------------------------------------- claims of many keys at once


class ClaimedBatch(NamedTuple):
    """The decision for each key, and the ownership of the claimed ones."""

    decisions: dict[bytes, Decision]
    ownerships: list[Ownership]


def open_many(store: BatchStore, requests: Sequence[ClaimRequest]) -> Program[ClaimedBatch]:
    """Begin, and claim all keys that have no record.

    For a key that another transaction is claiming, or that has a record, nothing is written. Its decision is BUSY, or
    the one that a separate claim would meet.
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
    ownerships = [
        Ownership(w.key, w.attempt, fresh[w.key], w.clocks, w.transactional, w.scoped)
        for w in requests
        if w.key in fresh
    ]
    return ClaimedBatch(decisions, ownerships)


def conclude_many(store: BatchStore, ownerships: Sequence[Ownership], result: StoredResult) -> Program[bool]:
    """Complete the keys and commit; roll back and return False when the transaction no longer holds all of them."""
    if ownerships and (yield from ask(store.complete_many(ownerships, result))) != len(ownerships):
        yield from ask(store.rollback())
        return False
    yield from ask(store.commit())
    return True


def doubt_many(store: BatchStore, ownerships: Sequence[Ownership]) -> Program[None]:
    """Mark the records that a handler has committed by itself as unknown."""
    for one in ownerships:
        yield from ask(store.settle(one._replace(transactional=False), Transition.DOUBT, None))


# ---------------------------------------------------------------- reading, and settling what is in doubt


PAGE = 500
"""The number of records that one ask of a scan reads."""


class Change(NamedTuple):
    """The result of a change: whether it was made, and the record before it, or the present one if none was made."""

    done: bool
    record: Record | None


def page(store: OperableStore, wanted: Filter, cursor: str | None, limit: int = PAGE) -> Program[Page]:
    """Return a page of the selected records, without their results."""
    return (yield from ask(store.scan(wanted, cursor, limit)))


def count(store: OperableStore, wanted: Filter, most: int) -> Program[Count]:
    """Count the selected records among the first ``most`` that the store looks at; where it cannot, by reading them."""
    if isinstance(store, CountingStore):
        total, capped = 0, False
        for request in store.count_selected(wanted, most):
            part = yield from ask(request)
            total, capped = total + part.records, capped or part.capped
        return Count(total, capped)
    counted, cursor = 0, None
    for _ in range(-(-most // PAGE)):
        found = yield from ask(store.scan(wanted, cursor, PAGE))
        counted, cursor = counted + len(found.records), found.cursor
        if cursor is None:
            return Count(counted, capped=False)
    return Count(counted, capped=True)


def find(store: OperableStore, wanted: Filter, limit: int) -> Program[list[Record]]:
    """Return up to ``limit`` selected records, without their results."""
    found: list[Record] = []
    cursor: str | None = None
    while len(found) < limit:
        page = yield from ask(store.scan(wanted, cursor, min(PAGE, limit - len(found))))
        found += page.records
        cursor = page.cursor
        if cursor is None:
            break
    return found[:limit]


def tally(store: OperableStore) -> Program[list[Tally]]:
    """Count the records by boundary and reported state; where the store cannot, by reading them all."""
    asks = store.tally()
    if not asks:
        return (yield from _tally_by_scan(store))
    counted: list[Tally] = []
    for request in asks:
        counted += yield from ask(request)
    return counted


def _tally_by_scan(store: OperableStore) -> Program[list[Tally]]:
    counts: dict[tuple[str, EffectiveState], tuple[int, Micros, Micros]] = {}
    cursor: str | None = None
    while True:
        page = yield from ask(store.scan(Filter(), cursor, PAGE))
        for record in page.records:
            alike = (record.boundary, record.reported_state)
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
) -> Program[Change]:
    """Settle a key whose outcome is unknown, or whose attempt died in doubt, unless another attempt owns it by now.

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


def expire_seen(
    store: Store, seen: Record, *, forget: bool = False, note: StoredResult | None = None
) -> Program[Change]:
    """End the window of a settled record that is still as seen; ``note`` is what stands in place of its result."""
    if (yield from expire(store, seen, forget=forget, note=note)):
        return Change(True, seen)
    return Change(False, (yield from read(store, seen.key)))


def clocks_of(record: Record) -> Clocks:
    """The window and memory of the record's last write, without a lease."""
    return Clocks(lease=0, window=record.expires - record.updated, memory=record.tombstone_until - record.updated)


def expire(store: Store, seen: Record, *, forget: bool = False, note: StoredResult | None = None) -> Program[bool]:
    """End the window of a settled record now, and with ``forget`` the memory of its key; False when it has changed."""
    memory = 0 if forget else max(seen.tombstone_until - seen.now, 0)
    return (yield from ask(store.resolve(seen, Transition.EXPIRE, note, Clocks(lease=0, window=0, memory=memory))))


def examine(store: OperableStore) -> Program[list[Finding]]:
    """Look at the server's settings."""
    found: list[Finding] = []
    for request in store.examine():
        found += yield from ask(request)
    return found


# ---------------------------------------------------------------- sweeping


def sweep(store: Store, limit: int, repaired: Callable[[int], object] = int) -> Program[int]:
    """Remove up to ``limit`` forgotten records; return the number of removed ones, and tell of repaired ones."""
    gone = 0
    requests: Iterable[Ask[Any]] = store.sweep(limit)
    for request in requests:
        answer: int | Removal = yield from ask(request)
        if isinstance(answer, Removal):
            repaired(answer.repaired)
            answer = answer.removed
        gone += answer
    return gone


def forgotten(store: OperableStore, limit: int) -> Program[list[Record]]:
    """Return up to ``limit`` forgotten records, to be archived and then removed."""
    found: list[Record] = []
    for request in store.forgotten(limit):
        found += yield from ask(request)
    return found


def remove(store: OperableStore, seen: Sequence[Record]) -> Program[int]:
    """Remove archived records; return their number. A record whose key was used again stays."""
    gone = 0
    for request in store.remove(seen):
        gone += yield from ask(request)
    return gone
