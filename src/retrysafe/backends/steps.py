"""The requests about steps of each kind of store, loaded when a step is first asked for."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from retrysafe.backends.migrations.on_demand import is_present
from retrysafe.backends.registry import specs
from retrysafe.backends.spec import BackendSpec
from retrysafe.errors import ConfigurationError
from retrysafe.protocol.retry_table import in_doubt
from retrysafe.protocol.steps import DECISION, RunStore, StepState, Work, label, read, sweep

if TYPE_CHECKING:
    from retrysafe.backends.backend import Backend
    from retrysafe.protocol.records import Outcome, Record
    from retrysafe.protocol.requests import Program
    from retrysafe.protocol.steps import StepStore
    from retrysafe.protocol.store import Store

_made: WeakKeyDictionary[Store, StepStore] = WeakKeyDictionary()


def steps_of(backend: Backend) -> StepStore:
    """The requests about steps of a backend's store. Raises `ConfigurationError` for a store that keeps none."""
    found = _made.get(backend.store)
    if found is None:
        spec = _spec(backend)
        if spec is None:
            raise ConfigurationError(
                f"store= ({backend.address}) keeps no steps: a {backend.kind} store has no place for them. Use "
                f"{', '.join(kind for one in specs() for kind in one.steps)}."
            )
        found = _made[backend.store] = spec.load(spec.steps[backend.kind])(backend.store)
    return found


def _spec(backend: Backend) -> BackendSpec | None:
    return next((spec for spec in specs() if backend.kind in spec.steps), None)


def keeps_steps(backend: Backend) -> bool:
    return _spec(backend) is not None


def runs_of(backend: Backend) -> RunStore | None:
    """The requests about steps of a store whose runs can be listed."""
    found = steps_of(backend) if keeps_steps(backend) else None
    return found if isinstance(found, RunStore) else None


def has_steps(backend: Backend) -> Program[bool]:
    """Tell whether there may be steps: the store keeps them, and has their table."""
    return keeps_steps(backend) and (backend.kind != "sqlite" or (yield from is_present("steps")))


def can_go_on(backend: Backend, record: Record) -> Program[bool]:
    """Tell whether there are steps of a record's work behind which it could go on: not if it has gone back."""
    if not (yield from has_steps(backend)):
        return False
    work = Work(record.key, record.created, 0, None)
    rows = yield from read(steps_of(backend), work)
    return bool(rows) and all(row.at != DECISION for row in rows)


def obstacle_to(outcome: Outcome, backend: Backend, record: Record) -> Program[str]:
    """The reason why a key cannot be settled as a whole: steps that no attempt would undo then. Empty if it can."""
    if outcome == "released" or not in_doubt(record) or not (yield from has_steps(backend)):
        return ""
    rows = yield from read(steps_of(backend), Work(record.key, record.created, 0, None))
    left = [
        label(row.at)
        for row in sorted(rows, key=attrgetter("place"))
        if row.undoable and row.state is not StepState.UNDONE
    ]
    if not left or (outcome == "completed" and all(row.at != DECISION for row in rows)):
        return ""
    return (
        f"Nothing was changed: as {outcome}, the key would get no further attempt, and what was done would never be "
        f"undone: {', '.join(left)}. Settle the step in doubt, or give the run up: `retrysafe runs show` has the "
        "commands."
    )


def sweep_steps(backend: Backend, limit: int) -> Program[int]:
    """Remove up to ``limit`` rows whose record is gone, where there are such."""
    return (yield from sweep(steps_of(backend), limit)) if (yield from has_steps(backend)) else 0
