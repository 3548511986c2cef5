"""The application around a module's boundaries: the routes and outboxes among its objects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from retrysafe.admin.describe import served
from retrysafe.admin.lock import lock_of
from retrysafe.http.policy import ServedRoute
from retrysafe.http.served import served_routes
from retrysafe.messaging.outbox import Outbox


def locked(objects: Iterable[object]) -> dict[str, Any]:
    """What the lock file of this process's boundaries holds, with the application among these objects."""
    found = list(objects)
    return lock_of({one.route: one.policy for one in _routes(found)}, [one.source for one in _outboxes(found)])


def described(objects: Iterable[object]) -> list[dict[str, str]]:
    """Each route and each outbox among these objects, in words."""
    found = list(objects)
    outboxes = [
        {"outbox": one.source, "key": "source and id of each message: consumers recognise it by both"}
        for one in _outboxes(found)
    ]
    return [served(*one) for one in _routes(found)] + outboxes


def _routes(objects: Iterable[object]) -> list[ServedRoute]:
    return [route for one in objects for route in served_routes(one)]


def _outboxes(objects: Iterable[object]) -> list[Outbox]:
    return [one for one in objects if isinstance(one, Outbox)]
