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
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from retrysafe.backends.migrations import on_demand
from retrysafe.cancellation import run_to_completion
from retrysafe.claims.codec import decode_failure
from retrysafe.claims.context import enclosing
from retrysafe.claims.functions import is_coroutine_function, return_annotation
from retrysafe.claims.lease import clock
from retrysafe.claims.outcome import encode_error, is_permanent
from retrysafe.claims.step import StepOfClaim, StepOptions, Undoing, name_of_step
from retrysafe.claims.step_programs import Call, GoingBack, Put, aperform, perform
from retrysafe.claims.step_results import Shelf, aprovide, provide
from retrysafe.errors import (
    ConfigurationError,
    LeaseLost,
    OutcomeUnknown,
    Postponed,
    StoredFailure,
)
from retrysafe.protocol import fingerprint
from retrysafe.protocol.canonical import NotCanonical
from retrysafe.protocol.durations import micros, seconds
from retrysafe.protocol.exception_groups import leaves
from retrysafe.protocol.fingerprint import UNCHECKED, Fingerprint
from retrysafe.protocol.records import ClaimRequest, Duration
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
    from retrysafe.backends.spec import Joining
    from retrysafe.claims.step_programs import Program
    from retrysafe.protocol.procedures import Won


Item = TypeVar("Item")
_NO_PLACE = -1
_ELSEWHERE = (Postponed, LeaseLost)
"""With these the attempt ends, but not the work."""


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
                undoing = Undoing(self, at, {}, b"", None)
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
