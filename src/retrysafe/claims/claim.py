"""A claim: entered when the key is won or answered, left when the outcome is recorded.

What exists grows with it: a `Claim` has a request from the beginning; entering finds its mode (see
`retrysafe.claims.modes`) and asks the store; what only a winner has, its ownership and its lease, is a `HeldClaim`, and
what the handler says of the effect is kept once it says something.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from enum import Enum
from types import GenericAlias, TracebackType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeVar

from retrysafe.backends.backend import Backend
from retrysafe.backends.driver import arun, run
from retrysafe.backends.stores import Tx
from retrysafe.cancellation import run_to_completion
from retrysafe.claims import heartbeat
from retrysafe.claims.codec import AnswerCodec
from retrysafe.claims.context import ClaimContext, enclosing, innermost, is_inside, strangers, transaction_on
from retrysafe.claims.held_claim import HeldClaim, tell_warnings
from retrysafe.claims.modes import CallerTransaction, ClaimMode, OwnTransaction
from retrysafe.claims.notes import PROBE, add_note
from retrysafe.claims.observers import UNOBSERVED
from retrysafe.claims.outcome import (
    NO_SIGNALS,
    HandlerSignals,
    failure_as_stored,
    is_answer,
    is_final,
    load_result,
    refusal,
    verdict_of_probe,
)
from retrysafe.claims.plan import Plan
from retrysafe.claims.sealing import Bound, seal
from retrysafe.claims.settings import BoundarySettings
from retrysafe.claims.timing import Timing
from retrysafe.claims.waiting import Patience, check_snapshot_once, refuse_on_a_loop
from retrysafe.errors import (
    ConfigurationError,
    InProgress,
    LeaseLost,
    OutcomeUnknown,
    QuotaExceeded,
    RetrysafeError,
    SchemaOutdated,
)
from retrysafe.protocol import keys
from retrysafe.protocol.backoff import RESTART
from retrysafe.protocol.decisions import Decision
from retrysafe.protocol.outcomes import DONE, Answered, ModeKind
from retrysafe.protocol.procedures import ClaimResult, Won, renew, resolve
from retrysafe.protocol.records import ClaimRequest, EffectiveState, Record, Reject
from retrysafe.protocol.schedules import LOOKS_PER_LEASE
from retrysafe.protocol.transitions import RULES

if TYPE_CHECKING:
    from datetime import datetime
    from random import Random
    from typing import Unpack, overload
    from uuid import UUID

    from typing_extensions import TypeVar as DefaultedTypeVar

    from retrysafe.claims.step import Step, StepOptions
    from retrysafe.claims.steps import ClaimSteps
    from retrysafe.protocol.records import Duration

    Result = DefaultedTypeVar("Result", default=Any)
    Made = TypeVar("Made")
    Item = TypeVar("Item")
else:
    Result = TypeVar("Result")
Returned = TypeVar("Returned")

Entering = Generator[Any, Any, Returned]
"""Asks its driver to claim a request, compare a backend with ours, await a probe, wait for seconds, run a program."""


class StoreCall(Enum):
    """The request that a store is sent next in entering."""

    CLAIM = "it has not been asked"
    RENEW = "the claim was won late, so that its lease is renewed first"


Reaction = float | Record | StoreCall | None
"""The next part of entering: wait so many seconds, probe a record, ask the store; None: it is entered."""


class AwaitProbe(NamedTuple):
    """The answer of a probe that is a coroutine function."""

    answer: Awaitable[Any]


MOST_RESTARTS = 5
"""The number of times that a transaction of our own runs again because the database asks for it."""
_BEGINNINGS = {EffectiveState.RELEASED: "started", EffectiveState.LAPSED: "takeover"}


def current() -> Claim:
    """Return the claim around the running code, or its step: the innermost one of this thread or task.

    Raises `ConfigurationError` outside a guarded operation.
    """
    found: Any = enclosing()
    if not hasattr(found, "key_for"):  # none, or a batch, which has many
        raise ConfigurationError("current() was called outside a guarded operation.")
    claim: Claim = found
    return claim


class Claim(Generic[Result, Tx]):
    """One attempt at a key, for ``with`` and ``async with``.

    Inside the block either ``replayed`` is true and ``result`` is the stored one, or the work is
    yours: do it, and set ``result``. Entering raises `InProgress`, `KeyReused`, `KeyExpired`,
    `OutcomeUnknown`, `StoredFailure`, `StoreUnavailable` or `SchemaOutdated`, and then nothing was run.

    The block runs on replays too, so put the work under ``if not claim.replayed``.
    """

    if not TYPE_CHECKING:
        __class_getitem__ = classmethod(GenericAlias)  # Generic has no defaults before Python 3.13: Claim[Order]

    _replayed = False
    _result: Any = None
    _mode: ClaimMode | None = None
    _events = UNOBSERVED
    _claimed_at = 0.0
    _waiting: Patience | None = None
    _held: HeldClaim | None = None
    _context: ClaimContext | None = None
    _signals = NO_SIGNALS
    _keeps_steps = False
    needs_heartbeat = True
    """False: its lease is as long as its work can take, and no heartbeat renews it."""
    _entered = False
    _was_refused = False
    """True if an error has said that it was not entered."""
    _tx_taken = False
    """True if the work has asked for the transaction, by which it may have written."""
    _course: ClaimSteps | None = None
    """Its steps, once one was asked for."""
    is_named_lease = False
    """True if it holds a lease for a block, and is no operation of its own: `current()` passes over it."""

    def __init__(self, plan: Plan, request: ClaimRequest | None, tx: Any = None, annotation: Any = None) -> None:
        self._plan = plan
        self._settings: BoundarySettings = plan.settings
        if plan.lease_mode is None and plan.settings.backend.is_sharded and request is not None:
            self._settings = plan.settings._replace(backend=plan.settings.backend.of(request.key))
        self._request = request
        self._tx = tx
        self._annotation = annotation

    # ------------------------------------------------------------ for the work inside

    @property
    def replayed(self) -> bool:
        """True if the result of an earlier attempt was found.

        Raises `ConfigurationError` of a claim that was never entered: work that asks for this would not be guarded.
        """
        if not self._entered:
            raise self._not_entered()
        return self._replayed

    @property
    def result(self) -> Result:
        """The stored result of a replay, or the one that this attempt has set; None until then.

        Setting it on a replay raises `ConfigurationError`: the work has been done, and was not to be done again. So it
        does after the block, when the outcome is stored, as do `fail`, `committed` and `not_executed`; and so does all
        of this before the block.
        """
        if not self._entered:
            raise self._not_entered()
        result: Result = self._result
        return result

    @result.setter
    def result(self, value: Result) -> None:
        if self._replayed:
            raise ConfigurationError(
                "result was set on a replay, whose stored result cannot change. The block runs on replays too: "
                "put the work under 'if not claim.replayed'."
            )
        if not self._entered or (self._context is not None and self._context.left):
            self._refuse_outside()
        self._result = value

    @property
    def boundary(self) -> str:
        """The name of the boundary."""
        return self._settings.name

    @property
    def operation(self) -> str:
        """The operation that the key belongs to."""
        return self._plan.operation

    @property
    def token(self) -> int:
        """The fencing token: higher for every later attempt. Hand it to what can refuse older ones."""
        self._require_request()
        if self._held is None:
            raise ConfigurationError("This attempt does not hold its key: it is a replay, or has not been entered.")
        return self._held.ownership.token

    @property
    def attempt_id(self) -> str:
        """This attempt's own id."""
        return self._require_request().attempt

    @property
    def tx(self) -> Tx:
        """The transaction that the record shares: the one given as ``tx=``, or the boundary's own.

        None for boundaries that are not transactional, and for replays from a transaction of our own. A cursor of a
        sqlite3 connection of our own is closed with its transaction: read it inside the block.
        """
        self._tx_taken = True
        tx: Tx = self._transaction
        return tx

    def key_for(self, name: str) -> str:
        """The idempotency key for the downstream call ``name``: the same on every attempt of this key.

        A UUID in the shape of version 4: 36 characters, which every provider takes.
        """
        return keys.derive(self._settings.secret, self._require_request().key, name)

    def fail(self, error: BaseException) -> None:
        """Declare that the operation failed for good: the failure is stored and replayed.

        An attribute ``data`` of the error is stored too, if it is JSON. Raises `ConfigurationError` for what is no
        exception.
        """
        if not isinstance(error, BaseException):
            raise ConfigurationError(f"fail() takes an exception, as in fail(ValueError({error!r})).")
        self._signalling().failure = error

    def _fail_keeping_steps(self, error: BaseException) -> None:
        """`fail` for an entry point whose work may be taken up again: steps that are done stay, for it to go on."""
        self.fail(error)
        self._keeps_steps = True

    def committed(self) -> None:
        """Say that an effect happened: from now on a failure means *unknown*, never a free key."""
        self._signalling().committed = True

    def not_executed(self) -> None:
        """Say that no effect happened: if the block now fails, the key is released."""
        self._signalling().not_executed = True

    def respond(
        self,
        status: int,
        body: Any = b"",
        *,
        headers: Mapping[str, str] | Iterable[tuple[str, str]] = (),
        content_type: str | None = None,
    ) -> None:
        """Say, in a probe, that the effect of an HTTP request happened, and which response retries get.

        ``body`` is bytes, text, or anything else as JSON; ``content_type`` is by default what it is of these. Raises
        `ConfigurationError` for what is no response, and for claims that belong to no HTTP request.
        """
        codec = self._settings.codec
        if not isinstance(codec, AnswerCodec):
            raise self._sign(
                ConfigurationError(
                    f"respond() answers HTTP requests, and operation {self.operation!r} returns a result: write "
                    "claim.result = …; claim.committed()."
                )
            )
        self.result = codec.respond(status, body, headers=headers, content_type=content_type)
        self.committed()

    # ------------------------------------------------------------ steps

    if TYPE_CHECKING:

        @overload
        def step(
            self, name: str, function: Callable[..., Made], /, *args: Any, **options: Unpack[StepOptions]
        ) -> Made: ...

        @overload
        def step(self, name: str, /, **options: Unpack[StepOptions]) -> Step: ...

    def step(self, name: str, function: Callable[..., Any] | None = None, /, *args: Any, **options: Any) -> Any:
        """Do a part of the work once: its result is stored, and a later attempt at this key goes on behind it.

        ``claim.step("charge", charge, amount)`` calls the function, and returns what it returns or has returned to an
        earlier attempt; a coroutine function is awaited. Without a function it is a block: ``with claim.step("order
        row", tx=tx) as step:`` or ``async with``, in which work stands under ``if not step.replayed`` and sets
        ``step.result``. Inside, `current()` is the `Step`, with a ``key_for`` of its own.

        each: the index, where a step is done for each of many: from the data, never a counter.
        tx: your open transaction on the store's database, which the function gets as its first argument: the row of
            the step commits with it.
        effects: "keyed" or "external", by default the boundary's: an external step is never done twice. If its outcome
            is unknown, ``probe`` is called with the step, to say as a boundary's probe does.
        undo: called with the result if the operation fails for good later, last step first. With it, a step that was
            begun and has no result is done again, under the same ``key_for``, before it is undone.
        was: the name that the step had when runs that are under way began. new: it had none then.

        Raises `ConfigurationError` if a finished step is asked for with other arguments, `OutcomeUnknown` if it
        may have happened, `LeaseLost` if the key was taken over, and `RetryTransaction` if another attempt has
        committed it.
        """
        return self._steps().step(name, function, args, **options)

    def sleep(self, name: str, duration: Duration) -> None:
        """Let the work go on only so long after the first attempt came here: raises `Postponed` until then.

        In async code await `asleep`.
        """
        steps = self._steps()
        steps.run(steps.sleep(name, duration))

    async def asleep(self, name: str, duration: Duration) -> None:
        """`sleep` for async code."""
        steps = self._steps()
        await steps.arun(steps.sleep(name, duration))

    def wait_for(self, name: str, *, retry_after: Duration = "10s") -> Any:
        """The value of a signal; raises `Postponed` until `Boundary.signal` has given it."""
        steps = self._steps()
        return steps.run(steps.wait_for(name, retry_after))

    async def await_for(self, name: str, *, retry_after: Duration = "10s") -> Any:
        """`wait_for` for async code."""
        steps = self._steps()
        return await steps.arun(steps.wait_for(name, retry_after))

    def now(self) -> datetime:
        """The time at which this work was begun, the same on every attempt, in UTC."""
        return self._steps().now()

    def uuid(self, name: str) -> UUID:
        """A UUID that is the same on every attempt of this key."""
        return self._steps().uuid(name)

    def random(self, name: str) -> Random:
        """A source of random numbers that is the same on every attempt of this key; not for secrets."""
        return self._steps().random(name)

    def ordered(self, items: Iterable[Item], key: Callable[[Item], Any]) -> list[Item]:
        """The items sorted, so that every attempt meets them in one order; raises `ConfigurationError` for equal keys.

        For those whose order changes: of a set, a directory, or a query without ORDER BY.
        """
        return self._steps().ordered(items, key)

    def _steps(self) -> ClaimSteps:
        if self._course is None:
            from retrysafe.claims.steps import ClaimSteps

            self._refuse_outside()
            self._course = ClaimSteps(self, self._require_request(), self._held)
        return self._course

    def ensure_held(self) -> None:
        """Raise `LeaseLost` unless this attempt certainly still holds its key; asks no store."""
        held = self._held
        if held is not None and not held.ownership.transactional and not held.is_held():
            raise self._sign(LeaseLost("The lease ended before the work did."))

    # ------------------------------------------------------------ for entry points of ours

    def _hold_for(self, seconds: float) -> Self:
        """Hold the key for so long, without a heartbeat: afterwards the process will certainly not work any more."""
        if self._request is not None:
            clocks = self._request.clocks._replace(lease=round(seconds * 1e6))
            self._request = self._request._replace(clocks=clocks)
        self.needs_heartbeat = False
        return self

    def _take_answer(self, answered: Answered, result: Any, reason: str = "") -> None:
        """Say, as an entry point does, what the work's answer means: ``result`` is stored, or it failed for ``reason``.

        The answer to a failure that the handler declared with `fail` is stored instead of the failure.
        """
        self.result = result
        if answered is DONE and self._signals is NO_SIGNALS:
            return
        signals = self._signalling()
        if signals.failure is not None:
            signals.failure, answered = None, Answered.ABORTED
        signals.answered = (answered, reason)

    def _give_answer(self) -> Any:
        """The result, or the failure that the handler declared, as every retry will get it; once the claim is left."""
        failure = self._signals.failure
        if failure is not None:
            raise self._sign(failure_as_stored(failure, self._settings.largest_result)) from failure
        return self._result

    def _restart_pause(self, restarts: int) -> float | None:
        """Seconds until the caller should run the whole work again after `RetryTransaction`; None: it should not.

        Only a transaction of the boundary's own can be run again, with a new claim, and ``restarts`` are bounded.
        """
        if self._mode is None or self._mode.kind is not ModeKind.OWN or restarts >= MOST_RESTARTS:
            return None
        self._events.emit("restarted", restarts=restarts + 1)
        return RESTART.delay(restarts, self._settings.chance())

    def _emit(self, name: str, **fields: Any) -> None:
        """Send the observers an event that concerns this attempt, as an entry point does."""
        self._events.emit(name, **fields)

    def _sign(self, error: RetrysafeError) -> RetrysafeError:
        """Add this claim's boundary, operation and key to an error that does not belong to a nested claim."""
        if not error.boundary:
            error.boundary, error.operation = self.boundary, self.operation
            if self._request is not None:
                error.key = keys.redact(self._request.key)
                if self._entered and not isinstance(error, QuotaExceeded | SchemaOutdated):  # else there is no record
                    error.shown_by = self._settings.backend.commands.line("keys show", [("hash", error.key)])
        return error

    # ------------------------------------------------------------ entering

    def __enter__(self) -> Self:
        if self._entered:
            raise self._second_entry()
        self._entered = True
        try:
            request, then = self._request, None
            if (mode := self._set_plain_mode()) is not None:
                assert request is not None
                self._claimed_at = heartbeat.clock()
                then = self._react(mode.claim(request))
            else:
                if request is not None:
                    refuse_on_a_loop(self._settings)
                then = StoreCall.CLAIM
            backend = self._settings.backend
            if then is not None:
                program = self._go_on(then)
                try:
                    while (pause := self._drive(program)) is not None:
                        backend.wait(self._require_request().key, pause)
                finally:
                    program.close()
            held = self._held
            if held is not None and self.needs_heartbeat and not held.ownership.transactional:
                # `for_thread`, called only for the first lease
                beat: Any = backend.companions().get(heartbeat.ThreadHeartbeat) or heartbeat.for_thread(backend)
                held.heartbeat = beat
                beat.add(held)
            self._context = ClaimContext(self, None if self._mode is None else self._mode.tx)
        except BaseException as error:
            self._abandon(error)
            raise
        return self

    async def __aenter__(self) -> Self:
        if self._entered:
            raise self._second_entry()
        self._entered = True
        try:
            mode = self._set_plain_mode()
            then = StoreCall.CLAIM if mode is None else self._react(await self._aclaim(mode, self._require_request()))
            if then is not None:
                await self._adrive(self._go_on(then))
            held = self._held
            if held is not None and self.needs_heartbeat and not held.ownership.transactional:
                held.watch_task()
                held.heartbeat = heartbeat.for_loop(self._settings.backend)
                held.heartbeat.add(held)
            self._context = ClaimContext(self, None if self._mode is None else self._mode.tx)
        except BaseException as error:
            await self._aabandon(error)
            raise
        return self

    async def _enter_by(self, in_thread: Callable[[Callable[[], Any]], Awaitable[Any]]) -> None:
        """Enter from an event loop, on a store that serves sync code only: ``in_thread`` runs a function in a thread.

        A thread is taken for each look at the store, and none while the claim waits for another attempt. What
        ``in_thread`` was given comes to its end even when the caller is cancelled.
        """
        if self._entered:
            raise self._second_entry()
        self._entered = True
        backend, program = self._settings.backend, self._go_on(StoreCall.CLAIM)
        try:
            while (pause := await in_thread(functools.partial(self._drive, program))) is not None:
                await backend.await_(self._require_request().key, pause)
            held = self._held
            if held is not None and self.needs_heartbeat and not held.ownership.transactional:
                held.heartbeat = heartbeat.for_thread(backend)
                held.heartbeat.add(held)
            self._context = ClaimContext(self, None if self._mode is None else self._mode.tx)
        except BaseException as error:
            await in_thread(functools.partial(self._abandon, error))
            raise
        finally:
            program.close()

    def _set_plain_mode(self) -> ClaimMode | None:
        """Set the mode of an attempt with no other around it; None if its claim cannot be put at once."""
        settings, request = self._settings, self._request
        if request is None or innermost.get() is not None or settings.concurrency.__class__ is not Reject:
            return None
        backend, tx = settings.backend, self._tx
        if settings.observers.present:
            self._events = settings.observers.begin(request, backend.kind, settings.codec, self._annotation)
        mode: ClaimMode = self._plan.lease_mode or (
            OwnTransaction(backend) if tx is None else CallerTransaction(backend, tx)
        )
        self._mode = mode
        # `_go_on` claims then: it times each request, for that event
        return None if self._events.detailed and self._events.is_enabled("store_request") else mode

    def _go_on(self, then: Reaction) -> Entering[None]:
        """Enter from where the first answer of the store leads: ask, wait, probe and renew as long as it takes.

        `_drive` and `_adrive` do what is yielded, and send back the result.
        """
        try:
            if then is StoreCall.CLAIM:
                then = yield from self._ask_first()
            while then is not None:
                if then is StoreCall.RENEW:
                    yield from self._renew_late()
                    break
                if isinstance(then, Record):
                    yield from self._probe(then)
                else:
                    yield then
                then = yield from self._claim()
        finally:
            if self._waiting is not None:
                self._waiting.end()

    def _ask_first(self) -> Entering[Reaction]:
        """Find the mode, unless it is found, and claim; a call without a key passes unguarded."""
        settings, request = self._settings, self._request
        if request is None:
            settings.emit("passed", self.operation, b"", "")
            return None
        if self._mode is None:
            if settings.observers.present:
                self._events = settings.observers.begin(
                    request, settings.backend.kind, settings.codec, self._annotation
                )
            for other in strangers(settings.backend):
                _ = yield other  # the answer is found again by `is_same`
            self._mode = self._mode_inside(request.key)
            if (check := check_snapshot_once(settings)) is not None and (level := (yield check)) is not None:
                self._events.emit("frozen_snapshot", isolation=level)
        return (yield from self._claim())

    def _claim(self) -> Entering[Reaction]:
        request = self._require_request()
        self._claimed_at = heartbeat.clock()
        with Timing(self._events, "claim"):
            found: ClaimResult = yield request
        return self._react(found)

    def _renew_late(self) -> Entering[None]:
        """A claim that waited long for its store starts with a whole lease."""
        held = self._held
        assert held is not None
        asked_at = heartbeat.clock()
        held.apply_renewal((yield renew(self._settings.backend.store, [held.ownership])), asked_at)
        held.refuse_ended()

    def _mode_inside(self, key: bytes) -> ClaimMode:
        """The mode of a claim with ``tx=``, or around which there may be others.

        Inside a transactional claim on the same store it is the transaction of that; a lease cannot live there.
        """
        if is_inside(key):
            raise InProgress("The key is claimed by the operation that encloses this one: it would wait for itself.")
        settings, tx = self._settings, self._tx
        around = transaction_on(settings.backend, asked_for=tx is not None)
        if around is not None:
            if settings.effects != "transactional":
                raise ConfigurationError(
                    f"Boundary {settings.name!r} (effects={settings.effects!r}) was used inside a transaction of "
                    f"{around.boundary!r} on the same store: its record would not be rolled back with it. "
                    "Use it before or after, or make it effects='transactional'."
                )
            tx = around.tx if tx is None else tx
        return self._plan.lease_mode or (
            OwnTransaction(settings.backend) if tx is None else CallerTransaction(settings.backend, tx)
        )

    # ------------------------------------------------------------ the drivers of entering

    def _drive(self, program: Entering[None]) -> float | None:
        """Do what entering asks for, up to a wait, whose seconds are returned; None when it has come to its end."""
        answer: Any = None
        failure: BaseException | None = None
        while True:
            try:
                asked = program.send(answer) if failure is None else program.throw(failure)
            except StopIteration:
                return None
            if isinstance(asked, float):
                return asked
            if isinstance(asked, AwaitProbe):
                if (close := getattr(asked.answer, "close", None)) is not None:
                    close()
                raise ConfigurationError(
                    "probe= is a coroutine function, and the operation is sync: use a plain function."
                )
            answer = failure = None
            try:
                answer = self._do(asked)
            except BaseException as error:  # noqa: BLE001 - it is raised where it was asked for
                failure = error

    def _do(self, asked: Any) -> Any:
        mode, backend = self._mode, self._settings.backend
        if isinstance(asked, Backend):
            return backend.database.compare(asked.database)
        assert mode is not None
        if isinstance(asked, ClaimRequest):
            return mode.claim(asked)
        return run(asked, mode.executor())

    async def _adrive(self, program: Entering[None]) -> None:
        """Do what entering asks for, to its end."""
        answer: Any = None
        failure: BaseException | None = None
        try:
            while True:
                asked = program.send(answer) if failure is None else program.throw(failure)
                answer = failure = None
                try:
                    answer = await self._ado(asked)
                except BaseException as error:  # noqa: BLE001 - it is raised where it was asked for
                    failure = error
        except StopIteration:
            return

    async def _ado(self, asked: Any) -> Any:
        mode, backend = self._mode, self._settings.backend
        if isinstance(asked, float):
            return await backend.await_(self._require_request().key, asked)
        if isinstance(asked, Backend):
            return await backend.database.acompare(asked.database)
        if isinstance(asked, AwaitProbe):
            return await asked.answer
        assert mode is not None
        if isinstance(asked, ClaimRequest):
            return await self._aclaim(mode, asked)
        return await arun(asked, mode.aexecutor())

    async def _aclaim(self, mode: ClaimMode, request: ClaimRequest) -> ClaimResult:
        """Try once, to the end even when cancelled; a claim that a cancelled caller won is undone."""
        self._claimed_at = heartbeat.clock()
        if self._settings.backend.access.immediate:
            return mode.claim(request)
        found, cancelled = await run_to_completion(mode.aclaim(request))
        if cancelled is not None:
            if isinstance(found, Won):
                self._react(found)
            raise cancelled
        return found

    def _abandon(self, error: BaseException) -> None:
        """Give back a claim that was won, but whose caller will not do the work."""
        try:
            if self._held is not None:
                self._signalling().not_executed = True
                self._held.end(self._signals, None, None, error)
        except BaseException as raised:
            self._end_failed(raised)
            raise
        self._end_failed(error)

    async def _aabandon(self, error: BaseException) -> None:
        try:
            if self._held is not None:
                self._signalling().not_executed = True
                await self._aend(self._held, error)
        except BaseException as raised:
            self._end_failed(raised)
            raise
        self._end_failed(error)

    def _second_entry(self) -> RetrysafeError:
        return self._sign(ConfigurationError("A claim can be entered only once; make a new one with .claim()."))

    # ------------------------------------------------------------ what the store answers

    def _react(self, found: ClaimResult) -> Reaction:
        """Return the reaction to the store's answer to a claim; raises what the caller must know."""
        settings, mode, request = self._settings, self._mode, self._request
        assert mode is not None
        assert request is not None
        backend = settings.backend
        if backend.warnings or backend.cache is not None:
            tell_warnings(backend, self._events)
        if isinstance(found, Won):
            ownership, record, seen = found
            held = HeldClaim(self, settings, mode, request, found, self._claimed_at, self._events)
            self._held = held
            if self._events.detailed or seen is not None:
                name = "started" if seen is None else _BEGINNINGS.get(seen.effective_state, "reclaimed")
                self._events.emit(name, token=ownership.token, attempts=record.attempts)
            if ownership.transactional or heartbeat.clock() - self._claimed_at <= held.seconds / LOOKS_PER_LEASE:
                return None
            return StoreCall.RENEW
        decision, met, refused = found
        if met is not None and (
            decision is Decision.REPLAY or (decision is Decision.REPLAY_FAILURE and is_answer(settings, request, met))
        ):
            self._result = load_result(settings, request, met, self._annotation, self._events)
            self._replayed = True
            if self._events.detailed:
                codec = settings.codec
                answer = codec.describe(self._result, self._annotation) if isinstance(codec, AnswerCodec) else {}
                self._events.emit("replayed", **answer)
            return None
        if refused is not None:
            self._events.emit("quota_refused", limit=refused.limit, retry_after=refused.retry_after)
            raise QuotaExceeded(limit=refused.limit, retry_after=refused.retry_after)
        if decision is Decision.BUSY or met is None:
            if self._waiting is None:
                self._waiting = Patience(settings, self._events)
            return self._waiting.pause(met, helps=mode.waits)
        if decision is Decision.DOUBT and settings.probe is not None:
            return met
        raise refusal(settings, request, decision, met, self._events)

    def _probe(self, record: Record) -> Entering[None]:
        """Ask the user's probe, and settle the record by its answer."""
        settings, request = self._settings, self._require_request()
        assert settings.probe is not None
        self._signals = NO_SIGNALS
        try:
            answer = settings.probe(self)
            if hasattr(answer, "__await__"):
                yield AwaitProbe(answer)
        except Exception as error:
            raise OutcomeUnknown(f"The probe failed: {error!r}") from error
        signals, self._signals = self._signals, NO_SIGNALS
        result, self._result = self._result, None
        found = verdict_of_probe(signals, settings, result, self._annotation)
        if found is None:
            self._events.emit("unknown_refused")
            raise OutcomeUnknown("The probe could not determine the outcome either.")
        event, stored = found
        target = RULES[event].target
        assert target is not None
        self._events.emit("probed", outcome=target)
        stored = add_note(seal(settings.encryption, stored, Bound.of(request, target)), PROBE)
        with Timing(self._events, "resolve"):
            yield resolve(settings.backend.store, record, event, stored, settings.clocks)

    # ------------------------------------------------------------ leaving

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        given = error
        try:
            if error is not None or self._signals is not NO_SIGNALS:
                self._look_for_earlier_steps(error)
            if self._course is not None:
                error = self._course.end(error)
            if self._context is not None and self._context.leave() and self._held is not None:
                self._held.settling = True
                self._held.end(self._signals, self._result, self._annotation, error)
                if self._course is not None:
                    self._course.finish(given, error)
        except BaseException as raised:
            self._end_failed(raised)
            raise
        if self._events.detailed:
            self._events.close(error)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        given = error
        try:
            if error is not None or self._signals is not NO_SIGNALS:
                self._look_for_earlier_steps(error)
            if self._course is not None:
                error = await self._course.aend(error)
            if self._context is not None and self._context.leave() and self._held is not None:
                stopped_by_us = self._held.end_work((self._course and self._course.cancelled) or error)
                await self._aend(self._held, error)
                if stopped_by_us:
                    raise LeaseLost("The work was stopped because its lease could not be kept.") from error
                if self._course is not None:
                    await self._course.afinish(given, error)
        except BaseException as raised:
            self._end_failed(raised)
            raise
        if self._events.detailed:
            self._events.close(error)

    def _look_for_earlier_steps(self, error: BaseException | None) -> None:
        """If the work failed for good, its earlier attempts may have steps to undo, even if this one asked for none."""
        held, context = self._held, self._context
        if held is None or held.record.attempts == 1 or held.ownership.transactional or self._keeps_steps:
            return
        if context is None or not context.is_open():
            return
        if is_final(self._signals, error, self._settings):
            self._steps().looks_for_earlier = True

    async def _aend(self, held: HeldClaim, error: BaseException | None) -> None:
        """Record how the block ended, to the end even if the caller is cancelled."""
        if self._settings.backend.access.immediate:
            held.end(self._signals, self._result, self._annotation, error)
            return
        ending = held.aend(self._signals, self._result, self._annotation, error)
        _, cancelled = await run_to_completion(ending)
        if cancelled is not None:
            raise cancelled

    def _end_failed(self, error: BaseException) -> None:
        """End the attempt by an error, be it one of ours or of the work."""
        if self._held is not None:
            self._held.let_go()
        if self._mode is not None:
            self._mode.abandon(error)
        if isinstance(error, RetrysafeError):
            self._sign(error)
        self._events.close(error)

    # ------------------------------------------------------------ small things

    @property
    def _transaction(self) -> Any:
        """`tx`, for a caller that does not write by it."""
        return self._tx if self._mode is None else self._mode.tx

    @property
    def _backend(self) -> Backend:
        return self._settings.backend

    @property
    def _held_key(self) -> bytes | None:
        return None if self._held is None else self._held.ownership.key

    def _not_entered(self) -> RetrysafeError:
        self._was_refused = True
        return self._sign(
            ConfigurationError(
                "The claim was not entered, so nothing is guarded. Write: with boundary.claim(…) as claim: (in async "
                "code 'async with')."
            )
        )

    def _refuse_outside(self) -> None:
        """Refuse signals of the attempt before its block, and after its outcome is stored: they would be lost."""
        if not self._entered:
            raise self._not_entered()
        if self._context is not None and self._context.left:
            raise self._sign(
                ConfigurationError(
                    "claim.result or a signal of the claim was set after the `with` block ended. The stored outcome "
                    "cannot change. Move this line into the block."
                )
            )

    def _signalling(self) -> HandlerSignals:
        """The handler's signals, to be added to."""
        self._refuse_outside()
        if self._signals is NO_SIGNALS:
            self._signals = HandlerSignals()
        return self._signals

    def _require_request(self) -> ClaimRequest:
        if self._request is None:
            raise ConfigurationError(
                "The operation runs without a key (on_missing='pass'), so this attribute does not exist."
            )
        return self._request


class BlockClaim(Claim[Result, Tx]):
    """A claim of `Boundary.claim`: if it ends without having been entered, it guarded nothing, and says so."""

    def __del__(self) -> None:
        if not (self._entered or self._was_refused) and hasattr(self, "_settings"):  # or it was never made to its end
            warnings.warn(
                f"A claim of boundary {self.boundary!r} was never entered, so that it guarded nothing: write "
                "'with boundary.claim(…) as claim:', or 'async with'.",
                RuntimeWarning,
                stacklevel=2,
            )
