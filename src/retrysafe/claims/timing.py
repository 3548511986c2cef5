"""Times a store request, from asking to the answer, waits for a connection and commits included."""

from __future__ import annotations

from types import TracebackType

from retrysafe.claims.heartbeat import clock
from retrysafe.claims.observers import AttemptEvents
from retrysafe.errors import StoreUnavailable


class Timing:
    """Tells observers how long a step took, and whether the store answered; by itself at the end of a ``with``."""

    def __init__(self, events: AttemptEvents, step: str) -> None:
        self._events = events
        self._step = step
        self._began = clock()

    def tell(self, *, answered: bool) -> None:
        """Tell them that it is over."""
        seconds = round(clock() - self._began, 6)
        self._events.emit("store_request", step=self._step, seconds=seconds, answered=answered)

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.tell(answered=not isinstance(error, StoreUnavailable))
