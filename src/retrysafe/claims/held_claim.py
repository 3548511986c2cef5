"""A claim that was won: its lease, and how its attempt ends in the store, for observers and for the caller."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from retrysafe.backends.backend import Backend
from retrysafe.claims.deferred import Deferred
from retrysafe.claims.heartbeat import LeaseTerm, LoopHeartbeat, ThreadHeartbeat, for_loop, for_thread
from retrysafe.claims.modes import RECORDED, ClaimMode, Settled
from retrysafe.claims.observers import UNOBSERVED, AttemptEvents
from retrysafe.claims.outcome import NO_SIGNALS, HandlerSignals, WorkOutcome, end_of
from retrysafe.claims.sealing import Bound, seal
from retrysafe.claims.settings import BoundarySettings
from retrysafe.claims.timing import Timing
from retrysafe.errors import InProgress, LeaseLost, OutcomeUnknown, Postponed, RetryTransaction, StoreUnavailable
from retrysafe.protocol.exception_groups import unwrap
from retrysafe.protocol.outcomes import Answered, ModeKind
from retrysafe.protocol.procedures import Won, settle
from retrysafe.protocol.records import ClaimRequest, Ownership
from retrysafe.protocol.transitions import RULES, Transition

_ENDS = {Transition.FAIL: "failed", Transition.RELEASE: "released", Transition.DOUBT: "unknown"}
_ENDED = (
    "tx= was ended inside the block; or, on SQLite, MySQL and MariaDB, a savepoint or claim that began in it before "
    "this claim did has ended before it."
)


class HeldClaim(LeaseTerm):
    """A key that was won. It does not keep its claim alive, which may go while a heartbeat has this.

    A transactional one has no lease: nothing renews it, and it is not asked whether it is held.
    """

    heartbeat: ThreadHeartbeat | LoopHeartbeat | None = None
    """Renews the lease; None for a transactional claim."""

    def __init__(
        self,
        claim: object,
        settings: BoundarySettings,
        mode: ClaimMode,
        request: ClaimRequest,
        won: Won,
        claimed_at: float,
        events: AttemptEvents,
    ) -> None:
        super().__init__(won.ownership, claimed_at, events, weakref.ref(claim))
        self.record = won.record
        self._settings = settings
        self._mode = mode
        self._request = request

    def refuse_ended(self) -> None:
        """Raise `InProgress` for a lease that has ended before the work began, which must not begin then."""
        if not self.is_held():
            raise InProgress("The store took longer to answer than the lease lasts: another attempt may have the key.")

    def let_go(self) -> None:
        """Renew the lease no more, whatever has become of the attempt: its key must not stay taken."""
        if self.heartbeat is not None:
            self.heartbeat.drop(self)

    # ------------------------------------------------------------ the end

    def end(self, signals: HandlerSignals, result: Any, annotation: Any, error: BaseException | None) -> None:
        """Record how the block ended, and raise what the caller must know."""
        try:
            outcome = end_of(signals, error, self._mode.kind, self._settings, result, annotation)
            if self._settings.encryption is not None:
                self._seal(outcome)
            ownership = self.ownership if signals is NO_SIGNALS else self._ownership_of(signals)
            timing = Timing(self.events, "settle") if self.events.detailed else None
            try:
                settled = self._mode.settle(ownership, outcome.settlement, outcome.stored, error=error)
            except Exception as failure:
                self._report_failure(failure, timing)
                raise
            self._report(settled, signals, outcome, error, timing, for_thread)
            if ownership.transactional:
                self._mode.after()
        finally:
            if self.heartbeat is not None:
                self.heartbeat.drop(self)

    async def aend(self, signals: HandlerSignals, result: Any, annotation: Any, error: BaseException | None) -> None:
        """`end` for async code."""
        try:
            outcome = end_of(signals, error, self._mode.kind, self._settings, result, annotation)
            if self._settings.encryption is not None:
                self._seal(outcome)
            ownership = self.ownership if signals is NO_SIGNALS else self._ownership_of(signals)
            timing = Timing(self.events, "settle") if self.events.detailed else None
            try:
                settled = await self._mode.asettle(ownership, outcome.settlement, outcome.stored, error=error)
            except Exception as failure:
                self._report_failure(failure, timing)
                raise
            self._report(settled, signals, outcome, error, timing, for_loop)  # no hooks: Django alone has some
        finally:
            if self.heartbeat is not None:
                self.heartbeat.drop(self)

    def _seal(self, outcome: WorkOutcome) -> None:
        if outcome.settlement.event is not None:
            target = RULES[outcome.settlement.event].target
            assert target is not None
            outcome.stored = seal(self._settings.encryption, outcome.stored, Bound.of(self._request, target))

    def _ownership_of(self, signals: HandlerSignals) -> Ownership:
        """The ownership, with the clocks of what it leaves: a key to be used elsewhere is free for any request."""
        ownership = self.ownership
        if signals.answered[0] is not Answered.ELSEWHERE:
            return ownership
        memory = 0 if self._request.on_expired == "refuse" else ownership.clocks.memory
        return ownership._replace(clocks=ownership.clocks._replace(window=0, memory=memory))

    def _announce(self) -> None:
        """Wake those who wait for the key, and pass on what the store has warned of."""
        backend = self._settings.backend
        tell_warnings(backend, self.events)
        backend.wakeups.wake(self.ownership.key)

    def _report(
        self,
        settled: Settled,
        signals: HandlerSignals,
        outcome: WorkOutcome,
        error: BaseException | None,
        timing: Timing | None,
        heartbeat_of: Callable[[Backend], ThreadHeartbeat | LoopHeartbeat],
    ) -> None:
        """Tell what happened, and raise what the caller must know.

        A claim that was left while it was entered has no heartbeat yet that could carry its outcome.
        """
        backend = self._settings.backend
        if timing is not None:
            timing.tell(answered=settled is not Settled.UNANSWERED)
        if backend.warnings or backend.cache is not None or backend.wakeups.waiting:
            self._announce()
        if settled is RECORDED:
            if self.events is not UNOBSERVED:
                _tell_recorded(self.events, signals, outcome, error)
        elif settled is Settled.UNANSWERED:
            (self.heartbeat or heartbeat_of(backend)).carry(self._defer(signals, outcome, error))
            self.events.emit("settle_deferred", ending=outcome.ending.name.lower())
        elif settled is Settled.LOST:
            self._report_loss(error)
        elif settled is Settled.DOUBTED:
            self.events.emit("unknown", error_type=_cause(signals, error or outcome.unencodable))
        else:
            self.events.emit("rolled_back", error_type=_cause(signals, error or outcome.unencodable))
        if outcome.unencodable is not None:
            raise outcome.unencodable
        if error is not None and self._can_restart(settled, error):
            raise RetryTransaction(str(error)) from error

    def _report_failure(self, failure: Exception, timing: Timing | None) -> None:
        """Tell that the outcome, or the transaction that carries it, could not be stored as wanted."""
        if timing is not None:
            timing.tell(answered=not isinstance(failure, StoreUnavailable))
        self._announce()
        if isinstance(failure, OutcomeUnknown):
            self.events.emit("unknown", error_type=type(failure).__name__)
        elif self.ownership.transactional:
            self.events.emit("rolled_back", error_type=type(failure).__name__)
        else:
            self.events.emit("result_not_stored", ending=type(failure).__name__)

    def _report_loss(self, error: BaseException | None) -> None:
        if not self.lost:
            self.events.emit("lease_lost")
        if error is None:
            raise LeaseLost(_ENDED if self.ownership.transactional else "Another attempt has taken the key over.")

    def _can_restart(self, settled: Settled, error: BaseException) -> bool:
        """Tell whether the database wants the whole transaction again, and nothing of it was committed."""
        own = self._mode.kind is ModeKind.OWN and settled is not Settled.DOUBTED
        return own and not isinstance(error, RetryTransaction) and self._settings.backend.restarts(error)

    # ------------------------------------------------------------ an end that the store has not taken

    def _defer(self, signals: HandlerSignals, outcome: WorkOutcome, error: BaseException | None) -> Deferred:
        """The outcome as it is put to the store again, while the lease lasts, by the heartbeat."""
        settings, request, event = self._settings, self._request, outcome.settlement.event
        assert event is not None
        ownership, stored = self._ownership_of(signals), outcome.stored
        events = AttemptEvents(settings.observers, request, self.events.detailed)

        def conclude(done: bool | None) -> None:
            settings.backend.wakeups.wake(request.key)
            if done is None:
                events.emit("result_not_stored", ending=outcome.ending.name.lower())
            elif done:
                _tell_recorded(events, signals, outcome, error)
            else:
                events.emit("lease_lost")

        return Deferred(self.until, lambda: settle(settings.backend.store, ownership, event, stored), conclude)


def tell_warnings(backend: Backend, events: AttemptEvents) -> None:
    """Pass on what the first look at the server's settings found, and what the server said by itself."""
    warnings = backend.warnings if backend.cache is None else backend.cache.warnings or backend.warnings
    while warnings:
        try:
            finding = warnings.pop(0)
        except IndexError:  # another thread was quicker
            return
        events.emit("store_warning", setting=finding.name, text=finding.text)


def _tell_recorded(
    events: AttemptEvents, signals: HandlerSignals, outcome: WorkOutcome, error: BaseException | None
) -> None:
    event = outcome.settlement.event
    assert event is not None
    if outcome.unencodable is not None:
        events.emit("result_withheld")
    elif event not in _ENDS:
        events.emit("completed")
    elif event is Transition.RELEASE and isinstance(error, Postponed):
        events.emit("postponed", retry_after=error.retry_after)
    else:
        events.emit(_ENDS[event], error_type=_cause(signals, signals.failure or error))


def _cause(signals: HandlerSignals, error: BaseException | None) -> str:
    """Return the `error_type` of an event: the exception's class, or the entry point's reason."""
    return signals.answered[1] if error is None else type(unwrap(error)).__name__
