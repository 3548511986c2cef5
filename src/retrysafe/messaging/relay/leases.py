"""Leases of buckets: records of the store, as claims of a boundary have them, that one relay holds at a time.

A relay publishes under such a lease where a transaction cannot stay open meanwhile. The lease is renewed while the
relay lives, and every write under it names its fencing token.
"""

from __future__ import annotations

from collections.abc import Callable

from retrysafe.backends.backend import Backend
from retrysafe.claims import attempt_ids
from retrysafe.claims.deferred import Deferred
from retrysafe.claims.heartbeat import LeaseTerm, LoopHeartbeat, ThreadHeartbeat, clock
from retrysafe.claims.observers import UNOBSERVED
from retrysafe.errors import LeaseLost, RetrysafeError, StoreUnavailable
from retrysafe.protocol.keys import Lookup
from retrysafe.protocol.records import RELAY, ClaimRequest, Clocks, Ownership, State
from retrysafe.protocol.requests import Program, ask
from retrysafe.protocol.store import Store
from retrysafe.protocol.transitions import Transition

KEPT = 86_400_000_000
"""Microseconds for which a record is kept when no relay has the bucket."""
LOST = "Another relay holds the bucket. What was published is published again, under its ids."


class BucketLeases:
    def __init__(self, backend: Backend, seconds: float) -> None:
        self.backend = backend
        self._clocks = Clocks(round(seconds * 1e6), KEPT, KEPT)
        self._lookup = Lookup(None, RELAY, "", RELAY)

    def request(self, number: int) -> ClaimRequest:
        """Ask for the lease of a bucket, by a new attempt."""
        key = self._lookup.of(f"bucket {number}")
        return ClaimRequest(key, RELAY, "", RELAY, b"", attempt_ids.new(), "keyed", self._clocks, scoped=False)


class BucketLease:
    def __init__(
        self, leases: BucketLeases, number: int, heartbeat_of: Callable[[Backend], ThreadHeartbeat | LoopHeartbeat]
    ) -> None:
        self.request = leases.request(number)
        self._heartbeat = heartbeat_of(leases.backend)
        self._store = leases.backend.store
        self._claimed_at = clock()

    def begin(self, ownership: Ownership) -> None:
        """Renew the lease from now on."""
        self.ownership = ownership
        self.term = LeaseTerm(ownership, self._claimed_at, UNOBSERVED)
        self._heartbeat.add(self.term)

    def end(self) -> None:
        self._heartbeat.drop(self.term)

    def ensure_held(self) -> None:
        """Raise `LeaseLost` unless it is certainly still held."""
        if not self.term.is_held():
            raise LeaseLost(LOST)

    def give_back_later(self, error: BaseException | None = None) -> None:
        """Release it as soon as the store answers, unless ``error`` says that it was not won."""
        if isinstance(error, RetrysafeError) and not (isinstance(error, StoreUnavailable) and not error.unsent):
            return
        until = self._claimed_at + self.request.clocks.lease / 1e6
        self._heartbeat.carry(Deferred(until, lambda: _release(self._store, self.request), lambda _: None))


def _release(store: Store, request: ClaimRequest) -> Program[bool]:
    """Release a key if this attempt has won it: the reply may have been lost."""
    record = yield from ask(store.read(request.key))
    if record is None or record.attempt != request.attempt or record.state is not State.RUNNING:
        return False
    ownership = Ownership(
        request.key, request.attempt, record.token, request.clocks, transactional=False, scoped=request.scoped
    )
    return (yield from ask(store.settle(ownership, Transition.RELEASE, None)))
