"""Events, and the protocols of the observers that receive them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol


class Event(NamedTuple):
    """Something retrysafe decided. ``name`` is stable; ``fields`` depend on it; the key is redacted."""

    name: str
    boundary: str
    operation: str
    key: str
    attempt: str
    fields: Mapping[str, Any]


class Observer(Protocol):
    """Receives an event for every decision. It must be quick, and what it raises is logged and ignored.

    It is told in the thread or task of the decision; of leases also in the heartbeat's. Three methods are optional:
    ``is_enabled(name) -> bool``, asked before an event is made, spares it those that it has no use for;
    ``takes_details() -> bool``, asked when an attempt begins, spares it all events of that attempt but those that
    `LoggingObserver` logs as warnings or errors;
    ``watch(received) -> Watch`` gives a watch over each attempt, which is told of that attempt in its place.
    """

    def __call__(self, event: Event, /) -> None: ...


class Watch(Protocol):
    """An observer's state for one attempt. The attempt alone holds it: it goes with an attempt that never ends.

    It is made in the context that enters the claim, before the store is asked, and is told of all that follows,
    of "received" first. What it sets in that context is in force for the guarded work.
    """

    def __call__(self, event: Event, /) -> None: ...

    def close(self, error: BaseException | None, /) -> None:
        """The attempt is over, left by ``error``: in the context that leaves the claim, which may be another one.

        A process that was forked inside the block closes its copy too.
        """
        ...
