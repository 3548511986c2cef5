"""Several fresh keys claimed and completed in one transaction of the boundary's own, a statement each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from retrysafe.protocol.asks import Steps, ask
from retrysafe.protocol.decisions import Decision, decide
from retrysafe.protocol.records import ClaimRequest, Ownership, StoredResult
from retrysafe.protocol.store import BatchStore
from retrysafe.protocol.transitions import Transition


class Opened(NamedTuple):
    """What is to be done about each key, and what is held of those that are this attempt's."""

    decisions: dict[bytes, Decision]
    held: list[Ownership]


def open_many(store: BatchStore, wants: Sequence[ClaimRequest]) -> Steps[Opened]:
    """Begin, and claim all keys that have no record.

    Of a key that another transaction is claiming, or whose record is in the way, nothing is written: BUSY, or what its
    record means for a claim of its own.
    """
    yield from ask(store.begin())
    fresh = yield from ask(store.claim_many(wants))
    decisions = {want.key: Decision.MINE if want.key in fresh else Decision.BUSY for want in wants}
    others = [want for want in wants if want.key not in fresh]
    if others:
        records = yield from ask(store.read_many([want.key for want in others]))
        for want in others:
            record = records.get(want.key)
            if record is not None:
                decisions[want.key] = decide(record, want)
    held = [Ownership(w.key, w.attempt, fresh[w.key], w.clocks, w.transactional) for w in wants if w.key in fresh]
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
