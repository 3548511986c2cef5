"""What an application's lock file holds now: its boundaries, and the routes and outboxes among a module's objects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from retrysafe.admin.lock import lock_of
from retrysafe.http import served
from retrysafe.messaging.outbox import Outbox


def current(objects: Iterable[object]) -> dict[str, Any]:
    """The lock of this process's boundaries, with the applications and outboxes among these objects."""
    found = list(objects)
    routes = {route: policy for one in found for route, policy in served.policies(one).items()}
    return lock_of(routes, [one.source for one in found if isinstance(one, Outbox)])
