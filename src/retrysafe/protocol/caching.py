"""A cache in front of a durable store: what is settled may be answered from it, claims never are."""

from __future__ import annotations

from retrysafe.protocol.decisions import Decision, decide
from retrysafe.protocol.procedures import ClaimResult, NotWon
from retrysafe.protocol.records import ClaimRequest, Micros, Record, State
from retrysafe.protocol.requests import Program, ask
from retrysafe.protocol.store import Cache

_ANSWERS = (Decision.REPLAY, Decision.REPLAY_FAILURE, Decision.REUSED)


def look(cache: Cache, request: ClaimRequest) -> Program[tuple[NotWon | None, Micros]]:
    """Return the answer that the cache has for a claim, if any, and the cache's time of it."""
    found = yield from ask(cache.look(request.key))
    if found.record is not None:
        decision = decide(found.record, request)
        if decision in _ANSWERS:
            return NotWon(decision, found.record), found.now
    return None, found.now


def keep(cache: Cache, outcome: ClaimResult, looked: Micros, at_most: Micros) -> Program[None]:
    """Keep the settled record that a claim met, for what is left of it.

    The cache's time was read before the record was, so the record is dropped before its window ends.
    """
    record = outcome.record
    if isinstance(outcome, NotWon) and record is not None and record.state in (State.COMPLETED, State.FAILED):
        left = min(record.expires, record.tombstone_until) - record.now
        if left > 0:
            yield from ask(cache.keep(record, looked + min(left, at_most)))


def drop(cache: Cache, changed: Record, at_most: Micros) -> Program[None]:
    """Forget a record that an operator has changed, and what others may have read before the change."""
    found = yield from ask(cache.look(changed.key))
    yield from ask(cache.drop(changed, found.now + at_most))
