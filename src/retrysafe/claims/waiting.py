"""Lets a duplicate wait while another attempt runs, or refuses it with `InProgress`."""

from __future__ import annotations

from typing import Any

from retrysafe.claims import lease
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


def refuse_on_a_loop(settings: BoundarySettings) -> None:
    """Refuse a sync claim that may have to wait where an event loop runs."""
    if not isinstance(settings.concurrency, Reject) and on_a_loop():
        raise ConfigurationError(
            "A sync claim with concurrency=wait(…) was made on a running event loop, which it would block: "
            "use 'async with' or a coroutine, or concurrency=reject()."
        )


def checks_snapshot(settings: BoundarySettings) -> bool:
    """Tell whether this is the first claim of its boundary that may wait in a transaction."""
    waits = not isinstance(settings.concurrency, Reject) and settings.effects == "transactional"
    return waits and settings.first_wait()


def snapshot(settings: BoundarySettings) -> Program[str | None]:
    """The isolation level, if a waiting duplicate cannot see the other's commit under it; else None."""
    store: Any = settings.backend.store
    return find_frozen_snapshot(store)


class Patience:
    """The patience of one duplicate."""

    def __init__(self, settings: BoundarySettings, events: AttemptEvents) -> None:
        self._settings = settings
        self._events = events
        self._patience: PollSchedule | None = None
        self._counted = False

    def pause(self, record: Record | None, *, helps: bool) -> float:
        """Seconds until it looks again; raises `InProgress` when it waits no longer, or waiting does not help here."""
        concurrency = self._settings.concurrency
        lease_left = None if record is None else record.lease_left
        pause: float | None = None
        if not isinstance(concurrency, Reject) and helps and self._counts(concurrency.at_most):
            now = lease.clock()
            self._patience = (self._patience or PollSchedule(now + concurrency.seconds)).next_poll()
            pause = self._patience.next_pause(now, lease_left, self._settings.chance())
        if pause is None:
            self._events.emit("conflict", retry_after=RETRY_AFTER)
            raise InProgress(retry_after=RETRY_AFTER)
        self._events.emit("waiting", pause=pause)
        return pause

    def end(self) -> None:
        """It waits no longer."""
        if self._counted:
            self._counted = False
            self._settings.waiters.leave()

    def _counts(self, at_most: int) -> bool:
        """Tell whether it is one of those that may wait."""
        self._counted = self._counted or self._settings.waiters.join(at_most)
        return self._counted
