"""Lets a duplicate wait while another attempt runs, or refuses it with `InProgress`."""

from __future__ import annotations

from typing import Any

from retrysafe.claims import heartbeat
from retrysafe.claims.context import on_a_loop
from retrysafe.claims.observers import AttemptEvents
from retrysafe.claims.settings import BoundarySettings
from retrysafe.errors import ConfigurationError, InProgress
from retrysafe.protocol.backoff import PollSchedule
from retrysafe.protocol.procedures import find_frozen_snapshot
from retrysafe.protocol.records import Record, Reject
from retrysafe.protocol.requests import Program

RETRY_AFTER = 1.0
"""Seconds after which a refused duplicate is told to come again: work ends long before its lease, which is renewed."""


def retry_after(record: Record | None) -> float:
    """`RETRY_AFTER`; or the seconds that the lease has left, if a renewal is overdue, as after its worker died."""
    if record is None or 2 * record.now < record.updated + record.lease_until:
        return RETRY_AFTER
    return max(RETRY_AFTER, record.lease_left)


def refuse_on_a_loop(settings: BoundarySettings) -> None:
    """Refuse a sync claim that may have to wait where an event loop runs."""
    if not isinstance(settings.concurrency, Reject) and on_a_loop():
        raise ConfigurationError(
            "A sync claim with concurrency=wait(…) was made on a running event loop, which it would block: "
            "use 'async with' or a coroutine, or concurrency=reject()."
        )


def check_snapshot_once(settings: BoundarySettings) -> Program[str | None] | None:
    """`find_frozen_snapshot`, for the first claim of a boundary that may wait in a transaction; None for others."""
    waits = not isinstance(settings.concurrency, Reject) and settings.effects == "transactional"
    if not waits or settings.waiters.checked_snapshot:
        return None
    settings.waiters.checked_snapshot = True
    store: Any = settings.backend.store
    return find_frozen_snapshot(store)


class Patience:
    """The patience of one duplicate."""

    def __init__(self, settings: BoundarySettings, events: AttemptEvents) -> None:
        self._settings = settings
        self._events = events
        self._polls: PollSchedule | None = None
        self._counted = False

    def pause(self, record: Record | None, *, helps: bool) -> float:
        """Seconds until it looks again; raises `InProgress` when it waits no longer, or waiting does not help here."""
        concurrency = self._settings.concurrency
        lease_left = None if record is None else record.lease_left
        pause: float | None = None
        if not isinstance(concurrency, Reject) and helps and self._may_wait(concurrency.at_most):
            now = heartbeat.clock()
            self._polls = (self._polls or PollSchedule(now + concurrency.seconds)).next_poll()
            pause = self._polls.next_pause(now, lease_left, self._settings.chance())
        if pause is None:
            again = retry_after(record)
            self._events.emit("conflict", retry_after=again)
            raise InProgress(retry_after=again)
        self._events.emit("waiting", pause=pause)
        return pause

    def end(self) -> None:
        """It waits no longer."""
        if self._counted:
            self._counted = False
            self._settings.waiters.leave()

    def _may_wait(self, at_most: int) -> bool:
        """Count it among those that wait, if it is not yet; False when there are as many as may wait."""
        self._counted = self._counted or self._settings.waiters.join(at_most)
        return self._counted
