"""The presence of relays: each writes a sign of life at intervals, and one of them reports the backlog."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable

from retrysafe.errors import ConfigurationError, StoreUnavailable
from retrysafe.messaging.relay.procedures import attend, standing
from retrysafe.messaging.relay.reporting import Reporter
from retrysafe.protocol.asks import Steps, ask
from retrysafe.protocol.message_stores import OperableOutbox

EVERY = 10.0
"""Seconds between two signs of life; after `retrysafe.messaging.relay.procedures.GONE` without one a relay is gone."""
SHARE = 4.0
"""How many times as long as a look at the outbox has taken its relay works before the next one."""


class Presence:
    """The signs of life of one relay, and its name."""

    def __init__(
        self,
        outbox: OperableOutbox,
        reporter: Reporter,
        hold: str,
        stalled_after: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._outbox, self._reporter, self._hold, self._alarm, self._clock = (
            outbox,
            reporter,
            hold,
            stalled_after,
            clock,
        )
        self._name = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._next = self._next_look = 0.0

    def is_due(self) -> bool:
        """Whether a sign of life is due. The first caller that is told so has to write it."""
        now = self._clock()
        if now < self._next:
            return False
        self._next = now + EVERY
        return True

    def steps(self) -> Steps[None]:
        """Write a sign of life, and report the backlog if no other relay does.

        A count that fails is reported; one that takes long postpones the next, so that publishing goes on.
        """
        try:
            tells, gone = yield from attend(self._outbox, self._name, self._hold)
        except ConfigurationError:
            self._next = 0.0  # nothing is published before this is settled
            raise
        for relay in gone:
            self._reporter.lost(relay)
        began = self._clock()
        if not tells or began < self._next_look:
            return
        try:
            found = yield from standing(self._outbox)
        except StoreUnavailable as error:
            self._reporter.uncounted(error)
        else:
            self._reporter.stands(found, self._alarm)
        ended = self._clock()
        pause = SHARE * (ended - began)
        self._next_look = ended + pause if pause > EVERY else 0.0

    def farewell(self) -> Steps[None]:
        """Remove the sign of life, as the relay stops."""
        yield from ask(self._outbox.bye([self._name]))
