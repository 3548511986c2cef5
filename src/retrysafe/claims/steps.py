"""Steps of a claim: recovery points, sagas, sleeping and signals. Loaded when the first of them is asked for.

`ClaimSteps` has what an attempt knows of its steps: the rows of earlier attempts, read once and only if there were any,
the steps that it has asked for, and the compensations that it has registered. `Step` is one of them, with the words of
a claim. What either does is a program over two requests, which a sync and an async driver perform: `Put`, asks to the
store or in the caller's transaction, and `Call`, a function of the user's. The rules are in
`retrysafe.protocol.steps.MEETS`.

How a run goes back
-------------------
It does if the operation fails for good and a step has ``undo``. The decision is written first; then the compensations
are called, those of the latest steps first, each with the stored result. After a crash the code runs again, with its
finished steps replayed, only to register its compensations; so the run ends undone, whatever the code says by then. A
compensation that fails, and a step with one that the code did not ask for again, leave the key unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, TypeVar

from retrysafe.backends.driver import arun, run
from retrysafe.backends.joining import join
from retrysafe.backends.migrations import on_demand
from retrysafe.backends.steps import steps_of
from retrysafe.cancellation import run_to_completion
from retrysafe.claims.codec import Codec, JSONCodec, decode_failure
from retrysafe.claims.context import ClaimContext, enclosing
from retrysafe.claims.functions import is_coroutine_function, return_annotation
from retrysafe.claims.lease import clock
from retrysafe.claims.outcome import decode_result, encode_error, encode_result, is_permanent
from retrysafe.claims.sealing import Bound, seal, unseal
from retrysafe.errors import (
    ConfigurationError,
    KeyReused,
    LeaseLost,
    OutcomeUnknown,
    Postponed,
    StoredFailure,
)
from retrysafe.protocol import fingerprint, keys
from retrysafe.protocol.canonical import NotCanonical
from retrysafe.protocol.durations import micros, seconds
from retrysafe.protocol.exception_groups import leaves
from retrysafe.protocol.fingerprint import UNCHECKED, Fingerprint
from retrysafe.protocol.records import ClaimRequest, Duration, Effects, StoredResult
from retrysafe.protocol.requests import Steps, ask
from retrysafe.protocol.steps import (
    DECISION,
    MEETS,
    SIGNAL,
    Act,
    Aim,
    At,
    StepRow,
    StepState,
    Work,
    change,
    insert,
    label,
    read,
)

if TYPE_CHECKING:
    from collections.abc import Generator
    from random import Random
    from uuid import UUID

    from retrysafe.backends.backend import Backend
    from retrysafe.backends.spec import Joining
    from retrysafe.claims.settings import BoundarySettings
    from retrysafe.protocol.procedures import Won

    Program = Generator["Put | Call", Any, Any]

Item = TypeVar("Item")
MOST_GATES = 1000
"""The number of gates that the steps of an attempt take: the lock table is shared by all sessions of the server."""
_NO_PLACE = -1
_ELSEWHERE = (Postponed, LeaseLost)
"""With these the attempt ends, but not the work."""


class StepOptions(TypedDict, total=False):
    """The options of `Claim.step`."""

    each: object
    tx: Any
    effects: Effects
    probe: Callable[[Step], Any] | None
    undo: Callable[[Any], Any] | None
    was: str | None
    new: bool


class Put(NamedTuple):
    """Asks to the store, or in the caller's transaction."""

    steps: Steps[Any]
    joining: Joining | None = None


class Call(NamedTuple):
    """A call of a function of the user's, inside a step."""

    step: Step
    function: Callable[..., Any]
    args: tuple[Any, ...]


class GoingBack(BaseException):
    """Ends the work of a run that goes back, once it has come to a step that was not done."""


# ---------------------------------------------------------------- the drivers


def perform(backend: Backend, program: Program) -> Any:
    """Drive a program in sync code."""
    try:
        asked = next(program)
        while True:
            try:
                answer = _answer_to(backend, asked)
            except BaseException as error:  # noqa: BLE001 - the program decides
                asked = program.throw(error)
            else:
                asked = program.send(answer)
    except StopIteration as stop:
        return stop.value


def _answer_to(backend: Backend, asked: Put | Call) -> Any:
    if isinstance(asked, Call):
        with _Inside(asked.step):
            return asked.step.refuse_awaitable(asked.function(*asked.args))
    if asked.joining is None:
        return run(asked.steps, backend.client())
    if asked.joining.execute is None:
        raise ConfigurationError("tx= belongs to async code: write 'async with', or give a coroutine function.")
    backend.check(asked.joining.execute, asked.joining.place)
    return run(asked.steps, asked.joining.execute)


async def aperform(backend: Backend, program: Program) -> Any:
    """Drive a program in async code; each request to its end, even if the caller is cancelled."""
    try:
        asked = next(program)
        while True:
            try:
                answer = await _aanswer_to(backend, asked)
            except BaseException as error:  # noqa: BLE001 - the program decides
                asked = program.throw(error)
            else:
                asked = program.send(answer)
    except StopIteration as stop:
        return stop.value


async def _aanswer_to(backend: Backend, asked: Put | Call) -> Any:
    if isinstance(asked, Call):
        with _Inside(asked.step):
            answer = asked.function(*asked.args)
            return await answer if hasattr(answer, "__await__") else answer
    if asked.joining is None:
        answer, cancelled = await run_to_completion(arun(asked.steps, backend.aclient()))
    else:
        if asked.joining.aexecute is None:
            raise ConfigurationError("tx= belongs to sync code: write 'with', or give a plain function.")
        await backend.acheck(asked.joining.aexecute, asked.joining.place)
        answer, cancelled = await run_to_completion(arun(asked.steps, asked.joining.aexecute))
    if cancelled is not None:
        raise cancelled
    return answer


class _Inside:
    """Makes a step the innermost claim of the running code."""

    def __init__(self, step: Step) -> None:
        self._step = step

    def __enter__(self) -> None:
        self._context = ClaimContext(self._step, self._step._transaction)

    def __exit__(self, *_: object) -> None:
        self._context.leave()


# ---------------------------------------------------------------- results in rows


class Shelf:
    """Stores results of a work's steps, and reads them back; each is sealed with the place of its row."""

    def __init__(self, settings: BoundarySettings, work: Work, scope: str, operation: str) -> None:
        self.settings, self.work, self.operation = settings, work, operation
        self.store = steps_of(settings.backend)
        self._scope = scope
        codec: Codec = settings.codec
        self._codec = JSONCodec() if hasattr(codec, "respond") else codec  # that is of HTTP responses

    def keep(self, at: At, result: Any, annotation: Any = None) -> StoredResult | None:
        """A result as it is stored."""
        return self.seal(at, encode_result(self._codec, result, annotation, self.settings.largest_result))

    def read(self, row: StepRow, annotation: Any = None) -> Any:
        """The result of a row; None where it has none."""
        if row.result is None:
            return None
        return decode_result(self._codec, self.open(row), annotation)

    def seal(self, at: At, stored: StoredResult) -> StoredResult | None:
        """A result, encrypted if the boundary says so."""
        return seal(self.settings.encryption, stored, self._bound(at))

    def open(self, row: StepRow) -> StoredResult:
        """The result of a row as it was encoded."""
        assert row.result is not None
        return unseal(self.settings.encryption, row.result, self._bound(row.at))

    def _bound(self, at: At) -> Bound:
        return Bound.of_step(self.settings.name, self._scope, self.operation, self.work, at)

    def make_table(self, joining: Joining | None) -> Program:
        """Make the table where that is left to its first use: in the caller's transaction, if it holds the one lock."""
        if joining is not None:
            yield Put(self.settings.backend.tables.providing("steps"), joining)


def provide(backend: Backend) -> None:
    """Make the table of a file where that is left to its first use, on a connection of our own."""
    if backend.kind == "sqlite":
        backend.tables.provide("steps")


async def aprovide(backend: Backend) -> None:
    """`provide` for async code: in a thread, because it may have to wait for writers of the file."""
    if backend.kind == "sqlite":
        import asyncio

        await asyncio.to_thread(backend.tables.provide, "steps")


# ---------------------------------------------------------------- one step


class Step:
    """One attempt at a step, for ``with`` and ``async with``: a claim inside a claim, with a claim's words."""

    _replayed = False
    _result: Any = None
    _context: ClaimContext | None = None
    _committed = False
    _not_executed = False
    _failure: BaseException | None = None
    is_lease = False

    def __init__(self, shelf: Shelf, at: At, tx: Any = None) -> None:
        self._shelf, self.at, self._tx = shelf, at, tx
        self._backend = shelf.settings.backend
        self._joining = None if tx is None else join(self._backend, tx)
        self._transaction = tx if self._joining is None or self._joining.tx is None else self._joining.tx
        self._held_key = None

    # ------------------------------------------------------------ for the work inside

    @property
    def name(self) -> str:
        """The name of the step."""
        return self.at.name

    @property
    def boundary(self) -> str:
        """The name of the boundary."""
        return self._shelf.settings.name

    @property
    def operation(self) -> str:
        """The operation that the step belongs to."""
        return self._shelf.operation

    @property
    def tx(self) -> Any:
        """The transaction that the row of the step shares."""
        return self._transaction

    @property
    def token(self) -> int:
        """The fencing token of the attempt."""
        return self._shelf.work.token

    @property
    def replayed(self) -> bool:
        """True if there is nothing to be done, because an earlier attempt has done it."""
        return self._replayed

    @property
    def result(self) -> Any:
        """The stored result of a replay, or the one that this attempt has set; of a compensation, the step's."""
        return self._result

    @result.setter
    def result(self, value: Any) -> None:
        if self._replayed:
            raise ConfigurationError(
                "result was set on a step that is replayed, whose stored result cannot change: put the work under 'if "
                "not step.replayed'."
            )
        self._result = value

    def key_for(self, name: str) -> str:
        """The idempotency key for the downstream call ``name``: the same on every attempt, and of this step alone."""
        if not isinstance(name, str):
            raise ConfigurationError("key_for() takes the name of the call that the key is for, such as 'charge'.")
        place = "\0".join(("step", str(self._shelf.work.generation), *self.at, self._purpose, name))
        return keys.derive(self._shelf.settings.secret, self._shelf.work.key, place)

    _purpose = "do"

    def committed(self) -> None:
        """Say, in a probe, that the step has happened; its result is `result`."""
        self._committed = True

    def not_executed(self) -> None:
        """Say that the step has not happened, and may be done again."""
        self._not_executed = True

    def fail(self, error: BaseException) -> None:
        """Declare that the whole operation failed for good by this step: ``error`` is raised when the step is left."""
        self._failure = error

    # ------------------------------------------------------------ entering and leaving

    def __enter__(self) -> Step:
        if self._tx is None:
            provide(self._backend)
        perform(self._backend, self._entering())
        self._context = ClaimContext(self, self._transaction)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._context is not None and self._context.leave():
            perform(self._backend, self._leaving(error))

    async def __aenter__(self) -> Step:
        if self._tx is None:
            await aprovide(self._backend)
        await aperform(self._backend, self._entering())
        self._context = ClaimContext(self, self._transaction)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._context is not None and self._context.leave():
            await aperform(self._backend, self._leaving(error))

    def _entering(self) -> Program:
        raise NotImplementedError

    def _leaving(self, error: BaseException | None) -> Program:
        raise NotImplementedError

    def _put(self, steps: Steps[Any]) -> Put:
        return Put(steps, self._joining)

    def refuse_awaitable(self, value: Any) -> Any:
        """The value that a function has returned; refuses one that is still to be awaited."""
        if not hasattr(value, "__await__"):
            return value
        if hasattr(value, "close"):
            value.close()
        raise ConfigurationError(
            f"Step {label(self.at)}: its function returned an awaitable, whose work is not done. In async code give a "
            "coroutine function and await the step, or write 'async with'."
        )


class StepOfClaim(Step):
    """A step of a claim."""

    _started = False
    """True if the row is there already, to be changed when the step ends."""

    def __init__(
        self, course: ClaimSteps, at: At, options: StepOptions, printed: bytes, given: Fingerprint | None
    ) -> None:
        super().__init__(course.shelf, at, options.get("tx"))
        self._course, self._print, self._given = course, printed, given
        self._effects = options.get("effects") or course.shelf.settings.effects
        self._probe, self.undo, self._new = options.get("probe"), options.get("undo"), options.get("new", False)
        self.annotation: Any = None
        if self._tx is not None and self._effects == "external":
            if "effects" in options:
                raise ConfigurationError(
                    f"Step {label(at)}: with tx= it commits with its row, so that it is done once: leave effects= out."
                )
            self._effects = "keyed"

    @property
    def attempt_id(self) -> str:
        """The id of the attempt."""
        found: str = self._course.claim.attempt_id
        return found

    def ensure_held(self) -> None:
        """Raise `LeaseLost` unless this attempt certainly still holds its key."""
        self._course.claim.ensure_held()

    def call(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Call the function in the step."""
        with self:
            if not self._replayed:
                self._result = self.refuse_awaitable(function(*args))
        return self._result

    async def acall(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """`call` for a coroutine function."""
        async with self:
            if not self._replayed:
                self._result = await function(*args)
        return self._result

    def _entering(self) -> Program:
        course = self._course
        course.refuse_inside(self.at)
        yield from course.load(self.at, self._joining)
        yield from self._shelf.make_table(self._joining)
        row = course.asks(self.at, new=self._new)
        self._place = course.places[self.at.name]
        if self.undo is not None:
            course.undos[self.at] = self
        match MEETS[None if row is None else row.state, course.aim]:
            case Act.STOP:
                raise GoingBack
            case Act.REFUSE:
                raise LeaseLost(f"Step {label(self.at)} was undone before it came.")
            case Act.REPLAY:
                assert row is not None
                if row.result is None:
                    raise GoingBack
                self._replay(row)
            case Act.DOUBT:
                yield from self._ask_probe()
            case _:
                if self._effects == "external" or (self._tx is not None and course.took_over):
                    yield from self._start()

    def _replay(self, row: StepRow) -> None:
        self._check_input(row.fingerprint)
        self._result, self._replayed = self._shelf.read(row, self.annotation), True
        self._course.claim.emit("step_replayed", step=label(self.at))

    def _start(self) -> Program:
        """Write the row before the work: so that a crash leaves a doubt, or that no work is done in vain."""
        try:
            row = self._row(StepState.STARTED)
            met = yield self._put(insert(self._shelf.store, self._shelf.work, row, joined=self._tx is not None))
        except Exception:
            self._course.forget(self.at)
            raise
        except BaseException:  # cancelled, when it was written: nothing has been done
            yield self._put(ask(self._shelf.store.drop(self._shelf.work, self.at)))
            raise
        if met is not None:
            raise LeaseLost(f"Step {label(self.at)}: another attempt has written it.")
        self._started = True

    def _ask_probe(self) -> Program:
        """Settle a step that may have happened."""
        if self._probe is None:
            raise self._course.doubts(
                self.at, f"Step {label(self.at)} was begun by an attempt that did not end it, and has no probe= to ask"
            )
        try:
            yield Call(self, self._probe, (self,))
        except Exception as error:
            raise self._course.doubts(self.at, f"The probe of step {label(self.at)} failed: {error!r}") from error
        self._started = True
        if self._committed:
            yield from self._leaving(None)
            self._replayed = True
            return
        if self._failure is None and not self._not_executed:
            raise self._course.doubts(
                self.at, f"The probe of step {label(self.at)} could not determine the outcome either"
            )
        row = self._row(StepState.STARTED)
        yield self._put(change(self._shelf.store, self._shelf.work, row, StepState.STARTED))
        if self._failure is not None:
            yield from self._leaving(None)
        self._result, self._not_executed = None, False
        if self._course.aim is Aim.REDO:
            yield self._put(ask(self._shelf.store.drop(self._shelf.work, self.at)))
            raise GoingBack

    def _leaving(self, error: BaseException | None) -> Program:
        course = self._course
        if self._replayed:
            return
        if self._failure is not None and error is None:
            course.claim.fail(self._failure)
            self._not_executed = True
            yield from self._fail(self._failure)
            raise self._failure
        if error is not None:
            yield from self._fail(error)
            return
        row = self._row(StepState.DONE, self._shelf.keep(self.at, self._result, self.annotation))
        store, work = self._shelf.store, self._shelf.work
        try:
            if self._started:
                yield self._put(change(store, work, row, StepState.STARTED, joined=self._tx is not None))
                met = None
            else:
                met = yield self._put(insert(store, work, row, joined=self._tx is not None))
        except Exception:
            course.forget(self.at)
            raise
        if met is not None and met.state is not StepState.DONE:
            raise LeaseLost(f"Step {label(self.at)}: another attempt has written it.")
        if met is not None:
            self._replay(met)
        else:
            course.claim.emit("step_done", step=label(self.at))
        course.rows[self.at] = met or row
        if self._tx is not None:
            course.unsure.add(self.at)

    def _fail(self, error: BaseException) -> Program:
        course = self._course
        course.asked.discard(self.at)
        if not (self._not_executed or self._tx is not None or is_permanent(error, self._shelf.settings)):
            course.broken.add(self.at)
        elif self._started:
            with suppress(Exception):  # the transaction may be broken by the error
                yield self._put(ask(self._shelf.store.drop(self._shelf.work, self.at)))

    def _check_input(self, stored: bytes) -> None:
        if self._given is None or not stored or self._print == stored:
            return
        secrets, key = self._shelf.settings.secrets, self._shelf.work.key
        if secrets.agree(stored, self._given, key):
            return
        counted = secrets.counted_as(stored, self._given, key) or self._print
        differing = fingerprint.differing(stored, counted)
        raise KeyReused(
            f"Step {label(self.at)} was done with other arguments, which differ in: {', '.join(differing)}",
            differing=differing,
        )

    def _row(self, state: StepState, result: StoredResult | None = None) -> StepRow:
        return StepRow(self.at, state, self._place, self.undo is not None, self._print, result, self._shelf.work.token)


class _Undoing(StepOfClaim):
    """A compensation: its keys for calls downstream are not those of its step."""

    _purpose = "undo"


# ---------------------------------------------------------------- the steps of an attempt


class ClaimSteps:
    """The steps of one attempt, as far as it knows them."""

    def __init__(self, claim: Any, request: ClaimRequest, won: Won | None) -> None:
        if won is None:
            raise claim.signed(
                ConfigurationError(
                    "A step was asked for in a replay, whose work is done. The block runs on replays too: put its "
                    "steps under 'if not claim.replayed'."
                )
            )
        self.claim, self._won = claim, won
        self.settings = claim._settings
        self._request = request
        self._shelf: Shelf | None = None
        self.took_over = won.record.attempts > 1
        """True if an earlier attempt at the same work may have left rows."""
        self.rows: dict[At, StepRow] = {}
        self.asked: set[At] = set()
        self.unsure: set[At] = set()
        """Steps that are recorded in a transaction of the caller's, which may not have been committed."""
        self.broken: set[At] = set()
        """Steps of this attempt that may have happened although they have raised."""
        self.places: dict[str, int] = {}
        self.undos: dict[At, StepOfClaim] = {}
        self._loaded = not self.took_over
        self._settling = False
        self._doubt: OutcomeUnknown | None = None

    @property
    def shelf(self) -> Shelf:
        """The rows of the work; refused in a transactional claim."""
        if self._shelf is None:
            held, record = self._won.held, self._won.record
            if held.transactional:
                raise self.claim.signed(
                    ConfigurationError(
                        "A transactional claim is one step already: it commits with its effect, as a whole. Steps are "
                        "for effects='keyed' or 'external'; there, a step with tx= has what belongs into a transaction."
                    )
                )
            work = Work(held.key, record.created, held.clocks.memory, held)
            self._shelf = Shelf(self.settings, work, self._request.scope, self._request.operation)
        return self._shelf

    @property
    def aim(self) -> Aim:
        """The aim with which a step is asked for."""
        return Aim.REDO if DECISION in self.rows else Aim.DO

    # ------------------------------------------------------------ asking for steps

    def step(self, name: str, function: Callable[..., Any] | None, args: tuple[Any, ...], /, **options: Any) -> Any:
        """A step: called with its function, or to be entered."""
        unknown = options.keys() - StepOptions.__annotations__.keys()
        if unknown or (args and function is None):
            raise ConfigurationError(
                f"step() takes a name, a function with its arguments, and {', '.join(StepOptions.__annotations__)}."
            )
        given: StepOptions = options  # type: ignore[assignment]
        if (effects := given.get("effects", "keyed")) not in ("keyed", "external"):
            raise ConfigurationError(f"effects={effects!r}: a step is 'keyed' or 'external'.")
        at = name_of_step(given.get("was") or name, given.get("each"))
        tx = given.get("tx")
        payload = _payload(function, args, int(tx is not None))
        key = self.shelf.work.key
        printed = UNCHECKED if payload is None else self.settings.secrets.keyed(payload, key)
        step = StepOfClaim(self, at, given, printed, payload)
        if function is None:
            return step
        step.annotation = return_annotation(function)
        given_args = args if tx is None else (tx, *args)
        return step.acall(function, given_args) if is_coroutine_function(function) else step.call(function, given_args)

    def asks(self, at: At, *, new: bool = False) -> StepRow | None:
        """Note that a step was asked for; return its row. Refuses a second one of the name, and code that changed."""
        if at in self.asked and at not in self.unsure:
            raise ConfigurationError(
                f"Step {label(at)} was asked for twice: give each of them a name of its own, or each=, an index from "
                "the data."
            )
        place = self.places.setdefault(at.name, len(self.places))
        if not new and self.took_over and all(row.at.name != at.name for row in self.rows.values()):
            there = [row.at.name for row in self.rows.values() if row.place == place]
            if there and there[0] not in self.places:
                del self.places[at.name]
                raise ConfigurationError(
                    f"The code has changed since this work began: step {at.name!r} was not done, and at its place "
                    f"stood step {there[0]!r}. Nothing of it was run. If that is its old name, write step({at.name!r}, "
                    f"…, was={there[0]!r}); if it is another step, write new=True."
                )
        self.asked.add(at)
        return self.rows.get(at)

    def forget(self, at: At) -> None:
        """Let a step be asked for again, with what the store has of it by then."""
        self.asked.discard(at)
        self.unsure.add(at)

    def refuse_inside(self, at: At) -> None:
        """Refuse a step inside a step, or outside the claim's block."""
        self.claim._refuse_outside()
        around = enclosing()
        if isinstance(around, StepOfClaim) and around._course is self:
            raise ConfigurationError(
                f"Step {label(at)} was asked for inside step {label(around.at)}, which would be done again with it: "
                "put them one after the other."
            )

    def load(self, at: At = DECISION, joining: Joining | None = None) -> Program:
        """Read the rows of earlier attempts, once; and again for a step whose transaction may have been committed."""
        if self._loaded and at not in self.unsure:
            return
        rows = yield Put(self._rows(joining))
        self.rows = {row.at: row for row in rows}
        self.unsure.discard(at)
        self.asked.discard(at)
        self._loaded = True

    def _rows(self, joining: Joining | None) -> Steps[list[StepRow]]:
        if self.settings.backend.kind == "sqlite" and not (yield from on_demand.is_present("steps")):
            return []
        return (yield from read(self.shelf.store, self.shelf.work))

    def doubts(self, at: At, text: str) -> OutcomeUnknown:
        """The error of a step in doubt; the key is unknown if the work ends by it."""
        self.claim.emit("step_in_doubt", step=label(at), reason=text)
        self._doubt = OutcomeUnknown(text)
        return self._doubt

    # ------------------------------------------------------------ the end of the attempt

    def end(self, error: BaseException | None) -> BaseException | None:
        """Compensate if the work goes back; return the error with which it ends."""
        if self._begins_to_end():
            error = self.run(self._ending(error))
        return error

    async def aend(self, error: BaseException | None) -> BaseException | None:
        """`end` for async code; compensations come to their end even if the caller is cancelled."""
        if not self._begins_to_end():
            return error
        ended: BaseException | None
        ended, self._cancelled = await run_to_completion(self.arun(self._ending(error)))
        return ended

    _cancelled: BaseException | None = None

    def _begins_to_end(self) -> bool:
        place = self.claim._context
        self._settling = self._shelf is not None and place is not None and place.is_open()
        return self._settling

    def finish(self, given: BaseException | None, error: BaseException | None) -> None:
        """Let the rows end with their record, and raise what the work's own code did not."""
        if self._settling:
            perform(self.settings.backend, self._concluding())
            self._raise(given, error)

    async def afinish(self, given: BaseException | None, error: BaseException | None) -> None:
        """`finish` for async code."""
        if self._settling:
            await aperform(self.settings.backend, self._concluding())
            self._raise(given, error)

    def _raise(self, given: BaseException | None, error: BaseException | None) -> None:
        if error is not None and error is not given:
            raise error from given
        if self._cancelled is not None:
            raise self._cancelled

    def _concluding(self) -> Program:
        if self.rows or self.asked:
            for request in self.shelf.store.conclude(self.shelf.work):
                yield Put(ask(request))

    def _ending(self, error: BaseException | None) -> Program:
        try:
            if self._is_doubt(error):
                self.claim.committed()
                return error
            yield from self.load()
            goes_back = DECISION in self.rows or self._decides(error)
            if not goes_back or isinstance(error, _ELSEWHERE):
                return error
            if error is not None and not isinstance(error, Exception | GoingBack):
                return error  # the attempt is ended from outside; the next one goes back
            return (yield from self._going_back(error))
        except BaseException as failure:  # noqa: BLE001 - with it the attempt ends
            return failure

    def _is_doubt(self, error: BaseException | None) -> bool:
        return self._doubt is not None and error is not None and any(leaf is self._doubt for leaf in leaves(error))

    def _decides(self, error: BaseException | None) -> bool:
        declared = self.claim.declared_failure is not None
        undoable = bool(self.undos) or any(row.undoable for row in self.rows.values())
        return undoable and (declared or (error is not None and is_permanent(error, self.settings)))

    def _going_back(self, error: BaseException | None) -> Program:
        decided = self.rows.get(DECISION)
        if decided is None:
            reason = self.claim.declared_failure or error
            assert reason is not None
            stored = self.shelf.seal(DECISION, encode_error(reason, self.settings.largest_result))
            row = StepRow(DECISION, StepState.DONE, _NO_PLACE, result=stored, token=self.shelf.work.token)
            yield Put(insert(self.shelf.store, self.shelf.work, row))
        forgotten = [row.at for row in self.rows.values() if row.undoable and row.state is not StepState.UNDONE]
        forgotten = [at for at in forgotten if at not in self.undos]
        try:
            if forgotten:
                raise self.doubts(
                    forgotten[0],
                    f"Step {label(forgotten[0])} is to be undone, and the code did not ask for it again, so that its "
                    "undo= is not known",
                )
            for step in reversed(self.undos.values()):
                yield from self._undo(step)
        except OutcomeUnknown as unknown:
            signals = self.claim._signalling()
            signals.failure, signals.committed = None, True
            return unknown
        if decided is None:
            return error
        kind, message, data = decode_failure(self.shelf.open(decided))
        self.claim.fail(type(kind, (Exception,), {"data": data})(message))
        return self.claim.signed(StoredFailure(kind, message, data))

    def _undo(self, step: StepOfClaim) -> Program:
        at, row = step.at, self.rows.get(step.at)
        if at in self.unsure:
            yield from self.load(at)
            row = self.rows.get(at)
        store, work = self.shelf.store, self.shelf.work
        if row is None and at not in self.broken:
            row = yield Put(insert(store, work, StepRow(at, StepState.UNDONE, step._place, undoable=True)))
            if row is None:
                return
        match MEETS[StepState.STARTED if row is None else row.state, Aim.UNDO]:
            case Act.DOUBT:
                raise self.doubts(at, f"Step {label(at)} cannot be undone: it may or may not have happened")
            case Act.RUN:
                assert row is not None
                self.claim.ensure_held()
                undoing = _Undoing(self, at, {}, b"", None)
                assert step.undo is not None
                try:
                    yield Call(undoing, step.undo, (self.shelf.read(row, step.annotation),))
                except LeaseLost:
                    raise
                except Exception as error:
                    raise self.doubts(at, f"Step {label(at)} could not be undone: {error!r}") from error
                yield Put(change(store, work, row._replace(state=StepState.UNDONE), StepState.DONE))
                self.claim.emit("step_undone", step=label(at))

    # ------------------------------------------------------------ waiting

    def run(self, program: Program) -> Any:
        """Drive a program in sync code, with the table made."""
        provide(self.settings.backend)
        return perform(self.settings.backend, program)

    async def arun(self, program: Program) -> Any:
        """`run` for async code."""
        await aprovide(self.settings.backend)
        return await aperform(self.settings.backend, program)

    def sleep(self, name: str, duration: Duration) -> Program:
        """Raise `Postponed` until the time has come."""
        length, at = micros(duration, "sleep"), name_of_step(name)
        if length >= self.settings.clocks.window:
            raise ConfigurationError(
                f"sleep({name!r}) is as long as window=, after which the key would begin new work: make window= longer."
            )
        self.refuse_inside(at)
        yield from self.load()
        row = self.asks(at)
        if row is None:
            if self.aim is Aim.REDO:
                raise GoingBack
            due = self._store_time() + length
            row = StepRow(at, StepState.DONE, self.places[name], result=self.shelf.keep(at, due))
            met = yield Put(insert(self.shelf.store, self.shelf.work, row))
            self.rows[at] = row = met or row
        left = self.shelf.read(row) - self._store_time()
        if left > 0 and self.aim is Aim.DO:
            raise Postponed(f"The work sleeps: {name}.", retry_after=left / 1e6)

    def wait_for(self, name: str, retry_after: Duration) -> Program:
        """The value of a signal."""
        pause, at = seconds(retry_after, "retry_after"), At(f"{SIGNAL}{name_of_step(name).name}")
        self.refuse_inside(at)
        yield from self.load()
        row = self.rows.get(at)
        if row is None:
            row, _ = yield Put(ask(self.shelf.store.find(self.shelf.work, at), again=True))
        if row is not None:
            self.rows[at] = row
            return self.shelf.read(row)
        if self.aim is Aim.REDO:
            raise GoingBack
        raise Postponed(f"The work waits for the signal {name}.", retry_after=pause)

    def _store_time(self) -> int:
        """The store's time, as far as it is known from the claim."""
        since: float = clock() - self.claim._claimed_at
        return self._won.record.now + round(since * 1e6)

    # ------------------------------------------------------------ the same on every attempt

    def now(self) -> datetime:
        """The time at which the work began."""
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=self._won.record.created)

    def uuid(self, name: str) -> UUID:
        """A UUID by name."""
        from uuid import UUID  # brings platform

        return UUID(self.claim.key_for(f"uuid {name}"))

    def random(self, name: str) -> Random:
        """A source of random numbers by name."""
        from random import Random

        return Random(self.claim.key_for(f"random {name}"))

    def ordered(self, items: Iterable[Item], key: Callable[[Item], Any]) -> list[Item]:
        """The items in the order of their keys."""
        found = sorted(items, key=key)
        for one, other in pairwise(found):
            if key(one) == key(other):
                raise ConfigurationError(
                    f"ordered(): {one!r} and {other!r} have the same key, so that their order is left to chance: take "
                    "a key that no two items share."
                )
        return found


def name_of_step(name: object, each: object = None) -> At:
    """The place of a step in its work."""
    if not keys.check_name(name, "step") or str(name).startswith(SIGNAL):
        raise ConfigurationError(f"step({name!r}): name what it does, as in step('charge', …).")
    return At(str(name), "" if each is None else keys.check_name(str(each), "each"))


def _payload(function: Callable[..., Any] | None, args: tuple[Any, ...], more: int) -> Fingerprint | None:
    """The input of a step, its parts named as the parameters of its function."""
    if not args:
        return None
    plain = getattr(function, "__func__", function)
    names = getattr(getattr(plain, "__code__", None), "co_varnames", ())[more + (plain is not function) :]
    named = {names[i] if i < len(names) else f"argument_{i + 1}": value for i, value in enumerate(args)}
    try:
        return fingerprint.of_fields(named)
    except NotCanonical as error:
        raise ConfigurationError(
            f"{error}. A step is known by its input: give it plain values, or a function without arguments (a lambda), "
            "whose input is not compared."
        ) from error
