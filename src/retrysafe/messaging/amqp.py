"""A message of AMQP 0-9-1 as an envelope: the attributes of a CloudEvent are in its headers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retrysafe.messaging.cloudevents import received
from retrysafe.types import Envelope

PREFIX = "cloudEvents:"
"""Of the headers, as in the AMQP binding of CloudEvents 1.0.2, section 3.1.3."""
_UNDERSCORED = "cloudEvents_"
"""The other prefix that the binding allows, just as long."""


def envelope_from(
    headers: Mapping[str, Any], properties: Mapping[str, str | None], body: bytes, queue: str
) -> Envelope:
    """The envelope of a message from a queue; ``properties`` are attributes that the message's own properties tell."""
    given = {name: value for name, value in properties.items() if value}
    for name, field in headers.items():
        if name.startswith((PREFIX, _UNDERSCORED)):
            given[name[len(PREFIX) :]] = field.decode(errors="replace") if isinstance(field, bytes) else str(field)
    return received(given, body, queue)
