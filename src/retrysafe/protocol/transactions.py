"""The boundary's own transactions: claim, savepoint, conclude and commit as one program each."""

from __future__ import annotations

from retrysafe.protocol.asks import Steps, ask
from retrysafe.protocol.claiming import Outcome, Won, claim
from retrysafe.protocol.outcomes import Settlement, Transaction
from retrysafe.protocol.records import ClaimRequest, Ownership, StoredResult
from retrysafe.protocol.settling import settle
from retrysafe.protocol.store import TransactionalStore


def open_claim(store: TransactionalStore, want: ClaimRequest) -> Steps[Outcome]:
    """Begin, claim, and mark the savepoint; roll back when the claim is not won."""
    yield from ask(store.begin())
    outcome = yield from claim(store, want)
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
