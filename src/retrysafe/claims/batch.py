"""Claims of many keys at once: one transaction of the boundary's own, for work that comes in batches."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

from retrysafe.backends.backend import Backend
from retrysafe.backends.driver import arestarting, arun, restarting, run
from retrysafe.cancellation import run_to_completion
from retrysafe.claims.context import ClaimContext
from retrysafe.claims.outcome import encode_result
from retrysafe.claims.settings import BoundarySettings
from retrysafe.errors import OutcomeUnknown
from retrysafe.protocol.decisions import Decision
from retrysafe.protocol.procedures import conclude_many, doubt_many, open_many
from retrysafe.protocol.records import ClaimRequest, Ownership


class Claims:
    """One attempt at several keys, for ``with`` and ``async with``: all that are fresh are completed, or none.

    Inside the block, ``decisions`` tells of every key what is to be done: MINE, the work is yours; REPLAY, it was done;
    anything else, claim it by itself. An exception rolls everything back, the claims included.
    """

    def __init__(self, settings: BoundarySettings, requests: Sequence[ClaimRequest], operation: str) -> None:
        attempt = requests[0].attempt
        self.decisions: dict[bytes, Decision] = {}
        self.result: Any = None
        """The stored result of each key."""
        self.operation = operation
        self._settings = settings
        self._requests = [request._replace(attempt=attempt) for request in requests]
        self._store: Any = settings.backend.store
        self._held: list[Ownership] = []
        self._context: ClaimContext | None = None
        self._lending: Any = None
        self._opened: Any = None

    @property
    def keys(self) -> list[bytes]:
        """The keys of the records, in the order in which they were given."""
        return [request.key for request in self._requests]

    @property
    def boundary(self) -> str:
        """The name of the boundary."""
        return self._settings.name

    @property
    def tx(self) -> Any:
        """The transaction in which the work is done."""
        return None if self._opened is None else self._opened.handle

    @property
    def _transaction(self) -> Any:
        return self.tx

    # ------------------------------------------------------------ entering

    def __enter__(self) -> Claims:
        try:
            restarting(self._enter)
            self._context = ClaimContext(self, self.tx)
        except BaseException as error:
            self._give_back(error)
            raise
        return self

    def _enter(self) -> None:
        client = self._settings.backend.ready()
        self._lending = client.transaction()
        self._opened = self._lending.__enter__()
        try:
            self.decisions, self._held = run(open_many(self._store, self._requests), self._opened.execute)
        except BaseException as error:
            self._give_back(error)
            raise

    async def __aenter__(self) -> Claims:
        _, cancelled = await run_to_completion(arestarting(self._aenter))
        if cancelled is not None:
            await run_to_completion(self._agive_back())
            raise cancelled
        self._context = ClaimContext(self, self.tx)
        return self

    async def _aenter(self) -> None:
        client = await self._settings.backend.aready()
        self._lending = client.transaction()
        self._opened = await self._lending.__aenter__()
        try:
            self.decisions, self._held = await arun(open_many(self._store, self._requests), self._opened.execute)
        except BaseException:
            await self._agive_back()
            raise

    # ------------------------------------------------------------ leaving

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        held, kept = self._held, False
        try:
            if not self._leave():
                return
            if error is None:
                kept = run(conclude_many(self._store, held, self._stored()), self._opened.execute)
            self._give_back()
        except BaseException as raised:
            self._give_back(raised)
            raise
        if error is None and not kept:
            run(doubt_many(self._store, held), self._settings.backend.client())
        self._conclude(held, kept, error)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._leave():
            return
        _, cancelled = await run_to_completion(self._aexit(error))
        if cancelled is not None:
            raise cancelled

    async def _aexit(self, error: BaseException | None) -> None:
        held, kept = self._held, False
        try:
            if error is None:
                kept = await arun(conclude_many(self._store, held, self._stored()), self._opened.execute)
        finally:
            await self._agive_back()
        if error is None and not kept:
            await arun(doubt_many(self._store, held), self._settings.backend.aclient())
        self._conclude(held, kept, error)

    def _conclude(self, held: Sequence[Ownership], kept: bool, error: BaseException | None) -> None:
        """Wake who waits, tell what happened, and raise what the caller must know."""
        name, fields = ("completed", {}) if kept else ("rolled_back", {"error_type": type(error).__name__})
        observed = self._settings.observers.is_enabled(name)
        for one in held:
            self._settings.backend.wakeups.wake(one.key)
            if observed:
                self._settings.observers.emit(name, self.boundary, self.operation, one.key, one.attempt, fields)
        if error is None and not kept:
            raise OutcomeUnknown("The handler ended the transaction of its batch by itself.")

    # ------------------------------------------------------------ small things

    def committed(self) -> None:
        """See `Claim.committed`: a batch that fails is handled again one by one, each under a claim of its own."""

    def not_executed(self) -> None:
        """See `Claim.not_executed`."""

    def _leave(self) -> bool:
        return self._context is not None and self._context.leave()

    def _stored(self) -> Any:
        return encode_result(self._settings.codec, self.result, None, self._settings.largest_result)

    def _give_back(self, error: BaseException | None = None) -> None:
        """End what was lent, if it is not ended; an error is thrown into it: nothing half used is lent again."""
        if self._lending is not None:
            self._lending.__exit__(None if error is None else type(error), error, None)
        self._lending = self._opened = None

    async def _agive_back(self) -> None:
        lending, self._lending, self._opened = self._lending, None, None
        await lending.__aexit__(None, None, None)

    @property
    def _backend(self) -> Backend:
        return self._settings.backend

    @property
    def _held_key(self) -> bytes | None:
        return None
