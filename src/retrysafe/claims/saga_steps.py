"""Steps without a claim: those of a choreographed saga, and the signals that a claim waits for."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from retrysafe.claims.step import Step
from retrysafe.claims.step_programs import aperform, perform
from retrysafe.claims.step_results import StepResults
from retrysafe.errors import ConfigurationError, OutcomeUnknown
from retrysafe.protocol import keys
from retrysafe.protocol.records import Key, key_space
from retrysafe.protocol.requests import Program, ask
from retrysafe.protocol.steps import (
    MEETS,
    NO_PLACE,
    SIGNAL,
    Act,
    Aim,
    At,
    StepRow,
    StepState,
    Work,
    at_of,
    change,
    insert,
    label,
)

if TYPE_CHECKING:
    from retrysafe.claims.settings import BoundarySettings

_OPERATION = "saga"


class SagaStep(Step):
    """A step of a choreographed saga, or its compensation, in the caller's transaction: the rows are the saga's.

    Its block runs always, and `replayed` is true if there is nothing to be done: it has been done, it comes after its
    compensation, or there is nothing to undo.
    """

    def __init__(self, results: StepResults, at: At, tx: Any, *, undo: bool) -> None:
        super().__init__(results, at, tx)
        self._undo = undo
        self._purpose = "undo" if undo else "do"
        self.undone = undo
        """True if the step is undone, by this or before it came."""

    def _entering(self) -> Program[None]:
        row = self._row(StepState.UNDONE if self._undo else StepState.STARTED)
        met = yield from insert(self._results.store, self._results.work, row, joined=True)
        if met is None:
            self._replayed = self._undo
            return
        self.undone = self._undo or met.state is StepState.UNDONE
        match MEETS[met.state, Aim.UNDO if self._undo else Aim.DO]:
            case Act.FIND_OUT | Act.DOUBT:
                raise OutcomeUnknown(f"Step {label(self.at)} was committed in the middle of its work")
            case Act.RUN:
                row = met._replace(state=StepState.UNDONE)
                yield from change(self._results.store, self._results.work, row, StepState.DONE, joined=True)
                self._result = self._results.read(met)
            case _:
                self._result, self._replayed = self._results.read(met), True

    def _leaving(self, error: BaseException | None) -> Program[None]:
        if self._replayed or self._undo:
            return
        error = error or self._failure
        store, work = self._results.store, self._results.work
        if error is None:
            row = self._row(StepState.DONE)._replace(result=self._results.encode(self.at, self._result))
            yield from change(store, work, row, StepState.STARTED, joined=True)
            return
        with suppress(Exception):  # the transaction may be broken by the error, and is to be rolled back
            yield from ask(store.drop(work, self.at))
        if error is self._failure:
            raise error

    def _row(self, state: StepState) -> StepRow:
        return StepRow(self.at, state, NO_PLACE)


def saga_step(settings: BoundarySettings, saga: Key, name: str, tx: Any, *, undo: bool, scope: str | None) -> SagaStep:
    """A step of a choreographed saga."""
    if tx is None:
        raise ConfigurationError("Boundary.step() commits in your transaction: give the handler's as tx=.")
    tenant = settings.scope_of(scope)
    key = keys.lookup(settings.secret, settings.name, tenant, _OPERATION, keys.parse(saga))
    work = Work(key, 0, settings.clocks.memory, None)
    return SagaStep(StepResults(settings, work, tenant, _OPERATION), at_of(name), tx, undo=undo)


def signal(
    settings: BoundarySettings, key: Key, name: str, value: Any, operation: str, scope: str | None = None
) -> bool:
    """Write down a signal for the work of a key; False if it has one of this name, or there is no such work."""
    settings.backend.ready_client()
    done: bool = perform(settings.backend, _signalling(settings, key, name, value, key_space(operation), scope))
    return done


async def asignal(
    settings: BoundarySettings, key: Key, name: str, value: Any, operation: str, scope: str | None = None
) -> bool:
    """`signal` for async code."""
    await settings.backend.ready_aclient()
    program = _signalling(settings, key, name, value, key_space(operation), scope)
    done: bool = await aperform(settings.backend, program)
    return done


def _signalling(
    settings: BoundarySettings, key: Key, name: str, value: Any, operation: str, scope: str | None
) -> Program[bool]:
    tenant = settings.scope_of(scope)
    found = keys.lookup(settings.secret, settings.name, tenant, operation, keys.parse(key))
    record = yield from ask(settings.backend.store.read(found), again=True)
    if record is None:
        return False
    results = StepResults(settings, Work(found, record.created, settings.clocks.memory, None), tenant, operation)
    at = At(SIGNAL + at_of(name, call="signal(…, 'paid')").name)
    row = StepRow(at, StepState.DONE, NO_PLACE, result=results.encode(at, value))
    if (yield from ask(results.store.signal(results.work, row), again=True)):
        return True
    kept, _ = yield from ask(results.store.find(results.work, at))
    return kept is not None and kept.result == row.result  # the reply was lost
