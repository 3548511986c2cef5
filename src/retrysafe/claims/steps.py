"""Steps of a claim: recovery points, sagas, sleeping and signals. Loaded when the first of them is asked for.

`ClaimSteps` has what an attempt knows of its steps: the rows of earlier attempts, read once and only if there were any,
the steps that it has asked for, and the compensations that it has registered. `Step` is one of them, with the words of
a claim. What either does is a program, which the driver of its colour performs: it asks the store, or in the caller's
transaction, and calls functions of the user's. The rules are in `retrysafe.protocol.steps.MEETS`.

How a run goes back
-------------------
It does if the operation fails for good and a step has ``undo``: by an error of ``permanent=``, by `Claim.fail`, or by
an error that was made a stored answer, such as a 409. The decision is written first; then the compensations
are called, those of the latest steps first, each with the stored result. After a crash the code runs again, with its
finished steps replayed, and those that it has begun done again, only to register its compensations; so the run ends
undone, whatever the code says by then. A compensation that fails, and a step with one that the code did not ask for
again, leave the key unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from operator import attrgetter
from random import Random
from types import CodeType
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from retrysafe.backends.driver import arun
from retrysafe.backends.steps import has_steps
from retrysafe.cancellation import run_to_completion
from retrysafe.claims.codec import decode_failure, encode_failure
from retrysafe.claims.functions import kind_of
from retrysafe.claims.heartbeat import clock
from retrysafe.claims.outcome import encode_error, is_final
from retrysafe.claims.step import Compensation, StepOfClaim, StepOptions
from retrysafe.claims.step_course import Course
from retrysafe.claims.step_programs import Retreat, aperform, call, drive, perform
from retrysafe.errors import ConfigurationError, LeaseLost, OutcomeUnknown, Postponed, StoredFailure
from retrysafe.protocol.canonical import NotCanonical
from retrysafe.protocol.durations import micros, seconds
from retrysafe.protocol.exception_groups import leaves
from retrysafe.protocol.fingerprint import Fields, Fingerprint
from retrysafe.protocol.outcomes import Answered
from retrysafe.protocol.requests import Program, ask
from retrysafe.protocol.steps import (
    DECISION,
    MEETS,
    NO_PLACE,
    SIGNAL,
    SLEEP,
    Act,
    Aim,
    At,
    StepRow,
    StepState,
    at_of,
    change,
    insert,
    label,
)

if TYPE_CHECKING:
    from retrysafe.protocol.records import Duration


Item = TypeVar("Item")
_OPTIONS = frozenset(StepOptions.__annotations__)
_ENDS_THE_ATTEMPT_ONLY = (Postponed, LeaseLost)
"""With these the attempt ends, but not the work."""


class ClaimSteps(Course):
    """The steps of one attempt, with what a claim can do about them."""

    looks_for_earlier = False
    """True if the work failed for good, and `end` is to look for steps of earlier attempts."""

    # ------------------------------------------------------------ asking for steps

    def step(self, name: str, function: Callable[..., Any] | None, args: tuple[Any, ...], /, **options: Any) -> Any:
        """A step: called with its function, or to be entered."""
        if not _OPTIONS.issuperset(options) or (args and function is None):
            raise ConfigurationError(
                f"step() takes a name, a function with its arguments, and {', '.join(StepOptions.__annotations__)}."
            )
        given: StepOptions = options  # type: ignore[assignment]
        if (effects := given.get("effects", "keyed")) not in ("keyed", "external"):
            raise ConfigurationError(f"effects={effects!r}: a step is 'keyed' or 'external'.")
        at, tx = at_of(given.get("was") or name, given.get("each")), given.get("tx")
        if function is None:
            return StepOfClaim(self, at, given, None)
        kind = kind_of(function)
        payload = _payload(function, args, int(tx is not None)) if args else None
        step = StepOfClaim(self, at, given, payload, kind.returns)
        given_args = args if tx is None else (tx, *args)
        if not kind.is_coroutine:
            return step.call(function, given_args)
        self.unawaited[at] = None
        return step.acall(function, given_args)

    # ------------------------------------------------------------ the end of the attempt

    def end(self, error: BaseException | None) -> BaseException | None:
        """Compensate if the work goes back; return the error to settle the record with. `finish` comes after that."""
        if self._has_to_end():
            try:
                if not self.may_have_steps:  # it asked for none: look for earlier ones, if their table exists
                    drive(self._load_earlier(), self.settings.backend.client())
                if self.may_have_steps:
                    error = self.run(self._ending(error))
            except BaseException as failure:  # noqa: BLE001 - with it the attempt ends
                error = failure
        return error

    async def aend(self, error: BaseException | None) -> BaseException | None:
        """`end` for async code; compensations come to their end even if the caller is cancelled."""
        if not self._has_to_end():
            return error
        ended, self.cancelled = await run_to_completion(self._aend(error))
        return ended

    async def _aend(self, error: BaseException | None) -> BaseException | None:
        try:
            if not self.may_have_steps:
                await arun(self._load_earlier(), self.settings.backend.aclient())
            if self.may_have_steps:
                error = await self.arun(self._ending(error))
        except BaseException as failure:  # noqa: BLE001 - with it the attempt ends
            error = failure
        return error

    def _load_earlier(self) -> Program[None]:
        if (yield from has_steps(self.settings.backend)):
            yield from self.load()

    cancelled: BaseException | None = None
    """The cancellation that arrived while the attempt ended."""

    def _has_to_end(self) -> bool:
        context = self.claim._context
        return (self.may_have_steps or self.looks_for_earlier) and context is not None and context.is_open()

    def finish(self, given: BaseException | None, error: BaseException | None) -> None:
        """Let the rows end with their record, and raise what the work's own code did not."""
        if self.may_have_steps:
            perform(self.settings.backend, self._concluding())
        self._raise(given, error)

    async def afinish(self, given: BaseException | None, error: BaseException | None) -> None:
        """`finish` for async code."""
        if self.may_have_steps:
            await aperform(self.settings.backend, self._concluding())
        self._raise(given, error)

    def _raise(self, given: BaseException | None, error: BaseException | None) -> None:
        if error is not None and error is not given:
            raise error from given
        if self.cancelled is not None:
            raise self.cancelled

    def _concluding(self) -> Program[Any]:
        if self.rows or self.asked:
            for request in self.results.store.conclude(self.results.work):
                yield from ask(request)

    def _ending(self, error: BaseException | None) -> Program[Any]:
        if isinstance(error, BaseExceptionGroup):
            error = _without_waits(error)
        if self._is_doubt(error):
            self.claim.committed()
            return error
        yield from self.load()
        declared = self.claim._signals.failure
        if isinstance(error, Postponed) and declared is not None:
            error = declared  # before it came to the wait
        goes_back = DECISION in self.rows or self._decides(error)
        if not goes_back and error is None and declared is None and self.unawaited:
            raise ConfigurationError(
                f"Not awaited, so that nothing of it was run: step {', '.join(map(label, self.unawaited))}. Write "
                "'await' before it; in sync code give it a plain function."
            )
        if not goes_back or isinstance(error, _ENDS_THE_ATTEMPT_ONLY):
            return error
        if error is not None and not isinstance(error, Exception | Retreat):
            if declared is not None:
                self.claim._signalling().failure = None
            return error  # the attempt is ended from outside; the next one goes back
        return (yield from self._going_back(error))

    def _is_doubt(self, error: BaseException | None) -> bool:
        return self._doubt is not None and error is not None and any(leaf is self._doubt for leaf in leaves(error))

    def _decides(self, error: BaseException | None) -> bool:
        undoable = bool(self.undos) or any(row.undoable for row in self.rows.values())
        return undoable and is_final(self.claim._signals, error, self.settings)

    def _going_back(self, error: BaseException | None) -> Program[Any]:
        decided = self.rows.get(DECISION)
        if decided is None:
            signals, largest = self.claim._signals, self.settings.largest_result
            reason = signals.failure or error
            found = encode_error(reason, largest) if reason else encode_failure("Failure", signals.answered[1], None)
            stored = self.results.seal(DECISION, found)
            row = StepRow(DECISION, StepState.DONE, NO_PLACE, result=stored, token=self.results.work.token)
            yield from insert(self.results.store, self.results.work, row)
        left = [row for row in self.rows.values() if row.undoable and row.state is not StepState.UNDONE]
        latest_first = sorted(left, key=attrgetter("place"), reverse=True)
        forgotten = [row.at for row in latest_first if row.at not in self.undos]
        try:
            if forgotten:
                raise self._doubt_undoing(forgotten)
            for step in reversed(self.undos.values()):
                yield from self._undo(step)
        except OutcomeUnknown as unknown:
            signals = self.claim._signalling()
            signals.failure, signals.committed = None, True
            return unknown
        is_stored_answer = error is None and self.claim._signals.answered[0] is Answered.ABORTED
        if decided is None or is_stored_answer:
            return error
        kind, message, data = decode_failure(self.results.open(decided))
        self.claim.fail(type(kind, (Exception,), {"data": data})(message))
        return self.claim._sign(StoredFailure(kind, message, data))

    def _doubt_undoing(self, forgotten: list[At]) -> OutcomeUnknown:
        first, *others = map(label, forgotten)
        told = f"Step {first} is to be undone"
        if others:
            told += f", and so {'is' if len(others) == 1 else 'are'} {', '.join(others)}"
        them, their = ("them", "their") if others else ("it", "its")
        told += f", and the code did not ask for {them} again, so that {their} undo= is not known"
        return self.doubt(forgotten[0], told)

    def _undo(self, step: StepOfClaim) -> Program[Any]:
        at, row = step.at, self.rows.get(step.at)
        if at in self.unsure:
            yield from self.load(at)
            row = self.rows.get(at)
        results, store, work = self.results, self.results.store, self.results.work
        if row is None and at not in self.broken:
            row = yield from insert(store, work, StepRow(at, StepState.UNDONE, step._place, undoable=True))
            if row is None:
                return
        state = StepState.STARTED if row is None else row.state  # of a broken one nothing is known
        match MEETS[state, Aim.UNDO]:
            case Act.DOUBT:
                raise self.doubt(at, f"Step {label(at)} cannot be undone: it may or may not have happened")
            case Act.RUN:
                assert row is not None
                self.claim.ensure_held()
                assert step.undo is not None
                try:
                    yield from call(Compensation(self, at, {}, None), step.undo, results.read(row, step.annotation))
                except LeaseLost:
                    raise
                except Exception as error:
                    raise self.doubt(at, f"Step {label(at)} could not be undone: {error!r}") from error
                yield from change(store, work, row._replace(state=StepState.UNDONE), StepState.DONE)
                self.tell("step_undone", at)

    # ------------------------------------------------------------ waiting

    def run(self, program: Program[Any]) -> Any:
        """Drive a program in sync code."""
        return perform(self.settings.backend, program)

    async def arun(self, program: Program[Any]) -> Any:
        """`run` for async code."""
        return await aperform(self.settings.backend, program)

    def sleep(self, name: str, duration: Duration) -> Program[Any]:
        """Raise `Postponed` until the time has come."""
        length, at = micros(duration, "sleep"), at_of(name, call="sleep('notice', …)")
        if length >= self.settings.clocks.window:
            raise ConfigurationError(
                f"sleep({name!r}) is as long as window=, after which the key would begin new work: make window= longer."
            )
        self.refuse_inside(at)
        yield from self.load()
        row = self.enlist(at)
        if row is None:
            if self.aim is Aim.REDO:
                raise Retreat
            due = self._store_time() + length
            stored = self.results.encode(at, due)
            row = StepRow(at, StepState.DONE, self.places[name], fingerprint=SLEEP, result=stored)
            met = yield from insert(self.results.store, self.results.work, row)
            self.rows[at] = row = met or row
        left = self.results.read(row) - self._store_time()
        if left > 0 and self.aim is Aim.DO:
            raise Postponed(f"The work sleeps: {name}.", retry_after=left / 1e6)

    def wait_for(self, name: str, retry_after: Duration) -> Program[Any]:
        """The value of a signal."""
        pause, at = seconds(retry_after, "retry_after"), At(SIGNAL + at_of(name, call="wait_for('paid')").name)
        self.refuse_inside(at)
        yield from self.load()
        row = self.rows.get(at)
        if row is None:
            row, _ = yield from ask(self.results.store.find(self.results.work, at), again=True)
        if row is not None:
            self.rows[at] = row
            return self.results.read(row)
        if self.aim is Aim.REDO:
            raise Retreat
        raise Postponed(f"The work waits for the signal {name}.", retry_after=pause)

    def _store_time(self) -> int:
        """The store's time, as far as it is known from the claim."""
        since: float = clock() - self.claim._claimed_at
        return self._held.record.now + round(since * 1e6)

    # ------------------------------------------------------------ the same on every attempt

    def now(self) -> datetime:
        """The time at which the work began."""
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=self._held.record.created)

    def uuid(self, name: str) -> UUID:
        """A UUID by name."""
        return UUID(self.claim.key_for(f"uuid {name}"))

    def random(self, name: str) -> Random:
        """A source of random numbers by name."""
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


def _without_waits(error: BaseExceptionGroup[BaseException]) -> BaseException:
    """The errors of a TaskGroup but for waits, which are no failures; the first to end, if there is nothing else."""
    waits, others = error.split(Postponed)
    if waits is None or others is not None:
        return others or error
    return min(leaves(waits), key=attrgetter("retry_after"))


def _payload(function: Callable[..., Any], args: tuple[Any, ...], more: int) -> Fingerprint:
    """The input of a step, its parts named as the parameters of its function."""
    plain = getattr(function, "__func__", function)
    start = more + (plain is not function)
    fields = _fields(getattr(plain, "__code__", None), start, len(args))
    try:
        return fields.of(args)
    except NotCanonical as error:
        raise ConfigurationError(
            f"{error}. A step is known by its input: give it plain values, or a function without arguments (a lambda), "
            "whose input is not compared."
        ) from error


@lru_cache(maxsize=256)
def _fields(code: CodeType | None, start: int, count: int) -> Fields:
    names = () if code is None else code.co_varnames[start : start + count]
    return Fields((*names, *(f"argument_{number + 1}" for number in range(len(names), count))), {})
