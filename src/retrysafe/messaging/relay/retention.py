"""Messages that have left and are kept: how long, and where they go then."""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from retrysafe.admin.archive import FORMAT
from retrysafe.admin.sweeper import Sweeper
from retrysafe.backends.backend import Backend
from retrysafe.backends.sql.outbox_operating import SqlPublished
from retrysafe.messaging.outbox import outbox_of
from retrysafe.protocol.durations import seconds as seconds_of
from retrysafe.protocol.events import Observer
from retrysafe.protocol.messages import Envelope
from retrysafe.protocol.records import Duration

Kept = tuple[int, Envelope]
"""A message that has left, with its number in the outbox."""


class OutboxSweeper(Sweeper):
    """Removes messages that were kept (``Relay(keep_published=True)``) and left longer ago than ``older_than``, in
    batches.

    It is used as a `Sweeper` is, with its arguments. ``archive`` is called with numbers and envelopes, before they are
    removed: ``JsonLines(path, line=retrysafe.messaging.relay.retention.line)``, or a function of yours.
    """

    def __init__(
        self,
        store: Any,
        *,
        older_than: Duration,
        every: Duration = "1h",
        batch: int = 1000,
        pause: Duration = "10ms",
        archive: Callable[[Sequence[Any]], object] | Callable[[Sequence[Any]], Awaitable[object]] | None = None,
        observers: Iterable[Observer] | None = None,
    ) -> None:
        self._age = seconds_of(older_than, "older_than")
        super().__init__(store, every=every, batch=batch, pause=pause, archive=archive, observers=observers)

    def _swept(self, backend: Backend) -> Any:
        _, store = outbox_of(backend)
        return SqlPublished(store, self._age)


def line(kept: Kept) -> str:
    """A message as one line of JSON: its CloudEvents attributes, its payload in base64."""
    number, envelope = kept
    payload = base64.b64encode(envelope.payload).decode("ascii")
    plain = {"format": FORMAT, "number": number, **envelope._asdict(), "payload": payload}
    return json.dumps(plain, ensure_ascii=True, separators=(",", ":"))
