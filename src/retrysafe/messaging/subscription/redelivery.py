"""Whether an inbox remembers messages for as long as its broker may hand them out again."""

from __future__ import annotations

from typing import Any

from retrysafe.errors import ConfigurationError
from retrysafe.messaging.brokers.base import Consumer
from retrysafe.messaging.inbox.handler import Handler


def check_retention(consumer: Consumer, handler: Handler[..., Any]) -> None:
    """Raise `ConfigurationError` when the broker may hand out a message again that the inbox has forgotten."""
    boundary, redelivery_window = handler.setting.entry, consumer.redelivery_window
    if redelivery_window is None:
        handler.emit("retention_unknown", window=boundary.window)
    elif boundary.window < redelivery_window:
        raise ConfigurationError(
            f"window= of boundary {boundary.name!r} is {boundary.window / 3600:g} h, and the broker may hand a "
            f"message out again for {redelivery_window / 3600:g} h: it would be handled twice. Make the window longer, "
            "or let the broker keep messages for a shorter time."
        )
