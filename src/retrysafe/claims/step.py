"""One attempt at a step: a claim inside a claim, with a claim's words. What it does is in `protocol.steps.MEETS`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypedDict

from retrysafe.backends.driver import put
from retrysafe.backends.joining import join
from retrysafe.claims.context import ClaimContext
from retrysafe.claims.outcome import is_permanent
from retrysafe.claims.step_programs import Retreat, aperform, call, client_of, drive, refuse_awaitable
from retrysafe.errors import ConfigurationError, LeaseLost
from retrysafe.protocol import fingerprint, keys
from retrysafe.protocol.fingerprint import UNCHECKED, Fingerprint
from retrysafe.protocol.records import Effects, StoredResult
from retrysafe.protocol.requests import Program, ask
from retrysafe.protocol.steps import MEETS, SLEEP, Act, Aim, At, StepRow, StepState, change, insert, label, meet

if TYPE_CHECKING:
    from retrysafe.claims.step_course import Course
    from retrysafe.claims.step_results import StepResults


class StepOptions(TypedDict, total=False):
    """The options of `Claim.step`."""

    each: object
    tx: Any
    effects: Effects
    probe: Callable[[Step], Any] | None
    undo: Callable[[Any], Any] | None
    was: str | None
    new: bool


class Step:
    """One attempt at a step, for ``with`` and ``async with``."""

    _replayed = False
    _result: Any = None
    _context: ClaimContext | None = None
    _committed = False
    _not_executed = False
    _failure: BaseException | None = None
    is_named_lease = False

    def __init__(self, results: StepResults, at: At, tx: Any = None) -> None:
        self._results, self.at, self._tx = results, at, tx
        self._backend = results.settings.backend
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
        return self._results.settings.name

    @property
    def operation(self) -> str:
        """The operation that the step belongs to."""
        return self._results.operation

    @property
    def tx(self) -> Any:
        """The transaction that the row of the step shares."""
        return self._transaction

    @property
    def token(self) -> int:
        """The fencing token of the attempt."""
        return self._results.work.token

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
        address = "\0".join(("step", str(self._results.work.generation), *self.at, self._purpose, name))
        return keys.derive(self._results.settings.secret, self._results.work.key, address)

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
        self._client = client_of(self._backend, self._joining)
        if not self._enter_without_store():
            drive(self._reading(), self._client)
        self._context = ClaimContext(self, self._transaction)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._context is not None and self._context.leave() and not (error is None and self._leave_by_insert()):
            drive(self._leaving(error), self._client)

    async def __aenter__(self) -> Step:
        await aperform(self._backend, self._beginning(), self._joining)
        self._context = ClaimContext(self, self._transaction)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._context is not None and self._context.leave():
            await aperform(self._backend, self._leaving(error), self._joining)

    def _beginning(self) -> Program[None]:
        if not self._enter_without_store():
            yield from self._reading()

    def _reading(self) -> Program[None]:
        """Enter; refuse a transaction under the schema of a tenant, whose step would be taken for another's."""
        store: Any = self._backend.store
        if self._joining is not None and not self._results.scope and hasattr(store, "refuse_other_schema"):
            yield from ask(store.refuse_other_schema())
        yield from self._entering()

    def _enter_without_store(self) -> bool:
        """Enter if the store need not be asked; tell whether that is so."""
        return False

    def _leave_by_insert(self) -> bool:
        """Leave if one insert does it; tell whether that is so."""
        return False

    def _entering(self) -> Program[None]:
        raise NotImplementedError

    def _leaving(self, error: BaseException | None) -> Program[None]:
        raise NotImplementedError


class StepOfClaim(Step):
    """A step of a claim."""

    _started = False
    """True if the row is there, or may be, to be changed when the step ends."""

    def __init__(
        self, course: Course, at: At, options: StepOptions, payload: Fingerprint | None, annotation: Any = None
    ) -> None:
        super().__init__(course.results, at, options.get("tx"))
        self.course, self._input, self.annotation = course, payload, annotation
        settings, key = course.settings, self._results.work.key
        self._fingerprint = UNCHECKED if payload is None else settings.fingerprint_secrets.hashed_for(payload, key)
        self._effects = options.get("effects") or settings.effects
        self._probe, self.undo, self._new = options.get("probe"), options.get("undo"), options.get("new", False)
        if self._tx is not None and self._effects == "external":
            if "effects" in options:
                raise ConfigurationError(
                    f"Step {label(at)}: with tx= it commits with its row, so that it is done once: leave effects= out."
                )
            self._effects = "keyed"

    @property
    def attempt_id(self) -> str:
        """The id of the attempt."""
        found: str = self.course.claim.attempt_id
        return found

    def ensure_held(self) -> None:
        """Raise `LeaseLost` unless this attempt certainly still holds its key."""
        self.course.claim.ensure_held()

    async def __aenter__(self) -> Step:
        try:
            return await super().__aenter__()
        except Exception:
            raise
        except BaseException:  # cancelled: if it was written, nothing has been done
            if self._started:
                await aperform(self._backend, self._drop(), self._joining)
            raise

    def call(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Call the function in the step."""
        with self:
            if not self._replayed:
                self._result = refuse_awaitable(function(*args))
        return self._result

    async def acall(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """`call` for a coroutine function."""
        self.course.unawaited.pop(self.at, None)
        async with self:
            if not self._replayed:
                self._result = await function(*args)
        return self._result

    def _enter_without_store(self) -> bool:
        # The usual way of sync code, without generators: a first attempt reads nothing, and its row is one insert.
        course = self.course
        if course.took_over or self.undo is not None or self._effects == "external" or self.at in course.unsure:
            return False
        if self._tx is None:  # no row is written before the work, which would be refused
            self.ensure_held()
        course.refuse_inside(self.at)
        course.enlist(self.at)
        self._place = course.places[self.at.name]
        return True

    def _leave_by_insert(self) -> bool:
        if self._started or self._replayed or self._failure is not None:
            return False
        row = self._row(StepState.DONE, self._results.encode(self.at, self._result, self.annotation))
        store, work, joined = self._results.store, self._results.work, self._tx is not None
        try:
            written = put(store.insert(work, row, joined=joined), self._client, again=not joined)
            met = None if written else drive(meet(store, work, row, joined=joined), self._client)
        except Exception:
            self.course.mark_unsure(self.at)
            raise
        self._note(row, met)
        return True

    def _entering(self) -> Program[None]:
        course = self.course
        course.refuse_inside(self.at)
        yield from course.load(self.at)
        row = course.enlist(self.at, new=self._new)
        self._place = course.places[self.at.name]
        if self.undo is not None:
            course.undos[self.at] = self
        match MEETS[None if row is None else row.state, course.aim]:
            case Act.STOP:
                raise Retreat
            case Act.REFUSE:
                raise LeaseLost(f"Step {label(self.at)} was undone before it came.")
            case Act.REPLAY:
                assert row is not None
                if row.result is None:
                    raise Retreat
                self._replay(row)
            case Act.FIND_OUT if self._effects == "external":
                yield from self._ask_probe()
            case Act.FIND_OUT:
                assert row is not None
                self._check_input(row.fingerprint)
                yield from self._take_over()
            case _:
                # in the caller's transaction only to meet an earlier attempt's row before the work
                is_written_first = (
                    course.took_over if self._tx is not None else self._effects == "external" or self.undo is not None
                )
                if is_written_first:
                    yield from self._start()
                elif self._tx is None:
                    self.ensure_held()

    def _replay(self, row: StepRow) -> None:
        if row.fingerprint == SLEEP:
            raise ConfigurationError(
                f"{self.name!r} was a sleep when this work began, and has no result of a step: give the step a "
                "name of its own, without was=, and write new=True."
            )
        self._check_input(row.fingerprint)
        self._result, self._replayed = self._results.read(row, self.annotation), True
        self.course.tell("step_replayed", self.at)

    def _start(self) -> Program[None]:
        """Write the row before the work: so that a crash leaves a doubt, or that no work is done in vain."""
        try:
            row = self._row(StepState.STARTED)
            self._started = True
            met = yield from insert(self._results.store, self._results.work, row, joined=self._tx is not None)
        except Exception:
            self.course.mark_unsure(self.at)
            raise
        if met is not None:
            raise LeaseLost(f"Step {label(self.at)}: another attempt has written it.")
        self.course.rows[self.at] = row

    def _take_over(self) -> Program[None]:
        """Make the row of an earlier attempt that has started the step one of this attempt."""
        self._started = True
        store, work, row = self._results.store, self._results.work, self._row(StepState.STARTED)
        self.course.rows[self.at] = yield from change(store, work, row, StepState.STARTED, joined=self._tx is not None)

    def _drop(self) -> Program[None]:
        """Remove the row of a step that has not happened."""
        yield from ask(self._results.store.drop(self._results.work, self.at))
        self.course.rows.pop(self.at, None)

    def _ask_probe(self) -> Program[None]:
        """Settle a step that may have happened."""
        if self._probe is None:
            raise self.course.doubt(
                self.at, f"Step {label(self.at)} was begun by an attempt that did not end it, and has no probe= to ask"
            )
        try:
            yield from call(self, self._probe, self)
        except Exception as error:
            raise self.course.doubt(self.at, f"The probe of step {label(self.at)} failed: {error!r}") from error
        self._started = True
        if self._committed:
            yield from self._leaving(None)
            self._replayed = True
            return
        if self._failure is None and not self._not_executed:
            raise self.course.doubt(
                self.at, f"The probe of step {label(self.at)} could not determine the outcome either"
            )
        yield from self._take_over()
        if self._failure is not None:
            yield from self._leaving(None)
        self._result, self._not_executed = None, False
        if self.course.aim is Aim.REDO:
            yield from self._drop()
            raise Retreat

    def _leaving(self, error: BaseException | None) -> Program[None]:
        course = self.course
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
        row = self._row(StepState.DONE, self._results.encode(self.at, self._result, self.annotation))
        store, work = self._results.store, self._results.work
        try:
            if self._started:
                yield from change(store, work, row, StepState.STARTED, joined=self._tx is not None)
                met = None
            else:
                met = yield from insert(store, work, row, joined=self._tx is not None)
        except Exception:
            course.mark_unsure(self.at)
            raise
        self._note(row, met)

    def _note(self, row: StepRow, met: StepRow | None) -> None:
        """The row was written, or one of another attempt was met."""
        course = self.course
        if met is not None and met.state is not StepState.DONE:
            raise LeaseLost(f"Step {label(self.at)}: another attempt has written it.")
        if met is not None:
            self._replay(met)
        else:
            course.tell("step_done", self.at)
        course.rows[self.at] = met or row
        if self._tx is not None:
            course.unsure.add(self.at)

    def _fail(self, error: BaseException) -> Program[None]:
        course = self.course
        course.asked.discard(self.at)
        if not (self._not_executed or self._tx is not None or is_permanent(error, self._results.settings)):
            course.broken.add(self.at)
        elif self._started:
            with suppress(Exception):  # the transaction may be broken by the error
                yield from self._drop()

    def _check_input(self, stored: bytes) -> None:
        if self._input is None or not stored or self._fingerprint == stored:
            return
        secrets, key = self._results.settings.fingerprint_secrets, self._results.work.key
        if secrets.agree(stored, self._input, key):
            return
        counted = secrets.count_as(stored, self._input, key) or self._fingerprint
        differing = fingerprint.differing(stored, counted)
        raise ConfigurationError(
            f"The code, or what it reads, has changed since this work began: step {label(self.at)} was done with other "
            f"arguments, which differ in: {', '.join(differing)}. Nothing of it was run. Work under way needs them as "
            "they were; a retry with the same key then goes on. A new key would do its earlier steps again."
        )

    def _row(self, state: StepState, result: StoredResult | None = None) -> StepRow:
        undoable, token = self.undo is not None, self._results.work.token
        return StepRow(self.at, state, self._place, undoable, self._fingerprint, result, token)


class Compensation(StepOfClaim):
    """A compensation: its keys for calls downstream are not those of its step."""

    _purpose = "undo"
