"""The presence of relays: each writes a sign of life at intervals, and one of them reports the backlog."""

from __future__ import annotations

import hashlib
import socket
import time
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

from retrysafe.claims.observers import Observers
from retrysafe.errors import ConfigurationError, StoreUnavailable
from retrysafe.messaging.relay.procedures import OutboxStatus, attend, measure
from retrysafe.protocol.message_stores import OperableOutbox
from retrysafe.protocol.messages import Envelope, RelaySeen
from retrysafe.protocol.publish_policy import PublishOutcome
from retrysafe.protocol.requests import Program, ask
from retrysafe.runtime import InstanceId

NAME = "retrysafe.outbox"


class Reporter:
    def __init__(self, observers: Observers) -> None:
        self._observers = observers
        self._holders: list[str] = []

    def report_created(self, envelopes: Iterable[Envelope]) -> None:
        for envelope in envelopes:
            fields = {"message_id": envelope.id, "event_type": envelope.type, "aggregate_id": envelope.key or ""}
            self._emit("message_created", envelope, **fields)

    def report_outcome(self, verdict: PublishOutcome, seconds: float, destination: Callable[[Envelope], str]) -> None:
        """A wave was published, and what became of it is written down; ``destination`` names where messages went."""
        if verdict.gone:
            lag = max([one.now - one.created for one in verdict.gone]) / 1e6 + seconds
            self._emit("relayed", None, messages=len(verdict.gone), lag=round(lag, 6), seconds=round(seconds, 6))
            self._each_relayed(verdict, seconds, destination)
        for delay in verdict.delayed:
            if delay.counted:
                name = "parked" if delay.seconds is None else "publish_delayed"
                self._emit(name, delay.queued.envelope, error=delay.error, attempts=delay.queued.finished + 1)
        for queued, error in verdict.dead:
            attempts = max(queued.started, queued.finished + 1)
            self._emit("dead_lettered", queued.envelope, side="outbox", error=error, attempts=attempts)

    def _each_relayed(self, verdict: PublishOutcome, seconds: float, destination: Callable[[Envelope], str]) -> None:
        if not self._observers.is_enabled("message_relayed"):
            return
        known = {queued.id for queued in verdict.duplicates}
        for queued in verdict.gone:
            envelope = queued.envelope
            self._emit(
                "message_relayed",
                envelope,
                message_id=envelope.id,
                destination=destination(envelope),
                confirmation="duplicate" if queued.id in known else "acked",
                lag=round((queued.now - queued.created) / 1e6 + seconds, 6),
            )

    def emit(self, name: str, **fields: Any) -> None:
        """Tell of what concerns no message."""
        self._emit(name, None, **fields)

    def report_failure(self, error: BaseException) -> None:
        first = str(error).partition("\n")[0]
        self._emit("relay_failed", None, error=first or type(error).__name__)

    def wants_status(self) -> bool:
        """Tell whether anything listens to the state of an outbox, which takes long to count."""
        return any(map(self._observers.is_enabled, ("backlog", "backlog_stalled", "cleanup_held")))

    def stands(self, standing: OutboxStatus, stalled_after: float) -> None:
        """Report the state of an outbox; and an alarm if messages are due for longer than ``stalled_after`` seconds."""
        messages, due, oldest, oldest_due = 0, 0, 0.0, 0.0
        for one in standing.backlog:
            messages, due = messages + one.messages, due + one.due
            oldest, oldest_due = max(oldest, one.oldest), max(oldest_due, one.oldest_due)
        fields = {"due": due, "oldest_due": round(oldest_due, 3), "relays": standing.alive}
        self._emit("backlog", None, **fields, messages=messages, oldest=round(oldest, 3), dead=standing.dead)
        if oldest_due > stalled_after:
            worst = max(standing.backlog, key=attrgetter("oldest_due"))
            self._emit("backlog_stalled", None, **fields, topic=worst.topic, error=standing.cause(worst))
        holders = [one.name for one in standing.holders]
        if holders and holders != self._holders:
            self._emit("cleanup_held", None, holder=holders[0], seconds=standing.holders[0].seconds)
        self._holders = holders

    def _emit(self, name: str, envelope: Envelope | None, **fields: Any) -> None:
        if envelope is None:
            self._observers.emit(name, NAME, "", b"", "", fields)
            return
        key = hashlib.sha256(envelope.id.encode()).digest()
        self._observers.emit(name, NAME, envelope.type, key, "", {"topic": envelope.topic, **fields})


EVERY = 10.0
"""Seconds between two signs of life; after `retrysafe.messaging.relay.procedures.GONE` without one a relay is gone."""
SHOWN = "@"
"""Stands in a relay's name before what it publishes to."""
SHARE = 4.0
"""The work of a relay between two looks at the outbox, as a multiple of the duration of the last one."""


_NOTHING = OutboxStatus([], [], [], 0, 0)
"""The status to report once when another relay takes over: else our last value would stand beside its."""


class Presence:
    def __init__(
        self,
        outbox: OperableOutbox,
        reporter: Reporter,
        hold: str,
        stalled_after: float,
        clock: Callable[[], float] = time.monotonic,
        *,
        to: str = "",
    ) -> None:
        self._to = to
        """The place of the broker, with a plus where the relay is restricted to some messages, as others see it."""
        self._differing: set[str] = set()
        self._outbox, self._reporter, self._hold = outbox, reporter, hold
        self._alarm, self._clock = stalled_after, clock
        self._name = InstanceId(f"{socket.gethostname()}:")
        self.reset()

    def reset(self) -> None:
        """Begin a run: it says at once that it is there, and looks who else is."""
        self._next = self._next_look = 0.0
        self._has_told = False

    def is_due(self) -> bool:
        """Tell whether a sign of life is due. The first caller that is told so has to write it."""
        now = self._clock()
        if now < self._next:
            return False
        self._next = now + EVERY
        return True

    def steps(self) -> Program[None]:
        """Write a sign of life, and report the backlog if no other relay does.

        A count that fails is reported; one that takes long postpones the next, so that publishing goes on.
        """
        try:
            name = self.name
            relays, gone = yield from attend(self._outbox, name, self._hold)
        except ConfigurationError:
            self._next = 0.0  # nothing is published before this is settled
            raise
        self._reporter.emit("relay_seen")
        for relay in gone:
            self._reporter.emit("relay_lost", relay=relay.name, silent=round(relay.silent, 3))
        others = [relay for relay in relays if relay.name != name]
        tells = not others or name < min(relay.name for relay in others)
        self._compare(others)
        began = self._clock()
        if self._has_told and not tells:  # else its gauges would say for ever what was so then
            self._has_told = False
            self._reporter.stands(_NOTHING, self._alarm)
        if not tells or began < self._next_look or not self._reporter.wants_status():
            return
        try:
            found = yield from measure(self._outbox, relays, [])
        except StoreUnavailable as error:
            self._reporter.emit("backlog_uncounted", error=str(error))
        else:
            self._has_told = True
            self._reporter.stands(found, self._alarm)
        ended = self._clock()
        pause = SHARE * (ended - began)
        self._next_look = ended + pause if pause > EVERY else 0.0

    def farewell(self) -> Program[None]:
        """Remove the sign of life, as the relay stops."""
        yield from ask(self._outbox.bye([self.name]))

    @property
    def name(self) -> str:
        """The name of this process's relay, and what it publishes to."""
        return f"{self._name}{SHOWN}{self._to}" if self._to else str(self._name)

    def _compare(self, others: Iterable[RelaySeen]) -> None:
        """Tell of relays that publish to another broker, unless both are restricted to messages of their own.

        Each of the two publishes whatever it finds: messages would leave by the wrong one, and be gone.
        """
        for other in others:
            _, _, to = other.name.partition(SHOWN)
            alike = to.removesuffix("+") == self._to.removesuffix("+")
            apart = to.endswith("+") and self._to.endswith("+")
            if to and self._to and not alike and not apart and other.name not in self._differing:
                self._differing.add(other.name)
                self._reporter.emit(
                    "relays_differ", relay=other.name, publishes_to=to.partition("#")[0].removesuffix("+")
                )
