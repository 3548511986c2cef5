"""What observers and the caller are told of how an attempt ended, once the store has had its say."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from retrysafe.claims.lease import Lease
from retrysafe.claims.modes import Settled
from retrysafe.claims.outcome import HandlerSignals, WorkOutcome
from retrysafe.claims.settings import BoundarySettings
from retrysafe.errors import LeaseLost, OutcomeUnknown, RetryTransaction
from retrysafe.protocol.exception_groups import unwrapped
from retrysafe.protocol.outcomes import Ending
from retrysafe.protocol.transitions import Transition

_ENDS = {Transition.FAIL: "failed", Transition.RELEASE: "released", Transition.DOUBT: "unknown"}
_ENDED = (
    "tx= was ended inside the block; or, on SQLite, MySQL and MariaDB, a savepoint or claim that began in it before "
    "this claim did has ended before it."
)


class Conclusion(NamedTuple):
    """The end of an attempt that held its key; ``own``: in a transaction of the boundary's own."""

    terms: BoundarySettings
    said: HandlerSignals
    lease: Lease | None
    tell: Callable[..., None]
    own: bool

    def not_settled(self, failure: Exception) -> None:
        """The transaction that carries the outcome could not be ended as wanted."""
        if isinstance(failure, OutcomeUnknown):
            self.tell("unknown", error_type=type(failure).__name__)
        elif self.lease is None:
            self.tell("rolled_back", error_type=type(failure).__name__)
        else:
            self.tell("result_not_stored", ending=type(failure).__name__)

    def reached(self, settled: Settled, end: WorkOutcome, error: BaseException | None) -> None:
        """Tell what happened, and raise what the caller must know."""
        if settled is Settled.UNANSWERED:
            self.tell("settle_deferred", ending=end.ending.name.lower())
        elif settled is Settled.LOST:
            self._lost(error)
        elif settled is Settled.DOUBTED:
            self.tell("unknown", error_type=self._cause(error or end.unencodable))
        elif settled is Settled.BROKEN or end.word.event is None:
            self.tell("rolled_back", error_type=self._cause(error or end.unencodable))
        else:
            self._recorded(end, end.word.event, error)
        if end.unencodable is not None:
            raise end.unencodable
        if error is not None and self._can_restart(settled, error):
            raise RetryTransaction(str(error)) from error

    def reached_late(self, done: bool | None, end: WorkOutcome, error: BaseException | None) -> None:
        """Tell what became of an outcome that the store had not taken at once; None: nothing, and its time is up."""
        if done is None:
            self.tell("result_not_stored", ending=end.ending.name.lower())
        elif done and end.word.event is not None:
            self._recorded(end, end.word.event, error)
        else:
            self.tell("lease_lost")

    def _lost(self, error: BaseException | None) -> None:
        if self.lease is None or not self.lease.lost:
            self.tell("lease_lost")
        if error is None:
            raise LeaseLost("Another attempt has taken the key over." if self.lease is not None else _ENDED)

    def _recorded(self, end: WorkOutcome, event: Transition, error: BaseException | None) -> None:
        if end.ending is Ending.UNENCODABLE:
            self.tell("result_withheld")
        elif event is Transition.COMPLETE:
            self.tell("completed")
        else:
            self.tell(_ENDS[event], error_type=self._cause(self.said.failure or error))

    def _cause(self, error: BaseException | None) -> str:
        """What a failure is told as: the type of its error, or what the entry point said of the answer."""
        return self.said.answered[1] if error is None else type(unwrapped(error)).__name__

    def _can_restart(self, settled: Settled, error: BaseException) -> bool:
        """Whether the database wants the whole transaction again, and nothing of it was committed."""
        own = self.own and settled is not Settled.DOUBTED
        return own and not isinstance(error, RetryTransaction) and self.terms.backend.restarts(error)
