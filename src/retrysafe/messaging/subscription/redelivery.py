"""Whether an inbox remembers messages for as long as its broker may hand them out again."""

from __future__ import annotations

from typing import Any

from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers.base import Consumer
from retrysafe.messaging.inbox.handler import Handler


class RetentionCheck:
    """Compares the window of an inbox with its broker's, once it is known.

    A consumer knows what it was told at once, and what it reads from its broker when it has first received.
    """

    def __init__(self, consumer: Consumer, handler: Handler[..., Any]) -> None:
        self._consumer, self._handler = consumer, handler
        self._done = False
        if consumer.redelivery_window is not None:
            self.check()

    def check(self) -> None:
        """Raise `ConfigurationError` when the broker may hand out a message again that the inbox has forgotten.

        Where nobody can tell, it emits an event. Further calls do nothing.
        """
        if self._done:
            return
        boundary, redelivery_window = self._handler.setting.entry, self._consumer.redelivery_window
        if redelivery_window is None:
            self._handler.emit("retention_unknown", window=boundary.window)
        elif boundary.window < redelivery_window:
            raise ConfigurationError(
                f"window= of boundary {boundary.name!r} is {boundary.window / 3600:g} h, and the broker may hand a "
                f"message out again for {redelivery_window / 3600:g} h: it would be handled twice. Make the window "
                "longer, or let the broker keep messages for a shorter time."
            )
        self._done = True
