"""A claim: entered when the key is won or answered, left when the outcome is recorded."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, NamedTuple

from retrysafe.backends.backend import Backend
from retrysafe.backends.driver import arun, run
from retrysafe.claims import lease as heartbeat
from retrysafe.claims.cancellation import run_to_completion
from retrysafe.claims.codec import decode_failure
from retrysafe.claims.concluding import Conclusion
from retrysafe.claims.context import ClaimContext, enclosing
from retrysafe.claims.deferred import Deferred
from retrysafe.claims.encryption import Bound, opened, sealed
from retrysafe.claims.modes import CallerTransaction, ClaimMode, LeaseMode, OwnTransaction, Settled
from retrysafe.claims.outcome import HandlerSignals, WorkOutcome, answer_of, end_of
from retrysafe.claims.settings import BoundarySettings
from retrysafe.claims.timing import Timed, Timing
from retrysafe.claims.waiting import Waiting, checks_snapshot, refuse_on_a_loop, snapshot
from retrysafe.errors import (
    ConfigurationError,
    InProgress,
    KeyExpired,
    KeyReused,
    LeaseLost,
    OutcomeUnknown,
    QuotaExceeded,
    ResultUnreadable,
    RetrysafeError,
    StoredFailure,
)
from retrysafe.protocol import fingerprint, keys
from retrysafe.protocol.asks import Steps
from retrysafe.protocol.backoff import RESTART
from retrysafe.protocol.claiming import Outcome, Won
from retrysafe.protocol.decisions import Decision
from retrysafe.protocol.leasing import renew
from retrysafe.protocol.outcomes import Answered
from retrysafe.protocol.outcomes import ModeKind as Kind
from retrysafe.protocol.records import ClaimRequest, EffectiveState, Ownership, Record, State, StoredResult
from retrysafe.protocol.settling import resolve, settle
from retrysafe.protocol.transitions import RULES, Transition


def current() -> Claim:
    """Return the claim around the running code: the innermost one of this thread or task.

    Raises `ConfigurationError` outside a guarded operation.
    """
    found = enclosing()
    if not isinstance(found, Claim):
        raise ConfigurationError("current() was called outside a guarded operation.")
    return found


MOST_RESTARTS = 5
"""How often a whole transaction of ours is run again because the database asks for it."""
_BEGINNINGS = {EffectiveState.ABSENT: "started", EffectiveState.RELEASED: "started", EffectiveState.LAPSED: "takeover"}


_ANSWERED = (Decision.REPLAY, Decision.REPLAY_FAILURE)


class _Pause(NamedTuple):
    seconds: float


class _Probe(NamedTuple):
    record: Record


class Claim:
    """One attempt at a key, for ``with`` and ``async with``.

    Inside the block either ``replayed`` is true and ``result`` is the stored one, or the work is
    yours: do it, and set ``result``. Entering raises `InProgress`, `KeyReused`, `KeyExpired`,
    `OutcomeUnknown`, `StoredFailure`, `StoreUnavailable` or `SchemaOutdated`, and then nothing was run.

    The block runs on replays too, so put the work under ``if not claim.replayed``.

    Attributes:
        replayed: whether the result of an earlier attempt was found.
    """

    def __init__(
        self, terms: BoundarySettings, want: ClaimRequest | None, operation: str, tx: Any = None, annotation: Any = None
    ) -> None:
        self.replayed = False
        self._result: Any = None
        self._settings = terms
        self._observers = terms.observers
        self._want = want
        self._operation = operation
        self._tx = tx
        self._annotation = annotation
        self._ground: ClaimMode | None = None
        self._context = ClaimContext(self)
        self._held: Ownership | None = None
        self._lease: heartbeat.Lease | None = None
        self._claimed_at = 0.0
        self._signals = HandlerSignals()
        self._waiting: Waiting | None = None
        self._entered = False

    # ------------------------------------------------------------ for the work inside

    @property
    def result(self) -> Any:
        """The stored result of a replay, or the one that this attempt has set; None until then.

        Setting it on a replay raises `ConfigurationError`: the work has been done, and was not to be done again.
        """
        return self._result

    @result.setter
    def result(self, value: Any) -> None:
        if self.replayed:
            raise ConfigurationError(
                "result was set on a replay, whose answer stands. The block runs on replays too: "
                "put the work under 'if not claim.replayed'."
            )
        self._result = value

    @property
    def boundary(self) -> str:
        """The name of the boundary."""
        return self._settings.name

    @property
    def operation(self) -> str:
        """The operation that the key belongs to."""
        return self._operation

    @property
    def token(self) -> int:
        """The fencing token: higher for every later attempt. Hand it to what can refuse older ones."""
        self._required_want()
        return self._required_hold().token

    @property
    def attempt_id(self) -> str:
        """This attempt's own id."""
        return self._required_want().attempt

    @property
    def tx(self) -> Any:
        """The transaction that the record shares: the one given as ``tx=``, or the boundary's own.

        None for boundaries that are not transactional, and for replays from a transaction of our own.
        """
        return self._tx if self._ground is None else self._ground.tx

    def key_for(self, name: str) -> str:
        """The idempotency key for the downstream call ``name``: the same on every attempt of this key."""
        return keys.derive(self._settings.secret, self._required_want().key, name)

    def fail(self, error: BaseException) -> None:
        """Declare that the operation failed for good: the failure is stored and replayed.

        An attribute ``data`` of the error is stored too, if it is JSON.
        """
        self._signals.failure = error

    def committed(self) -> None:
        """Say that an effect happened: from now on a failure means *unknown*, never a free key."""
        self._signals.committed = True

    def not_executed(self) -> None:
        """Say that no effect happened: if the block now fails, the key is released."""
        self._signals.not_executed = True

    def answered(self, answered: Answered, result: Any, reason: str = "") -> None:
        """Say, as an entry point does, what the work's answer means: ``result`` is stored, or it failed for ``reason``.

        The answer to a failure that the handler declared with `fail` is stored instead of the failure.
        """
        self.result = result
        if self._signals.failure is not None:
            self._signals.failure, answered = None, Answered.REFUSED
        self._signals.answered = (answered, reason)

    def ensure_held(self) -> None:
        """Raise `LeaseLost` unless this attempt certainly still holds its key; asks no store."""
        if self._lease is not None and not self._lease.is_held():
            raise self._signed(LeaseLost("The lease ended before the work did."))

    def restart_pause(self, restarts: int) -> float | None:
        """Seconds until who called the work runs the whole of it again after `RetryTransaction`; None: not at all.

        Only a transaction of the boundary's own can be run again, with a new claim, and ``restarts`` are bounded.
        """
        if self._ground is None or self._ground.kind is not Kind.OWN or restarts >= MOST_RESTARTS:
            return None
        self._tell("restarted", restarts=restarts + 1)
        return RESTART.delay(restarts, self._settings.chance())

    def emit(self, name: str, **fields: Any) -> None:
        """Tell the observers, as an entry point does, of something that concerns this attempt."""
        self._tell(name, **fields)

    # ------------------------------------------------------------ entering

    def __enter__(self) -> Claim:
        self._enter_once()
        try:
            self._enter()
        except BaseException as error:
            self._over(error)
            raise
        return self

    async def __aenter__(self) -> Claim:
        self._enter_once()
        try:
            await self._aenter()
        except BaseException as error:
            self._over(error)
            raise
        return self

    async def enter_by(self, in_thread: Callable[[Callable[[], Any]], Awaitable[Any]]) -> None:
        """Enter from an event loop, on a store that serves sync code only: ``in_thread`` runs a function in a thread.

        A thread is taken for each look at the store, and none while the claim waits for another attempt. What
        ``in_thread`` was given comes to its end even when the caller is cancelled.
        """
        self._enter_once()
        try:
            try:
                while (pause := await in_thread(self._look)) is not None:
                    await self._settings.backend.await_(self._required_want().key, pause)
            except BaseException as error:
                await in_thread(functools.partial(self._abandon, error))
                raise
            finally:
                self._stop_waiting()
        except BaseException as error:
            self._over(error)
            raise
        self._context.enter()

    def _enter(self) -> None:
        if self._want is not None:
            refuse_on_a_loop(self._settings)
        try:
            while (pause := self._look()) is not None:
                self._settings.backend.wait(self._required_want().key, pause)
        except BaseException as error:
            self._abandon(error)
            raise
        finally:
            self._stop_waiting()
        self._context.enter()

    def _look(self) -> float | None:
        """Try to win the key; seconds until the next try, None when there is nothing to wait for."""
        if self._ground is None:
            for store in self._strangers():
                self._settings.backend.compare(store)
            if not self._prepare():
                return None
            if checks_snapshot(self._settings):
                self._warn_of_snapshot(run(snapshot(self._settings), self._standing_ground().executor()))
        while isinstance(todo := self._react(self._claim()), _Probe):
            self._probe(todo.record)
        if todo is not None:
            return todo.seconds
        if self._lease is not None:
            if self._lease.is_late():
                self._lease.renewed(*run(self._renewing(), self._standing_ground().executor()))
            heartbeat.for_thread(self._settings.backend).add(self._lease)
        return None

    def _abandon(self, error: BaseException) -> None:
        """Give back a claim that was won, but whose caller will not do the work."""
        if self._held is None:
            return
        self._signals.not_executed = True
        try:
            self._end(error)
        finally:
            if self._lease is not None:
                heartbeat.for_thread(self._settings.backend).drop(self._lease)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.over()

    async def _aenter(self) -> None:
        for store in self._strangers():
            await self._settings.backend.acompare(store)
        if self._prepare():
            if checks_snapshot(self._settings):
                self._warn_of_snapshot(await arun(snapshot(self._settings), self._standing_ground().aexecutor()))
            try:
                while (todo := self._react(await self._aclaim())) is not None:
                    if isinstance(todo, _Pause):
                        await self._settings.backend.await_(self._required_want().key, todo.seconds)
                    else:
                        await self._aprobe(todo.record)
                if self._lease is not None:
                    if self._lease.is_late():
                        self._lease.renewed(*await arun(self._renewing(), self._standing_ground().aexecutor()))
                    self._lease.watch_task()
                    heartbeat.for_loop(self._settings.backend).add(self._lease)
            except BaseException as error:
                if self._held is not None:
                    self._signals.not_executed = True
                    await self._finish_end(error)
                raise
            finally:
                self._stop_waiting()
        self._context.enter()

    def _enter_once(self) -> None:
        if self._entered:
            raise self._signed(ConfigurationError("A claim can be entered only once; make a new one with .claim()."))
        self._entered = True

    def _prepare(self) -> bool:
        """Find the ground of the record; False when there is no key and the call passes unguarded."""
        terms, want = self._settings, self._want
        if want is None:
            terms.emit("passed", self._operation, b"", "")
            return False
        about = {"effects": terms.effects, "store": terms.backend.kind}
        self._observers = terms.observers.begin(terms.name, self._operation, want.key, want.attempt, about)
        if self._context.is_inside(want.key):
            raise InProgress("The key is claimed by the operation that encloses this one: it would wait for itself.")
        self._ground = self._find_ground()
        if self._observers.is_enabled("store_request"):
            self._ground = Timed(self._ground, self._teller())
        return True

    def _strangers(self) -> list[Backend]:
        """Stores around this claim that are to be asked whether they are its own under another name."""
        return [] if self._want is None else self._context.strangers(self._settings.backend)

    def _find_ground(self) -> ClaimMode:
        """Inside a transactional claim on the same store, its transaction; a lease cannot live there."""
        terms, tx = self._settings, self._tx
        around = self._context.transaction_on(terms.backend, asked_for=tx is not None)
        if around is not None:
            if terms.effects != "transactional":
                raise ConfigurationError(
                    f"Boundary {terms.name!r} (effects={terms.effects!r}) was used inside a transaction of "
                    f"{around.boundary!r} on the same store: its record would not be rolled back with it. "
                    "Use it before or after, or make it effects='transactional'."
                )
            tx = around.tx if tx is None else tx
        if tx is not None:
            return CallerTransaction(terms.backend, tx)
        if terms.effects == "transactional":
            return OwnTransaction(terms.backend)
        return LeaseMode(terms.backend, Kind.KEYED if terms.effects == "keyed" else Kind.EXTERNAL)

    def _warn_of_snapshot(self, level: str | None) -> None:
        if level is not None:
            self._tell("frozen_snapshot", isolation=level)

    def _claim(self) -> Outcome:
        self._claimed_at = heartbeat.clock()
        outcome = self._standing_ground().claim(self._required_want())
        self._tell_warnings()
        return outcome

    async def _aclaim(self) -> Outcome:
        """Try once, to the end even when cancelled; a claim that a cancelled caller won is undone."""
        if self._settings.backend.immediate:
            return self._claim()
        self._claimed_at = heartbeat.clock()
        outcome, cancelled = await run_to_completion(self._standing_ground().aclaim(self._required_want()))
        if cancelled is not None:
            if isinstance(outcome, Won):
                self._hold(outcome)
            raise cancelled
        self._tell_warnings()
        return outcome

    def _tell_warnings(self) -> None:
        """Pass on what the first look at the server's settings found, and what the server said by itself."""
        backend = self._settings.backend
        warnings = backend.warnings if backend.near is None else backend.near.warnings or backend.warnings
        while warnings:
            try:
                finding = warnings.pop(0)
            except IndexError:  # another thread was quicker
                return
            self._tell("store_warning", setting=finding.name, text=finding.text)

    def _react(self, outcome: Outcome) -> _Pause | _Probe | None:
        """What follows from an outcome: enter (None), pause and try again, probe, or an error."""
        if isinstance(outcome, Won):
            self._hold(outcome)
            return None
        decision, record, refusal = outcome
        if refusal is not None:
            self._tell("quota_refused", limit=refusal.limit, retry_after=refusal.retry_after)
            raise QuotaExceeded(limit=refusal.limit, retry_after=refusal.retry_after)
        if decision is Decision.BUSY or record is None:
            self._waiting = self._waiting or Waiting(self._settings, self._teller())
            return _Pause(self._waiting.pause(record, helps=self._standing_ground().waits))
        if decision in _ANSWERED:
            record = self._readable(record)
        match decision:
            case Decision.REPLAY:
                self._replay(record)
                return None
            case Decision.REPLAY_FAILURE:
                kind, message, data = decode_failure(record.result)
                self._tell("failure_replayed", error_type=kind)
                raise StoredFailure(kind, message, data)
            case Decision.REUSED:
                given = fingerprint.beside(record.fingerprint, self._required_want().payload)
                differing = fingerprint.differing(record.fingerprint, given)
                self._tell("mismatch", differing=differing)
                raise KeyReused(f"The payload differs in: {', '.join(differing)}.", differing=differing)
            case Decision.EXPIRED:
                self._tell("expired_refused")
                raise KeyExpired
            case _:
                if self._settings.probe is None:
                    self._tell("unknown_refused")
                    raise OutcomeUnknown
                return _Probe(record)

    def _hold(self, won: Won) -> None:
        self._held = held = won.held
        before = EffectiveState.ABSENT if won.seen is None else won.seen.effective_state
        name = _BEGINNINGS.get(before, "reclaimed")
        self._tell(name, token=held.token, attempts=won.record.attempts)
        if not held.transactional:
            self._lease = heartbeat.Lease(held, self._claimed_at, self._teller())

    # ------------------------------------------------------------ what is stored, encrypted if the boundary says so

    def _readable(self, record: Record) -> Record:
        """The record with its answer as its codec wrote it."""
        if record.result is None:
            return record
        try:
            stored = opened(self._settings.encryption, record.result, self._bound(record.state))
        except ResultUnreadable as unreadable:
            self._tell("unreadable", reason=unreadable.detail)
            raise
        return record._replace(result=stored)

    def _sealed(self, event: Transition | None, stored: StoredResult | None) -> StoredResult | None:
        """An answer as it is to be stored by an event."""
        target = None if event is None else RULES[event].target
        return stored if target is None else sealed(self._settings.encryption, stored, self._bound(target))

    def _bound(self, state: State) -> Bound:
        """What this key's answers belong to: taken from what was asked for, never from what was found."""
        want = self._required_want()
        return Bound(want.boundary, want.scope, want.operation, want.key, state)

    def _replay(self, record: Record) -> None:
        assert record.result is not None
        self._result = self._settings.codec.decode(record.result, self._annotation)
        self.replayed = True
        self._tell("replayed")

    # ------------------------------------------------------------ probing

    def _probe(self, record: Record) -> None:
        """Ask the user's probe, and settle the record by its answer."""
        answer = self._ask_probe()
        if answer is not None:
            close = getattr(answer, "close", None)
            if close is not None:
                close()
            raise ConfigurationError("probe= is a coroutine function, and the operation is sync: use a plain function.")
        event, stored = self._probed()
        store, clocks = self._settings.backend.store, self._settings.clocks
        with Timing(self._tell, "resolve"):
            run(resolve(store, record, event, stored, clocks), self._standing_ground().executor())

    async def _aprobe(self, record: Record) -> None:
        answer = self._ask_probe()
        if answer is not None:
            try:
                await answer
            except Exception as error:
                raise OutcomeUnknown(f"The probe failed: {error!r}") from error
        event, stored = self._probed()
        store, clocks = self._settings.backend.store, self._settings.clocks
        with Timing(self._tell, "resolve"):
            await arun(resolve(store, record, event, stored, clocks), self._standing_ground().aexecutor())

    def _ask_probe(self) -> Awaitable[Any] | None:
        assert self._settings.probe is not None
        self._signals = HandlerSignals()
        try:
            answer = self._settings.probe(self)
        except Exception as error:
            raise OutcomeUnknown(f"The probe failed: {error!r}") from error
        return answer if hasattr(answer, "__await__") else None

    def _probed(self) -> tuple[Transition, StoredResult | None]:
        """What the probe said, as an event and what it stores."""
        said, self._signals = self._signals, HandlerSignals()
        result, self.result = self.result, None
        answer = answer_of(said, self._settings, result, self._annotation)
        if answer is None:
            self._tell("unknown_refused")
            raise OutcomeUnknown("The probe could not tell either.")
        event, stored = answer
        self._tell("probed", outcome=RULES[event].target)
        return event, self._sealed(event, stored)

    # ------------------------------------------------------------ leaving

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._exit(error)
        except BaseException as raised:
            self._over(raised)
            raise
        self._observers.close(error)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._aexit(error)
        except BaseException as raised:
            self._over(raised)
            raise
        self._observers.close(error)

    def _exit(self, error: BaseException | None) -> None:
        if not self._leave():
            return
        lease = self._lease
        if lease is None:
            self._end(error)
            return
        lease.settling = True
        try:
            self._end(error)
        finally:
            heartbeat.for_thread(self._settings.backend).drop(lease)

    async def _aexit(self, error: BaseException | None) -> None:
        if not self._leave():
            return
        lease = self._lease
        stopped_by_us = lease is not None and lease.stopped_task(error)
        try:
            await self._finish_end(error)
        finally:
            if lease is not None:
                heartbeat.for_loop(self._settings.backend).drop(lease)
        if stopped_by_us:
            raise LeaseLost("The work was stopped because its lease could not be kept.") from error

    async def _finish_end(self, error: BaseException | None) -> None:
        if self._settings.backend.immediate:
            self._end(error)
            return
        _, cancelled = await run_to_completion(self._aend(error))
        if cancelled is not None:
            raise cancelled

    def _end(self, error: BaseException | None) -> None:
        """Record how the block ended, and raise what the caller must know."""
        end = self._judge(error)
        try:
            settled = self._standing_ground().settle(
                self._hold_to_settle(), end.word, end.stored, failing=error is not None
            )
        except Exception as failure:
            self._concluding().not_settled(failure)
            raise
        if settled is Settled.UNANSWERED:
            heartbeat.for_thread(self._settings.backend).carry(self._deferred(end, error))
        self._concluding().reached(settled, end, error)
        self._standing_ground().after()

    async def _aend(self, error: BaseException | None) -> None:
        end = self._judge(error)
        try:
            settled = await self._standing_ground().asettle(
                self._hold_to_settle(), end.word, end.stored, failing=error is not None
            )
        except Exception as failure:
            self._concluding().not_settled(failure)
            raise
        if settled is Settled.UNANSWERED:
            heartbeat.for_loop(self._settings.backend).carry(self._deferred(end, error))
        self._concluding().reached(settled, end, error)

    def _deferred(self, end: WorkOutcome, error: BaseException | None) -> Deferred:
        """The outcome as it is put to the store again, while the lease lasts, by the heartbeat."""
        terms, held, event, lease = self._settings, self._hold_to_settle(), end.word.event, self._lease
        assert event is not None
        assert lease is not None

        def tell(name: str, **fields: Any) -> None:
            terms.emit(name, self._operation, held.key, held.attempt, fields)

        def conclude(done: bool | None) -> None:
            terms.backend.wakeups.wake(held.key)
            Conclusion(terms, self._signals, lease, tell, own=False).reached_late(done, end, error)

        return Deferred(lease.until, lambda: settle(terms.backend.store, held, event, end.stored), conclude)

    def _hold_to_settle(self) -> Ownership:
        """The hold, with the clocks of what it leaves: a key that is to be used elsewhere is free for any request."""
        held = self._required_hold()
        if self._signals.answered[0] is not Answered.ELSEWHERE:
            return held
        memory = 0 if self._required_want().on_expired == "refuse" else held.clocks.memory
        return held._replace(clocks=held.clocks._replace(window=0, memory=memory))

    def _judge(self, error: BaseException | None) -> WorkOutcome:
        end = end_of(self._signals, error, self._standing_ground().kind, self._settings, self.result, self._annotation)
        return end._replace(stored=self._sealed(end.word.event, end.stored))

    def _concluding(self) -> Conclusion:
        """What is told and raised now; who waits for the key is woken first."""
        self._tell_warnings()
        self._settings.backend.wakeups.wake(self._required_hold().key)
        own = self._standing_ground().kind is Kind.OWN
        return Conclusion(self._settings, self._signals, self._lease, self._tell, own)

    # ------------------------------------------------------------ the lease

    def _renewing(self) -> Steps[tuple[set[Ownership], float]]:
        """A claim that waited long for its store starts with a whole lease."""
        asked_at = heartbeat.clock()
        kept = yield from renew(self._settings.backend.store, [self._required_hold()])
        return kept, asked_at

    # ------------------------------------------------------------ small things

    def _over(self, error: BaseException) -> None:
        """The attempt ends by an error of ours or of the work, or by one that a signal handler raised in between."""
        self._context.abandon()
        if self._ground is not None:
            self._ground.abandon(error)
        if isinstance(error, RetrysafeError):
            self._signed(error)
        self._observers.close(error)

    def _signed(self, error: RetrysafeError) -> RetrysafeError:
        """Let an error say whose it is, unless it is that of a claim inside this one."""
        if not error.boundary:
            error.boundary, error.operation = self.boundary, self._operation
            error.key = "" if self._want is None else keys.redact(self._want.key)
        return error

    def _leave(self) -> bool:
        """Whether there is something to settle: not for a replay, nor for a child forked inside the block."""
        return self._context.leave() and self._held is not None

    @property
    def _backend(self) -> Backend:
        return self._settings.backend

    @property
    def _held_key(self) -> bytes | None:
        return None if self._held is None else self._held.key

    def _standing_ground(self) -> ClaimMode:
        assert self._ground is not None
        return self._ground

    def _required_want(self) -> ClaimRequest:
        if self._want is None:
            raise ConfigurationError("The operation runs without a key (on_missing='pass'), so it has none of this.")
        return self._want

    def _required_hold(self) -> Ownership:
        if self._held is None:
            raise ConfigurationError("This attempt does not hold its key: it is a replay, or has not been entered.")
        return self._held

    def _teller(self) -> Callable[..., None]:
        """Tells what `_tell` does, for parts of this claim: they must not keep it alive, see `nesting.Place`."""
        observers, terms, operation, want = self._observers, self._settings, self._operation, self._required_want()

        def tell(name: str, **fields: Any) -> None:
            observers.emit(name, terms.name, operation, want.key, want.attempt, fields)

        return tell

    def _tell(self, name: str, **fields: Any) -> None:
        if self._want is not None:
            self._observers.emit(name, self._settings.name, self._operation, self._want.key, self._want.attempt, fields)
