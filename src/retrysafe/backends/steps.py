"""The requests about steps of each kind of store, loaded when a step is first asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from retrysafe.backends.migrations.on_demand import is_present
from retrysafe.backends.registry import specs
from retrysafe.backends.spec import BackendSpec
from retrysafe.errors import ConfigurationError
from retrysafe.protocol.steps import RunStore, sweep

if TYPE_CHECKING:
    from retrysafe.backends.backend import Backend
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
                f"{', '.join(spec.title for spec in specs() if spec.steps)}."
            )
        found = _made[backend.store] = spec.load(spec.steps)(backend.store)
    return found


def _spec(backend: Backend) -> BackendSpec | None:
    return next((spec for spec in specs() if spec.steps and backend.kind in spec.checks), None)


def keeps_steps(backend: Backend) -> bool:
    """Tell whether a store has a place for steps."""
    return _spec(backend) is not None


def runs_of(backend: Backend) -> RunStore | None:
    """The requests about steps of a store whose runs can be listed."""
    found = steps_of(backend) if keeps_steps(backend) else None
    return found if isinstance(found, RunStore) else None


def has_steps(backend: Backend) -> Program[bool]:
    """Tell whether there may be steps: the store keeps them, and has their table."""
    return keeps_steps(backend) and (backend.kind != "sqlite" or (yield from is_present("steps")))


def sweep_steps(backend: Backend, limit: int) -> Program[int]:
    """Remove up to ``limit`` rows whose record is gone, where there are such."""
    return (yield from sweep(steps_of(backend), limit)) if (yield from has_steps(backend)) else 0
