"""The tasks of an application of Celery, Dramatiq or Taskiq, and which of them are guarded."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from retrysafe.claims import key_spaces
from retrysafe.entrypoint import EntryPoint

_CELERYS_OWN = "celery."


class ServedTask(NamedTuple):
    """A task of an application."""

    name: str
    function: object
    guarded: bool
    lost: bool
    """True if its queue forgets it when its worker dies, as far as the application says."""


def find_tasks(app: Any) -> list[ServedTask]:
    """The tasks of an application; none for one of which nothing is known."""
    found = sorted(_find(app), key=lambda one: one[0])
    guarded = {
        inspect.unwrap(one.function)
        for entry in key_spaces.living()
        if isinstance(entry, EntryPoint)
        for one in entry.guarded.values()
    }
    return [ServedTask(name, function, inspect.unwrap(function) in guarded, lost) for name, function, lost in found]


def _find(app: Any) -> Iterator[tuple[str, Any, bool]]:
    """The name of each task, its function, and whether it is lost with its worker."""
    if _is_a(app, "celery", "Celery"):
        app.loader.import_default_modules()  # those of include= and autodiscover_tasks(), as Celery's commands do
        for name, task in app.tasks.items():
            if not name.startswith(_CELERYS_OWN):
                yield name, task.run, not (task.acks_late and task.reject_on_worker_lost)
    elif _is_a(app, "dramatiq", "Broker"):
        for name, actor in app.actors.items():
            yield name, actor.fn, False
    elif _is_a(app, "taskiq", "AsyncBroker"):
        for name, task in app.get_all_tasks().items():
            yield name, task.original_func, False


def _is_a(app: object, module: str, kind: str) -> bool:
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(app, getattr(loaded, kind))
