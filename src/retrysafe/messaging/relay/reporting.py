"""The events of relays and operators of an outbox: published and dead messages, and the backlog."""

from __future__ import annotations

import hashlib
from typing import Any

from retrysafe.claims.observers import Observers
from retrysafe.messaging.relay.procedures import OutboxStatus
from retrysafe.protocol.messages import Queued, RelaySeen
from retrysafe.protocol.publish_policy import PublishOutcome

NAME = "retrysafe.outbox"


class Reporter:
    """Tells observers."""

    def __init__(self, observers: Observers) -> None:
        self._observers = observers

    def concluded(self, verdict: PublishOutcome, seconds: float) -> None:
        """A wave was published, and what became of it is written down."""
        if verdict.gone:
            lag = max((one.now - one.created) / 1e6 for one in verdict.gone) + seconds
            self._emit("relayed", None, messages=len(verdict.gone), lag=round(lag, 6), seconds=round(seconds, 6))
        for delay in verdict.delayed:
            if delay.counted:
                name = "parked" if delay.seconds is None else "publish_delayed"
                self._emit(name, delay.queued, error=delay.error, attempts=delay.queued.finished + 1)
        for queued, error in verdict.dead:
            attempts = max(queued.started, queued.finished + 1)
            self._emit("dead_lettered", queued, side="outbox", error=error, attempts=attempts)

    def emit(self, name: str, **fields: Any) -> None:
        """A destination takes nothing, or takes messages again."""
        self._emit(name, None, **fields)

    def failed(self, error: BaseException) -> None:
        """A relay could not go on."""
        self._emit("relay_failed", None, error=str(error) or type(error).__name__)

    def lost(self, relay: RelaySeen) -> None:
        """A relay has said nothing for so long that it is taken for gone."""
        self._emit("relay_lost", None, relay=relay.name, silent=round(relay.silent, 3))

    def uncounted(self, error: Exception) -> None:
        """Report that the backlog could not be counted."""
        self._emit("backlog_uncounted", None, error=str(error))

    def stands(self, standing: OutboxStatus, stalled_after: float) -> None:
        """How an outbox stands; an alarm where messages are due for longer than ``alarm`` seconds."""
        fields = {"due": standing.due, "oldest_due": round(standing.oldest_due, 3), "relays": standing.alive}
        more = {"messages": standing.messages, "oldest": round(standing.oldest, 3), "dead": standing.dead}
        self._emit("backlog", None, **fields, **more)
        if standing.oldest_due > stalled_after:
            self._emit("backlog_stalled", None, **fields)

    def operated(self, name: str, **fields: Any) -> None:
        """What a person has done."""
        self._emit(name, None, **fields)

    def _emit(self, name: str, queued: Queued | None, **fields: Any) -> None:
        if queued is None:
            self._observers.emit(name, NAME, "", b"", "", fields)
            return
        key = hashlib.sha256(queued.envelope.id.encode()).digest()
        self._observers.emit(name, NAME, queued.envelope.type, key, "", {"topic": queued.envelope.topic, **fields})
