"""Claims of many keys at once: one transaction of the boundary's own, for work that comes in batches."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

from retrysafe.backends.backend import Backend
from retrysafe.cancellation import run_to_completion
from retrysafe.claims.context import ClaimContext
from retrysafe.claims.modes import OwnTransaction
from retrysafe.claims.outcome import encode_result
from retrysafe.claims.settings import BoundarySettings
from retrysafe.errors import OutcomeUnknown
from retrysafe.protocol.decisions import Decision
from retrysafe.protocol.records import ClaimRequest, Ownership, StoredResult


class BatchClaim:
    """One attempt at several keys, for ``with`` and ``async with``: all that are fresh are completed, or none.

    Inside the block, ``decisions`` tells of every key what is to be done: MINE, the work is yours; REPLAY, it was done;
    anything else, claim it by itself. An exception rolls everything back, the claims included.
    """

    is_named_lease = False

    def __init__(self, settings: BoundarySettings, requests: Sequence[ClaimRequest], operation: str) -> None:
        attempt = requests[0].attempt
        self.decisions: dict[bytes, Decision] = {}
        self.result: Any = None
        """The one result that is stored for every key."""
        self.operation = operation
        self._settings = settings
        self._requests = [request._replace(attempt=attempt) for request in requests]
        self._mode = OwnTransaction(settings.backend)
        self._ownerships: list[Ownership] = []
        self._context: ClaimContext | None = None

    @property
    def boundary(self) -> str:
        """The name of the boundary."""
        return self._settings.name

    @property
    def tx(self) -> Any:
        """The transaction in which the work is done."""
        return self._mode.tx

    def __enter__(self) -> BatchClaim:
        try:
            self.decisions, self._ownerships = self._mode.claim_many(self._requests)
            self._context = ClaimContext(self, self.tx)
        except BaseException as error:
            self._mode.abandon(error)
            raise
        return self

    async def __aenter__(self) -> BatchClaim:
        (self.decisions, self._ownerships), cancelled = await run_to_completion(self._mode.aclaim_many(self._requests))
        if cancelled is not None:
            await run_to_completion(self._mode.agive_back())
            raise cancelled
        self._context = ClaimContext(self, self.tx)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._context is None or not self._context.leave():
            return
        kept = False
        try:
            if error is None:
                kept = self._mode.conclude_many(self._ownerships, self._encode())
            else:
                self._mode.give_back()
        except BaseException as raised:
            self._mode.abandon(raised)
            raise
        self._report(error, kept=kept)
        if kept:
            self._mode.after()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._context is None or not self._context.leave():
            return
        _, cancelled = await run_to_completion(self._aexit(error))
        if cancelled is not None:
            raise cancelled

    async def _aexit(self, error: BaseException | None) -> None:
        kept = False
        if error is None:
            try:
                stored = self._encode()
            except BaseException:
                await self._mode.agive_back()
                raise
            kept = await self._mode.aconclude_many(self._ownerships, stored)
        else:
            await self._mode.agive_back()
        self._report(error, kept=kept)

    def _report(self, error: BaseException | None, *, kept: bool) -> None:
        """Wake those who wait, tell what happened, and raise what the caller must know."""
        name = "completed" if kept else "unknown" if error is None else "rolled_back"
        fields = {} if kept else {"error_type": "" if error is None else type(error).__name__}
        observed = self._settings.observers.is_enabled(name)
        for one in self._ownerships:
            self._settings.backend.wakeups.wake(one.key)
            if observed:
                self._settings.observers.emit(name, self.boundary, self.operation, one.key, one.attempt, fields)
        if error is None and not kept:
            raise OutcomeUnknown("The handler ended the transaction of its batch by itself.")

    def committed(self) -> None:
        """See `Claim.committed`: a batch that fails is handled again one by one, each under a claim of its own."""

    def not_executed(self) -> None:
        """See `Claim.not_executed`."""

    def _encode(self) -> StoredResult:
        return encode_result(self._settings.codec, self.result, None, self._settings.largest_result)

    @property
    def _transaction(self) -> Any:
        return self.tx

    @property
    def _backend(self) -> Backend:
        return self._settings.backend

    @property
    def _held_key(self) -> bytes | None:
        return None
