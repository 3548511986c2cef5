"""The application around a module's boundaries: the routes, tasks and outboxes among its objects."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from retrysafe.admin.describe import describe_route, purpose_of, steps_of
from retrysafe.admin.lock import lock_of
from retrysafe.http.policy import ServedRoute
from retrysafe.http.served import find_routes
from retrysafe.messaging.outbox import Outbox, living
from retrysafe.tasks.served import find_tasks


def lock_file(objects: Iterable[object]) -> dict[str, Any]:
    """Build the lock file of this process's boundaries and outboxes, with the applications among these objects."""
    types: defaultdict[str, set[str]] = defaultdict(set)
    for outbox in living():
        types[outbox.source].update(outbox.types or ())
    routes = _routes(objects)
    steps = {one.route: names for one in routes if (names := steps_of(one.handler))}
    return lock_of({one.route: one.policy for one in routes}, steps, types)


def describe(objects: Iterable[object]) -> list[dict[str, str]]:
    """Each route, each task, each outbox and each of its types among these objects, in words."""
    found = list(objects)
    outboxes = [told for one in found if isinstance(one, Outbox) for told in _outbox(one)]
    routes = [describe_route(one.route, one.policy, one.handler) for one in _routes(found)]
    tasks = [
        {"task": one.name, "policy": "guarded" if one.guarded else "unguarded", **purpose_of(one.function)}
        for app in found
        for one in find_tasks(app)
    ]
    return routes + tasks + outboxes


def _outbox(outbox: Outbox) -> Iterator[dict[str, str]]:
    yield {"outbox": outbox.source, "key": "source and id of each message: consumers recognise it by both"}
    for name, sentence in (outbox.types or {}).items():
        yield {
            "type": name,
            "outbox": outbox.source,
            "key": "source and id",
            **({"sentence": sentence} if sentence else {}),
        }


def _routes(objects: Iterable[object]) -> list[ServedRoute]:
    return [route for one in objects for route in find_routes(one)]
