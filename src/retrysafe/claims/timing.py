"""The time that the store takes to answer, measured only for observers that ask for the event."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

from retrysafe.claims.lease import clock
from retrysafe.claims.modes import ClaimMode, Settled
from retrysafe.claims.observers import AttemptEvents
from retrysafe.errors import StoreUnavailable
from retrysafe.protocol.outcomes import Settlement
from retrysafe.protocol.procedures import ClaimResult
from retrysafe.protocol.records import ClaimRequest, Ownership, StoredResult

if TYPE_CHECKING:
    from retrysafe.protocol.client import AsyncExecutor, Executor


class Timing:
    """Tells how long a step took, and whether the store answered; for ``with``."""

    def __init__(self, events: AttemptEvents, step: str) -> None:
        self.answered = True
        self._events = events
        self._step = step

    def __enter__(self) -> Timing:
        self._began = clock()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        answered = self.answered and not isinstance(error, StoreUnavailable)
        self._events.emit("store_request", step=self._step, seconds=round(clock() - self._began, 6), answered=answered)


class Timed:
    """A mode whose store is timed: from asking, with the wait for a connection and a commit, to the answer."""

    def __init__(self, mode: ClaimMode, events: AttemptEvents) -> None:
        self.kind = mode.kind
        self.waits = mode.waits
        self._mode = mode
        self._events = events

    @property
    def tx(self) -> Any:
        return self._mode.tx

    def executor(self) -> Executor:
        return self._mode.executor()

    def aexecutor(self) -> AsyncExecutor:
        return self._mode.aexecutor()

    def claim(self, request: ClaimRequest) -> ClaimResult:
        with Timing(self._events, "claim"):
            return self._mode.claim(request)

    async def aclaim(self, request: ClaimRequest) -> ClaimResult:
        with Timing(self._events, "claim"):
            return await self._mode.aclaim(request)

    def settle(self, held: Ownership, settlement: Settlement, stored: StoredResult | None, *, failing: bool) -> Settled:
        with Timing(self._events, "settle") as timing:
            settled = self._mode.settle(held, settlement, stored, failing=failing)
            timing.answered = settled is not Settled.UNANSWERED
        return settled

    def after(self) -> None:
        self._mode.after()

    def abandon(self, error: BaseException) -> None:
        self._mode.abandon(error)

    async def asettle(
        self, held: Ownership, settlement: Settlement, stored: StoredResult | None, *, failing: bool
    ) -> Settled:
        with Timing(self._events, "settle") as timing:
            settled = await self._mode.asettle(held, settlement, stored, failing=failing)
            timing.answered = settled is not Settled.UNANSWERED
        return settled
