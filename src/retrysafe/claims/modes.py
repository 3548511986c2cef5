"""The three modes of a claim: how its record and the effect are kept together, and how its writes reach the store.

                        record is written     held by             if the process dies
    LeaseMode           by itself             a lease             the lease lapses; the next attempt takes over (keyed)
                                                                  or marks the key unknown (external)
    OwnTransaction      with the effect, in   the transaction     the database rolls back; the key has no record
                        our transaction
    CallerTransaction   with the effect, in   the transaction     the database rolls back; the key has no record
                        the caller's

A claim chooses its mode before it asks the store. It then calls ``claim`` (again after each wait), runs the work, and
calls ``settle`` once with a `Settlement` from the table of outcomes: the event to record, and how an own transaction
ends. ``after`` runs hooks that wait for the commit; ``abandon`` releases a transaction after an exception that was
raised outside of these calls. A mode with a transaction belongs to one claim; a `LeaseMode` serves all of a plan.

`LeaseMode`
    ``claim`` puts one request, and starts the procedure only when its answer must be acted upon. ``settle`` reports
    LOST when another attempt has taken the key over. A store that does not answer does not undo the work: ``settle``
    returns UNANSWERED, and the claim hands the outcome to the heartbeat, which tries again until the lease ends.

`OwnTransaction`
    ``claim`` borrows a connection, begins, inserts the record and sets a savepoint; a claim that is not won rolls back
    and returns the connection. A duplicate waits in its own insert until the first transaction ends. Where a read is
    cheap beside a transaction (``looks_first``), the record is read first, so that a replay opens none. ``settle``
    writes the outcome and commits. If the reply to the commit is lost, the record is read back on another connection:
    it is there, by this attempt and token, if and only if the transaction was committed. If the handler has committed
    or rolled back by itself, the record is not there to be settled: it is marked unknown where it was committed, and
    the caller gets `OutcomeUnknown`, or `ConfigurationError` unless the work was refused and so wants no record.

`CallerTransaction`
    The requests are put on the caller's connection, which is never committed or rolled back here. The outcome is final
    only when the caller commits. If the caller has ended the transaction, ``settle`` changes no row, and reports LOST:
    the row carries the number of its transaction, or where there is none, as on SQLite and MySQL, a savepoint of the
    claim is released first (`retrysafe.backends.sql.transactions`). A request that fails has usually broken the
    transaction: if the work is failing anyway, ``settle`` returns BROKEN and the work's own error is raised.

The methods for async code (``aclaim``, ``asettle``) run the same procedures with the other driver.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from retrysafe.backends.backend import Backend
from retrysafe.backends.driver import aput, arun, arun_transaction, put, run, run_transaction
from retrysafe.errors import (
    ConfigurationError,
    OutcomeUnknown,
    RetrysafeError,
    SchemaOutdated,
    StoreUnavailable,
)
from retrysafe.protocol.outcomes import ModeKind, Settlement
from retrysafe.protocol.procedures import (
    ClaimedBatch,
    ClaimResult,
    Won,
    claim,
    claim_again,
    conclude,
    conclude_many,
    doubt_many,
    is_settled,
    judge_claim,
    open_claim,
    open_many,
    outcome_if_settled,
    read,
    settle,
)
from retrysafe.protocol.records import ClaimRequest, Ownership, Record, StoredResult
from retrysafe.protocol.requests import Program, TransactionEnded, ask
from retrysafe.protocol.transitions import RULES, Transition

if TYPE_CHECKING:
    from retrysafe.backends.cache import ReadThroughCache
    from retrysafe.protocol.client import AfterCommit, AsyncExecutor, Executor


class Settled(Enum):
    """The result of recording an outcome."""

    RECORDED = "the store has it"
    ROLLED_BACK = "nothing of it is in the store"
    LOST = "the record is another attempt's, or no longer in this transaction"
    UNANSWERED = "the store did not answer"
    DOUBTED = "the handler had committed by itself before it failed: the outcome is unknown"
    BROKEN = "the transaction could not be written to any more; it rolls back by itself"


RECORDED = Settled.RECORDED
"""The usual one, as `retrysafe.protocol.records.RUNNING`."""


class ClaimMode(Protocol):
    """Keeps a claim's record and its effect together."""

    kind: ModeKind
    waits: bool
    """True if waiting for another attempt can help here."""

    @property
    def tx(self) -> Any:
        """The transaction that the record shares, if any."""
        ...

    def executor(self) -> Executor:
        """Performs requests beside the handler's work."""
        ...

    def aexecutor(self) -> AsyncExecutor:
        """`executor` for async code."""
        ...

    def claim(self, request: ClaimRequest) -> ClaimResult:
        """Try to claim the key."""
        ...

    async def aclaim(self, request: ClaimRequest) -> ClaimResult:
        """`claim` for async code."""
        ...

    def settle(
        self, ownership: Ownership, settlement: Settlement, stored: StoredResult | None, *, error: BaseException | None
    ) -> Settled:
        """Record how the work ended; ``error`` is the work's own, which is being raised."""
        ...

    def after(self) -> None:
        """Run the hooks that wait for the commit, after the outcome is recorded; their errors reach the user."""
        ...

    async def asettle(
        self, ownership: Ownership, settlement: Settlement, stored: StoredResult | None, *, error: BaseException | None
    ) -> Settled:
        """`settle` for async code."""
        ...

    def abandon(self, error: BaseException) -> None:
        """Roll back what is left of our own transaction, after an exception outside of `claim` and `settle`."""
        ...


class LeaseMode:
    """The record is written by itself; a lease says that its attempt is alive."""

    waits = True
    tx = None

    def __init__(self, backend: Backend, kind: ModeKind) -> None:
        self._backend = backend
        self.kind = kind

    def executor(self) -> Executor:
        return self._backend.client()

    def aexecutor(self) -> AsyncExecutor:
        return self._backend.aclient()

    def claim(self, request: ClaimRequest) -> ClaimResult:
        client, store = self._backend.ready_client(), self._backend.store
        if request.quota is not None:
            return run(claim(store, request), client)
        found = judge_claim(request, put(store.claim(request), client, again=True))
        return run(claim_again(store, request, found), client) if isinstance(found, Record) else found

    async def aclaim(self, request: ClaimRequest) -> ClaimResult:
        client, store = await self._backend.ready_aclient(), self._backend.store
        if request.quota is not None:
            return await arun(claim(store, request), client)
        found = judge_claim(request, await aput(store.claim(request), client, again=True))
        return await arun(claim_again(store, request, found), client) if isinstance(found, Record) else found

    def settle(
        self, ownership: Ownership, settlement: Settlement, stored: StoredResult | None, *, error: BaseException | None
    ) -> Settled:
        event, client, store = settlement.event, self._backend.client(), self._backend.store
        assert event is not None, "only an own transaction can end without an event"
        try:
            if put(store.settle(ownership, event, stored), client, again=True):
                return RECORDED
            return _judge_settle(run(is_settled(store, ownership, event, stored), client))
        except (StoreUnavailable, SchemaOutdated):  # the work is done, even if the tables are gone
            return Settled.UNANSWERED

    async def asettle(
        self, ownership: Ownership, settlement: Settlement, stored: StoredResult | None, *, error: BaseException | None
    ) -> Settled:
        event, client, store = settlement.event, self._backend.aclient(), self._backend.store
        assert event is not None, "only an own transaction can end without an event"
        try:
            if await aput(store.settle(ownership, event, stored), client, again=True):
                return RECORDED
            return _judge_settle(await arun(is_settled(store, ownership, event, stored), client))
        except (StoreUnavailable, SchemaOutdated):  # the work is done, even if the tables are gone
            return Settled.UNANSWERED

    def after(self) -> None: ...

    def abandon(self, error: BaseException) -> None: ...


class CachedLeaseMode(LeaseMode):
    """A leased record behind a cache that answers for settled ones."""

    def __init__(self, backend: Backend, kind: ModeKind, cache: ReadThroughCache) -> None:
        super().__init__(backend, kind)
        self._cache = cache

    def claim(self, request: ClaimRequest) -> ClaimResult:
        return _ask_cache_first(self._cache, request, super().claim)

    async def aclaim(self, request: ClaimRequest) -> ClaimResult:
        return await _aask_cache_first(self._cache, request, super().aclaim)


def lease_mode(backend: Backend, kind: ModeKind) -> LeaseMode:
    """The mode of leased claims in a store."""
    return LeaseMode(backend, kind) if backend.cache is None else CachedLeaseMode(backend, kind, backend.cache)


class CallerTransaction:
    """The record is written in the caller's transaction, which is never committed or rolled back here."""

    kind = ModeKind.JOINED

    def __init__(self, backend: Backend, tx: Any) -> None:
        from retrysafe.backends.joining import join

        self._backend = backend
        self._joining = join(backend, tx)
        self.tx = tx if self._joining.tx is None else self._joining.tx
        self.waits = backend.store.capabilities.waits_in_transaction

    def executor(self) -> Executor:
        if self._joining.execute is None:
            raise ConfigurationError("tx= belongs to async code: use 'async with'.")
        return self._joining.execute

    def aexecutor(self) -> AsyncExecutor:
        if self._joining.aexecute is None:
            raise ConfigurationError(
                "tx= belongs to sync code: use 'with', in a thread (asyncio.to_thread, sync_to_async)."
            )
        return self._joining.aexecute

    def claim(self, request: ClaimRequest) -> ClaimResult:
        self._backend.check(self.executor(), self._joining.place)
        return run(claim(self._backend.store, request), self.executor())

    async def aclaim(self, request: ClaimRequest) -> ClaimResult:
        await self._backend.acheck(self.aexecutor(), self._joining.place)
        return await arun(claim(self._backend.store, request), self.aexecutor())

    def settle(
        self, ownership: Ownership, settlement: Settlement, stored: StoredResult | None, *, error: BaseException | None
    ) -> Settled:
        try:
            return _judge_settle(run(_settle(self._backend, ownership, settlement, stored), self.executor()))
        except RetrysafeError:
            if error is not None:
                return Settled.BROKEN
            raise

    async def asettle(
        self, ownership: Ownership, settlement: Settlement, stored: StoredResult | None, *, error: BaseException | None
    ) -> Settled:
        try:
            return _judge_settle(await arun(_settle(self._backend, ownership, settlement, stored), self.aexecutor()))
        except RetrysafeError:
            if error is not None:
                return Settled.BROKEN
            raise

    def after(self) -> None: ...

    def abandon(self, error: BaseException) -> None: ...


class OwnTransaction:
    """The record is written in a transaction that the boundary opens, lends to the handler, and ends."""

    kind = ModeKind.OWN
    waits = True

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._store: Any = backend.store
        self._lending: Any = None
        """The client's `transaction()`, entered by `_begin` and left by `give_back`."""
        self._opened: Any = None
        """The executor that it gave, on the borrowed connection."""
        self._afterwards: AfterCommit | None = None

    @property
    def tx(self) -> Any:
        return None if self._opened is None else self._opened.handle

    def executor(self) -> Executor:
        return self._backend.client()

    def aexecutor(self) -> AsyncExecutor:
        return self._backend.aclient()

    def claim(self, request: ClaimRequest) -> ClaimResult:
        return _ask_cache_first(
            self._backend.cache, request, lambda request: run_transaction(lambda: self._claim(request))
        )

    def _claim(self, request: ClaimRequest) -> ClaimResult:
        store = self._store
        if store.capabilities.looks_first:
            client = self._backend.ready_client()
            settled = outcome_if_settled(request, put(store.read(request.key), client, again=True))
            if settled is not None:
                return settled
        found: ClaimResult = self._begin(open_claim(self._store, request))
        if not isinstance(found, Won):
            self.give_back()
        return found

    def claim_many(self, requests: Sequence[ClaimRequest]) -> ClaimedBatch:
        """Claim all keys that have no record."""
        opened: ClaimedBatch = run_transaction(lambda: self._begin(open_many(self._store, requests)))
        return opened

    def _begin(self, program: Program[Any]) -> Any:
        """Borrow a connection, and run the program that begins a transaction on it."""
        self._lending = self._backend.ready_client().transaction()
        self._opened = self._lending.__enter__()
        try:
            return run(program, self._opened.execute)
        except BaseException as error:
            self.give_back(error)
            raise

    async def aclaim(self, request: ClaimRequest) -> ClaimResult:
        return await _aask_cache_first(
            self._backend.cache, request, lambda request: arun_transaction(lambda: self._aclaim(request))
        )

    async def _aclaim(self, request: ClaimRequest) -> ClaimResult:
        store = self._store
        if store.capabilities.looks_first:
            client = await self._backend.ready_aclient()
            settled = outcome_if_settled(request, await aput(store.read(request.key), client, again=True))
            if settled is not None:
                return settled
        found: ClaimResult = await self._abegin(open_claim(self._store, request))
        if not isinstance(found, Won):
            await self.agive_back()
        return found

    async def aclaim_many(self, requests: Sequence[ClaimRequest]) -> ClaimedBatch:
        """`claim_many` for async code."""
        opened: ClaimedBatch = await arun_transaction(lambda: self._abegin(open_many(self._store, requests)))
        return opened

    async def _abegin(self, program: Program[Any]) -> Any:
        client = await self._backend.ready_aclient()
        self._lending = client.transaction()
        self._opened = await self._lending.__aenter__()
        try:
            return await arun(program, self._opened.execute)
        except BaseException:
            await self.agive_back()
            raise

    def settle(
        self, ownership: Ownership, settlement: Settlement, stored: StoredResult | None, *, error: BaseException | None
    ) -> Settled:
        ended: TransactionEnded | None = None
        try:
            done = self._end(conclude(self._store, ownership, settlement, stored), error)
        except RetrysafeError as failure:
            if error is not None:
                return Settled.BROKEN
            if isinstance(failure, StoreUnavailable):
                record = run(read(self._store, ownership.key), self.executor())
                return _judge_lost_commit(record, ownership, settlement, failure)
            if not isinstance(failure, TransactionEnded):
                raise
            ended, done = failure, False
        if done and settlement.event is not None:
            return RECORDED
        self._afterwards = None
        # nothing was committed by us: only a handler that committed by itself has left a record
        doubted = run(_mark_unknown(self._backend, ownership), self.executor())
        if not done:
            return _judge_early_end(settlement, ended, doubted=doubted)
        return Settled.DOUBTED if doubted else Settled.ROLLED_BACK

    async def asettle(
        self, ownership: Ownership, settlement: Settlement, stored: StoredResult | None, *, error: BaseException | None
    ) -> Settled:
        ended: TransactionEnded | None = None
        try:
            done = await self._aend(conclude(self._store, ownership, settlement, stored), error)
        except RetrysafeError as failure:
            if error is not None:
                return Settled.BROKEN
            if isinstance(failure, StoreUnavailable):
                record = await arun(read(self._store, ownership.key), self.aexecutor())
                return _judge_lost_commit(record, ownership, settlement, failure)
            if not isinstance(failure, TransactionEnded):
                raise
            ended, done = failure, False
        if done and settlement.event is not None:
            return RECORDED
        doubted = await arun(_mark_unknown(self._backend, ownership), self.aexecutor())
        if not done:
            return _judge_early_end(settlement, ended, doubted=doubted)
        return Settled.DOUBTED if doubted else Settled.ROLLED_BACK

    def conclude_many(self, ownerships: Sequence[Ownership], stored: StoredResult) -> bool:
        """Complete the keys and commit; False, and the keys are in doubt, if the handler has ended the transaction."""
        done: bool = self._end(conclude_many(self._store, ownerships, stored))
        if not done:
            self._afterwards = None
            run(doubt_many(self._store, ownerships), self.executor())
        return done

    async def aconclude_many(self, ownerships: Sequence[Ownership], stored: StoredResult) -> bool:
        """`conclude_many` for async code."""
        done: bool = await self._aend(conclude_many(self._store, ownerships, stored))
        if not done:
            await arun(doubt_many(self._store, ownerships), self.aexecutor())
        return done

    def _end(self, program: Program[Any], error: BaseException | None = None) -> Any:
        """Run the program that ends the transaction, and return the connection."""
        try:
            done = run(program, self._opened.execute)
        except BaseException as failure:
            self.give_back(failure)
            raise
        self.give_back(_outliving(error))
        return done

    async def _aend(self, program: Program[Any], error: BaseException | None = None) -> Any:
        try:
            return await arun(program, self._opened.execute)
        finally:
            await self.agive_back(_outliving(error))

    def after(self) -> None:
        afterwards, self._afterwards = self._afterwards, None
        if afterwards is not None:
            afterwards.after_commit()

    def abandon(self, error: BaseException) -> None:
        if hasattr(self._lending, "__exit__"):
            self.give_back(error)

    def give_back(self, error: BaseException | None = None) -> None:
        """Return the connection. An error is passed on to its pool, which then does not lend the connection again."""
        if hasattr(self._opened, "after_commit"):
            self._afterwards = self._opened
        self._lending.__exit__(None if error is None else type(error), error, None)
        self._lending = self._opened = None

    async def agive_back(self, error: BaseException | None = None) -> None:
        """`give_back` for async code; but for a cancellation, clients see by themselves what can be lent again."""
        lending, self._lending, self._opened = self._lending, None, None
        await lending.__aexit__(None if error is None else type(error), error, None)


def _outliving(error: BaseException | None) -> BaseException | None:
    """The cancellation of work, after which a thread of it may go on with the connection; None for any other error."""
    return None if isinstance(error, Exception) else error


def _ask_cache_first(
    cache: ReadThroughCache | None, request: ClaimRequest, claim: Callable[[ClaimRequest], ClaimResult]
) -> ClaimResult:
    """Answer from the cache, if there is one and it can; else claim, and keep the settled record that was met."""
    if cache is None:
        return claim(request)
    looked = cache.look(request)
    if looked[0] is not None:
        return looked[0]
    found = claim(request)
    cache.keep(found, looked)
    return found


async def _aask_cache_first(
    cache: ReadThroughCache | None, request: ClaimRequest, claim: Callable[[ClaimRequest], Awaitable[ClaimResult]]
) -> ClaimResult:
    if cache is None:
        return await claim(request)
    looked = await cache.alook(request)
    if looked[0] is not None:
        return looked[0]
    found = await claim(request)
    await cache.akeep(found, looked)
    return found


def _settle(
    backend: Backend, ownership: Ownership, settlement: Settlement, stored: StoredResult | None
) -> Program[bool]:
    assert settlement.event is not None, "only an own transaction can end without an event"
    return settle(backend.store, ownership, settlement.event, stored)


def _judge_settle(done: bool) -> Settled:
    return RECORDED if done else Settled.LOST


def _judge_lost_commit(
    record: Record | None, ownership: Ownership, settlement: Settlement, failure: StoreUnavailable
) -> Settled:
    """Decide a commit without an answer: it succeeded if the record has our attempt, token and target state."""
    mine = record is not None and (record.attempt, record.token) == (ownership.attempt, ownership.token)
    if record is not None and mine and settlement.event is not None and record.state is RULES[settlement.event].target:
        return RECORDED
    raise StoreUnavailable(f"The transaction could not be ended: {failure.detail}") from failure


def _mark_unknown(backend: Backend, ownership: Ownership) -> Program[bool]:
    """Mark the record unknown if it is there: after a rollback, only a handler that committed can have left it."""
    return (yield from ask(backend.store.settle(ownership._replace(transactional=False), Transition.DOUBT, None)))


def _judge_early_end(settlement: Settlement, ended: TransactionEnded | None, *, doubted: bool) -> Settled:
    """Decide an end of the transaction that was not ours; only a refusal can be answered without its record."""
    if doubted:
        raise OutcomeUnknown(
            "The handler committed the boundary's transaction by itself, before its result could join it."
        )
    if settlement.refuses:
        return Settled.ROLLED_BACK
    raise ConfigurationError((ended or TransactionEnded()).detail) from ended
