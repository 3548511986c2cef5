"""A claim: entered when the key is won or answered, left when the outcome is recorded.

Sync and async differ only in how a program is driven and in how a pause is slept, so each step of
the one has its twin in the other, and every decision is shared.
"""

from __future__ import annotations

import secrets
import sys
from contextvars import ContextVar
from types import TracebackType
from typing import Any, NamedTuple

from retrysafe import heartbeat
from retrysafe.codec import decode_failure, encode_failure
from retrysafe.connect import Joining
from retrysafe.core import fingerprint, keys
from retrysafe.core.backoff import Patience
from retrysafe.core.decisions import Decision
from retrysafe.core.outcomes import Ending, Ground, Transaction, Verdict, ending_of_error, verdict
from retrysafe.core.transitions import RULES, Event
from retrysafe.errors import (
    ConfigurationError,
    InProgress,
    KeyExpired,
    KeyReused,
    LeaseLost,
    OutcomeUnknown,
    ResultNotEncodable,
    RetrysafeError,
    RetryTransaction,
    StoredFailure,
    StoreUnavailable,
)
from retrysafe.finish import finish
from retrysafe.ports import Steps
from retrysafe.programs.claiming import NotWon, Outcome, Won, claim
from retrysafe.programs.drivers import arun, run
from retrysafe.programs.settling import read, resolve, settle
from retrysafe.programs.transactions import conclude, open_claim
from retrysafe.terms import Terms
from retrysafe.types import Held, Record, Reject, Standing, Stored, Want

_current: ContextVar[Claim | None] = ContextVar("retrysafe_claim", default=None)
_UNSET: Any = object()


def current() -> Claim:
    """Return the claim around the running code: the innermost one of this thread or task.

    Raises `ConfigurationError` outside a guarded operation.
    """
    found = _current.get()
    if found is None:
        raise ConfigurationError("current() was called outside a guarded operation.")
    return found


class _Pause(NamedTuple):
    seconds: float


class _Probe(NamedTuple):
    record: Record


class Said:
    """What the handler said about its effect."""

    __slots__ = ("committed", "failure", "not_executed")

    def __init__(self) -> None:
        self.committed = False
        self.not_executed = False
        self.failure: BaseException | None = None


class Claim:
    """One attempt at a key, for ``with`` and ``async with``.

    Inside the block either ``replayed`` is true and ``result`` is the stored one, or the work is
    yours: do it, and set ``result``. Entering raises `InProgress`, `KeyReused`, `KeyExpired`,
    `OutcomeUnknown`, `StoredFailure`, `StoreUnavailable` or `SchemaOutdated`, and then nothing was run.
    """

    def __init__(self, terms: Terms, want: Want | None, operation: str, tx: Any = None, annotation: Any = None) -> None:
        self._terms = terms
        self._want = want
        self._operation = operation
        self._given_tx = tx
        self._annotation = annotation
        self._joining: Joining | None = None
        self._ground = terms.ground
        self._outer: Claim | None = None
        self._held: Held | None = None
        self._lease: heartbeat.Lease | None = None
        self._lending: Any = None
        self._opened: Any = None
        self._task: Any = None
        self._said = Said()
        self._result: Any = _UNSET
        self._patience: Patience | None = None
        self._entered = False
        self.replayed = False

    # ------------------------------------------------------------ what users see

    @property
    def result(self) -> Any:
        """The stored result of a replay, or what this attempt has set; None when it has set nothing."""
        return None if self._result is _UNSET else self._result

    @result.setter
    def result(self, value: Any) -> None:
        self._result = value

    @property
    def token(self) -> int:
        """The fencing token: higher for every later attempt. Hand it to what can refuse older ones."""
        return self._required_hold().token

    @property
    def attempt_id(self) -> str:
        """This attempt's own id."""
        return self._required_want().attempt

    @property
    def tx(self) -> Any:
        """The transaction that the record shares: the one given as ``tx=``, or the boundary's own.

        None for boundaries that are not transactional, and for replays.
        """
        if self._given_tx is not None:
            return self._given_tx
        return None if self._opened is None else self._opened.handle

    def key_for(self, name: str) -> str:
        """The idempotency key for the downstream call ``name``: the same on every attempt of this key."""
        return keys.derive(self._terms.secret, self._required_want().key, name)

    def fail(self, error: BaseException) -> None:
        """Declare that the operation failed for good: the failure is stored and replayed.

        An attribute ``data`` of the error is stored too, if it is JSON.
        """
        self._said.failure = error

    def committed(self) -> None:
        """Say that an effect happened: from now on a failure means *unknown*, never a free key."""
        self._said.committed = True

    def not_executed(self) -> None:
        """Say that no effect happened: if the block now fails, the key is released."""
        self._said.not_executed = True

    def ensure_held(self) -> None:
        """Raise `LeaseLost` unless this attempt certainly still holds its key; asks no store."""
        if self._lease is not None and not self._lease.is_held():
            raise LeaseLost("The lease ended before the work did.")

    # ------------------------------------------------------------ entering

    def __enter__(self) -> Claim:
        if self._prepare():
            self._refuse_waiting_on_a_loop()
            while (todo := self._react(self._claim())) is not None:
                match todo:
                    case _Pause(seconds):
                        self._terms.wakeups.wait(self._required_want().key, seconds)
                    case _Probe(record):
                        self._probe(record)
            if self._lease is not None:
                heartbeat.for_thread(self._terms.backend).add(self._lease)
        self._activate()
        return self

    async def __aenter__(self) -> Claim:
        if self._prepare():
            while (todo := self._react(await self._aclaim())) is not None:
                match todo:
                    case _Pause(seconds):
                        await self._terms.wakeups.await_(self._required_want().key, seconds)
                    case _Probe(record):
                        await self._aprobe(record)
            if self._lease is not None:
                self._watch_task()
                heartbeat.for_loop(self._terms.backend).add(self._lease)
        self._activate()
        return self

    def _prepare(self) -> bool:
        """Find the ground of the record; False when there is no key and the call passes unguarded."""
        if self._entered:
            raise ConfigurationError("A claim can be entered only once; make a new one with .claim().")
        self._entered = True
        want = self._want
        if want is None:
            self._terms.tell("passed", self._operation, b"", "")
            return False
        self._tell("received")
        outer = self._outer = _current.get()
        while outer is not None:
            if outer._want is not None and outer._want.key == want.key and outer._held is not None:
                raise InProgress("This key is claimed by the operation that encloses this one: it would wait for itself.")
            outer = outer._outer
        self._join_outer()
        if self._given_tx is not None:
            self._ground = Ground.JOINED
            self._joining = self._terms.backend.join(self._given_tx)
        return True

    def _join_outer(self) -> None:
        """Inside another transactional claim on the same store, use its transaction; a lease cannot live there."""
        outer = self._outer
        if outer is None or outer.tx is None or outer._terms.backend is not self._terms.backend:
            return
        if self._ground is not Ground.OWN:
            raise ConfigurationError(
                f"Boundary {self._terms.name!r} (effects={self._terms.effects!r}) was used inside a transaction of "
                f"{outer._terms.name!r} on the same store: its record would not be rolled back with it. Use it "
                "before or after, or make it effects='transactional'."
            )
        if self._given_tx is None:
            self._given_tx = outer.tx

    def _refuse_waiting_on_a_loop(self) -> None:
        if isinstance(self._terms.concurrency, Reject):
            return
        asyncio = sys.modules.get("asyncio")
        if asyncio is not None and asyncio._get_running_loop() is not None:
            raise ConfigurationError(
                "A sync claim with concurrency=wait(…) was made on a running event loop, which it would block: "
                "use 'async with' or a coroutine, or concurrency=reject()."
            )

    def _claim(self) -> Outcome:
        """Try once."""
        backend, want = self._terms.backend, self._required_want()
        self._claimed_at = heartbeat.clock()
        if self._ground is Ground.JOINED:
            execute = self._joining.execute if self._joining else None
            if execute is None:
                raise ConfigurationError("tx= belongs to async code: use 'async with'.")
            backend.check_schema(execute)
            return run(claim(backend.store, want), execute)
        client = backend.client()
        backend.check_schema(client)
        if self._ground is not Ground.OWN:
            return run(claim(backend.store, want), client)
        self._lending = client.transaction()
        self._opened = self._lending.__enter__()
        outcome: Outcome | None = None
        try:
            outcome = run(self._open(want), self._opened.execute)
            return outcome
        finally:
            if not isinstance(outcome, Won):
                self._give_back()

    async def _aclaim(self) -> Outcome:
        """Try once, to the end even when cancelled; a claim that a cancelled caller won is undone."""
        outcome, cancelled = await finish(self._aclaim_once())
        if cancelled is not None:
            if isinstance(outcome, Won):
                self._hold(outcome)
                self._said.not_executed = True
                await finish(self._aend(cancelled))
            raise cancelled
        return outcome

    async def _aclaim_once(self) -> Outcome:
        backend, want = self._terms.backend, self._required_want()
        self._claimed_at = heartbeat.clock()
        if self._ground is Ground.JOINED:
            execute = self._joining.aexecute if self._joining else None
            if execute is None:
                raise ConfigurationError("tx= belongs to sync code: use 'with'.")
            await backend.acheck_schema(execute)
            return await arun(claim(backend.store, want), execute)
        client = backend.aclient()
        await backend.acheck_schema(client)
        if self._ground is not Ground.OWN:
            return await arun(claim(backend.store, want), client)
        self._lending = client.transaction()
        self._opened = await self._lending.__aenter__()
        outcome: Outcome | None = None
        try:
            outcome = await arun(self._open(want), self._opened.execute)
            return outcome
        finally:
            if not isinstance(outcome, Won):
                await self._agive_back()

    def _open(self, want: Want) -> Steps[Outcome]:
        store: Any = self._terms.backend.store
        return open_claim(store, want)

    def _react(self, outcome: Outcome) -> _Pause | _Probe | None:
        """What follows from an outcome: enter (None), pause and try again, probe, or an error."""
        if isinstance(outcome, Won):
            self._hold(outcome)
            return None
        decision, record = outcome
        match decision:
            case Decision.REPLAY:
                self._replay(record)
                return None
            case Decision.REPLAY_FAILURE:
                kind, message, data = decode_failure(record.result if record else None)
                self._tell("failure_replayed", error_type=kind)
                raise StoredFailure(kind, message, data)
            case Decision.REUSED:
                raise self._reused(record)
            case Decision.EXPIRED:
                self._tell("expired_refused")
                raise KeyExpired
            case Decision.DOUBT:
                assert record is not None
                return self._in_doubt(record)
            case _:
                return self._busy(outcome)

    def _hold(self, won: Won) -> None:
        self._held = held = won.held
        name = "started"
        if won.seen is not None and won.seen.standing is Standing.LAPSED:
            name = "takeover"
        elif won.seen is not None and won.seen.standing is not Standing.RELEASED:
            name = "renewed_after_expiry"
        self._tell(name, token=held.token, attempts=won.record.attempts)
        if not held.transactional:
            self._lease = heartbeat.Lease(held, self._claimed_at, self._lost, self._renewal_failed)

    def _replay(self, record: Record | None) -> None:
        assert record is not None
        assert record.result is not None
        self._result = self._terms.codec.decode(record.result, self._annotation)
        self.replayed = True
        self._tell("replayed")

    def _reused(self, record: Record | None) -> KeyReused:
        assert record is not None
        differing = fingerprint.differing(record.fingerprint, self._required_want().fingerprint)
        self._tell("mismatch", differing=differing)
        return KeyReused(f"The payload differs in: {', '.join(differing)}.", differing=differing)

    def _in_doubt(self, record: Record) -> _Probe:
        if self._terms.probe is None:
            self._tell("doubted")
            raise OutcomeUnknown
        return _Probe(record)

    def _busy(self, outcome: NotWon) -> _Pause:
        concurrency = self._terms.concurrency
        lease_left = outcome.record.lease_left if outcome.record is not None else None
        hopeless = self._ground is Ground.JOINED and not self._terms.backend.store.capabilities.waits_in_transaction
        pause: float | None = None
        if not isinstance(concurrency, Reject) and not hopeless:
            now = heartbeat.clock()
            self._patience = (self._patience or Patience(now + concurrency.seconds)).polled()
            pause = self._patience.next_pause(now, lease_left, self._terms.chance())
        if pause is None:
            retry_after = 1.0 if lease_left is None else max(1.0, min(lease_left, 30.0))
            self._tell("conflict", retry_after=retry_after)
            raise InProgress(retry_after=retry_after)
        self._tell("waited", pause=pause)
        return _Pause(pause)

    # ------------------------------------------------------------ probing

    def _probe(self, record: Record) -> None:
        """Ask the user's probe, and settle the record by its answer."""
        answer = self._ask_probe()
        asyncio = sys.modules.get("asyncio")
        if asyncio is not None and asyncio.iscoroutine(answer):
            answer.close()
            raise ConfigurationError("probe= is a coroutine function, and the operation is sync: use a plain function.")
        event, stored = self._probed()
        run(resolve(self._terms.backend.store, record, event, stored, self._terms.clocks), self._probing())

    async def _aprobe(self, record: Record) -> None:
        answer = self._ask_probe()
        if hasattr(answer, "__await__"):
            try:
                await answer
            except Exception as error:
                raise OutcomeUnknown(f"The probe failed: {error!r}") from error
        event, stored = self._probed()
        steps = resolve(self._terms.backend.store, record, event, stored, self._terms.clocks)
        await arun(steps, self._aprobing())

    def _probing(self) -> Any:
        return self._joining.execute if self._joining else self._terms.backend.client()

    def _aprobing(self) -> Any:
        return self._joining.aexecute if self._joining else self._terms.backend.aclient()

    def _ask_probe(self) -> Any:
        assert self._terms.probe is not None
        self._said = Said()
        try:
            return self._terms.probe(self)
        except Exception as error:
            raise OutcomeUnknown(f"The probe failed: {error!r}") from error

    def _probed(self) -> tuple[Event, Stored | None]:
        said, self._said = self._said, Said()
        if said.failure is not None:
            self._tell("probed", outcome="failed")
            return Event.RESOLVE_FAILED, _failure(said.failure)
        if said.committed:
            self._tell("probed", outcome="completed")
            return Event.RESOLVE_COMPLETED, self._terms.codec.encode(self.result, self._annotation)
        if said.not_executed:
            self._tell("probed", outcome="released")
            self._result = _UNSET
            return Event.RESOLVE_RELEASED, None
        self._tell("doubted")
        raise OutcomeUnknown("The probe could not tell either.")

    # ------------------------------------------------------------ leaving

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._deactivate()
        if self._held is None:
            return
        if self._lease is not None:
            heartbeat.for_thread(self._terms.backend).drop(self._lease)
        self._end(error)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._deactivate()
        if self._held is None:
            return
        if self._lease is not None:
            heartbeat.for_loop(self._terms.backend).drop(self._lease)
        stopped_by_us = self._unwatch_task(error)
        _, cancelled = await finish(self._aend(error))
        if cancelled is not None:
            raise cancelled
        if stopped_by_us:
            raise LeaseLost("The work was stopped because its lease could not be kept.") from error

    def _end(self, error: BaseException | None) -> None:
        """Record how the block ended, and raise what the caller must know."""
        ending, stored, unencodable = self._ending(error)
        word = verdict(ending, self._ground)
        try:
            try:
                recorded = run(self._concluding(word, stored), self._executor())
            finally:
                self._give_back()
        except RetrysafeError as failure:
            recorded = self._unsettled(failure, error, word)
            if recorded is None:
                recorded = self._is_recorded(word, run(self._reading(), self._terms.backend.client()), failure)
        if not recorded and self._ground is Ground.OWN:
            self._ended_by_handler(run(self._doubting(), self._terms.backend.client()))
        self._conclude(ending, word, error, unencodable, recorded=recorded)

    async def _aend(self, error: BaseException | None) -> None:
        ending, stored, unencodable = self._ending(error)
        word = verdict(ending, self._ground)
        try:
            try:
                recorded = await arun(self._concluding(word, stored), self._aexecutor())
            finally:
                await self._agive_back()
        except RetrysafeError as failure:
            recorded = self._unsettled(failure, error, word)
            if recorded is None:
                record = await arun(self._reading(), self._terms.backend.aclient())
                recorded = self._is_recorded(word, record, failure)
        if not recorded and self._ground is Ground.OWN:
            self._ended_by_handler(await arun(self._doubting(), self._terms.backend.aclient()))
        self._conclude(ending, word, error, unencodable, recorded=recorded)

    def _ending(self, error: BaseException | None) -> tuple[Ending, Stored | None, ResultNotEncodable | None]:
        """How the block ended, what to store, and why a result cannot be stored."""
        said = self._said
        if said.failure is not None:
            return Ending.DECLARED, _failure(said.failure), None
        if error is not None:
            permanent = isinstance(error, self._terms.permanent)
            ending = ending_of_error(permanent=permanent, committed=said.committed, not_executed=said.not_executed)
            return ending, _failure(error), None
        try:
            return Ending.RETURNED, self._terms.codec.encode(self.result, self._annotation), None
        except ResultNotEncodable as reason:
            return Ending.UNENCODABLE, Stored(None, "", 0), reason

    def _concluding(self, word: Verdict, stored: Stored | None) -> Steps[bool]:
        store: Any = self._terms.backend.store
        result = None if word.event is Event.RELEASE else stored
        if self._ground is Ground.OWN:
            return conclude(store, self._required_hold(), word, result)
        assert word.event is not None
        return settle(store, self._required_hold(), word.event, result)

    def _unsettled(self, failure: RetrysafeError, error: BaseException | None, word: Verdict) -> bool | None:
        """The outcome could not be recorded: whether that is as good as done (True), or to be read back (None)."""
        if error is not None and self._ground in (Ground.OWN, Ground.JOINED):
            return True  # the transaction is broken, so it rolls back by itself; the block's own error goes on
        if self._ground is Ground.OWN and isinstance(failure, StoreUnavailable) and word.event is not None:
            return None
        if self._ground in (Ground.OWN, Ground.JOINED):
            raise failure
        self._tell("unrecorded", error=failure.detail)
        self._terms.wakeups.wake(self._required_want().key)
        self._held = None
        return True

    def _reading(self) -> Steps[Record | None]:
        return read(self._terms.backend.store, self._required_want().key)

    def _is_recorded(self, word: Verdict, record: Record | None, failure: RetrysafeError) -> bool:
        """After a commit without an answer: whether it happened after all."""
        assert word.event is not None
        mine = record is not None and record.attempt == self._required_want().attempt
        if mine and record is not None and record.state is RULES[word.event].target:
            return True
        raise StoreUnavailable(f"The commit got no answer: {failure.detail}") from failure

    def _doubting(self) -> Steps[bool]:
        return settle(self._terms.backend.store, self._required_hold()._replace(transactional=False), Event.DOUBT)

    def _ended_by_handler(self, doubted: bool) -> None:
        if doubted:
            self._tell("unknown", error_type="commit in the middle")
            raise OutcomeUnknown("The handler committed the boundary's transaction by itself, before its result could join it.")
        raise LeaseLost("The handler ended the boundary's transaction by itself.")

    def _conclude(
        self, ending: Ending, word: Verdict, error: BaseException | None, unencodable: Exception | None, *, recorded: bool
    ) -> None:
        """Tell what happened, wake who waits, and raise what the caller must know."""
        if self._held is None:
            return
        self._terms.wakeups.wake(self._held.key)
        if not recorded:
            self._tell("lease_lost")
            if error is None:
                raise LeaseLost("Its record belongs to another attempt now." if self._lease else "tx= was ended inside the block.")
            return
        self._tell_end(ending, word, error)
        if unencodable is not None:
            raise unencodable
        if error is not None and self._ground is Ground.OWN and word.transaction is Transaction.ROLLBACK:
            if not isinstance(error, RetryTransaction) and self._terms.backend.restarts(error):
                raise RetryTransaction(str(error)) from error

    def _tell_end(self, ending: Ending, word: Verdict, error: BaseException | None) -> None:
        if word.event is None:
            self._tell("rolled_back", error_type=type(error).__name__)
        elif ending is Ending.UNENCODABLE:
            self._tell("result_withheld")
        elif word.event is Event.COMPLETE:
            self._tell("completed")
        else:
            name = {Event.FAIL: "failed", Event.RELEASE: "released", Event.DOUBT: "unknown"}[word.event]
            self._tell(name, error_type=type(self._said.failure or error).__name__)

    # ------------------------------------------------------------ connections

    def _executor(self) -> Any:
        if self._opened is not None:
            return self._opened.execute
        return self._joining.execute if self._joining else self._terms.backend.client()

    def _aexecutor(self) -> Any:
        if self._opened is not None:
            return self._opened.execute
        return self._joining.aexecute if self._joining else self._terms.backend.aclient()

    def _give_back(self) -> None:
        lending, self._lending, self._opened = self._lending, None, None
        if lending is not None:
            lending.__exit__(None, None, None)

    async def _agive_back(self) -> None:
        lending, self._lending, self._opened = self._lending, None, None
        if lending is not None:
            await lending.__aexit__(None, None, None)

    # ------------------------------------------------------------ the lease

    def _lost(self) -> None:
        self._tell("lease_lost")
        if self._task is not None:
            task, self._task = self._task, None
            self._stopped = task
            task.cancel("retrysafe: the lease was lost")

    def _renewal_failed(self, error: Exception) -> None:
        self._tell("renewal_failed", error=str(error).partition("\n")[0])

    _stopped: Any = None

    def _watch_task(self) -> None:
        import asyncio

        self._task = asyncio.current_task()

    def _unwatch_task(self, error: BaseException | None) -> bool:
        """Whether the work ended because we cancelled it; then that one cancellation is taken back, as a timeout does."""
        self._task = None
        stopped, self._stopped = self._stopped, None
        if stopped is None:
            return False
        remaining = stopped.uncancel()
        asyncio = sys.modules["asyncio"]
        return remaining == 0 and isinstance(error, asyncio.CancelledError)

    # ------------------------------------------------------------ small things

    def _activate(self) -> None:
        self._outer = _current.get()
        _current.set(self)

    def _deactivate(self) -> None:
        _current.set(self._outer)

    def _required_want(self) -> Want:
        if self._want is None:
            raise ConfigurationError("The operation runs without a key (on_missing='pass'), so it has none of this.")
        return self._want

    def _required_hold(self) -> Held:
        if self._held is None:
            raise ConfigurationError("This attempt does not hold its key: it is a replay, or the claim has not been entered.")
        return self._held

    def _tell(self, name: str, **fields: Any) -> None:
        if self._want is not None and self._terms.observers:
            self._terms.tell(name, self._operation, self._want.key, self._want.attempt, fields)


def new_attempt() -> str:
    """An id for one attempt: 128 random bits in hex."""
    return secrets.token_hex(16)


def _failure(error: BaseException) -> Stored:
    data = getattr(error, "data", None)
    try:
        return encode_failure(type(error).__name__, str(error), data)
    except ResultNotEncodable:
        return encode_failure(type(error).__name__, str(error), None)
