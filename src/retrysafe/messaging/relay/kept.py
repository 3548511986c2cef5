"""Removes published messages that were kept for long enough: a relay does so itself, in batches between its buckets."""

from __future__ import annotations

import time
from collections.abc import Callable

from retrysafe.backends.sql.outbox_operating import SqlPublished
from retrysafe.backends.sql.store import SqlStore
from retrysafe.protocol import durations
from retrysafe.protocol.procedures import sweep
from retrysafe.protocol.records import Duration
from retrysafe.protocol.requests import Program

BATCH = 1000
EVERY = 60.0
"""Seconds until the next look, when nothing is left; behind a full batch it is at once."""
DEFAULT = "7d"


class KeptMessages:
    """The messages that a relay keeps, for ``keep_published=``: a duration, or True for `DEFAULT`."""

    def __init__(self, store: SqlStore, keep: bool | Duration, tell: Callable[..., object]) -> None:
        age = durations.seconds(DEFAULT if keep is True else keep, "keep_published")
        self._published, self._tell, self._next = SqlPublished(store, age), tell, 0.0

    def is_due(self) -> bool:
        """Tell whether it is time for a batch; the first caller that is told so has to take it."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + EVERY
        return True

    def steps(self) -> Program[None]:
        """Remove a batch."""
        began = time.monotonic()
        gone = yield from sweep(self._published, BATCH)  # type: ignore[arg-type]
        if gone == BATCH:
            self._next = began
        if gone:
            self._tell(
                "swept", side="outbox", removed=gone, archived=0, repaired=0, seconds=round(time.monotonic() - began, 3)
            )
