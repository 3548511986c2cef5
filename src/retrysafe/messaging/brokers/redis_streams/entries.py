"""An entry of a Redis stream as an envelope: a field for each attribute of a CloudEvent, and one for its payload."""

from __future__ import annotations

from collections.abc import Mapping

from retrysafe.messaging.cloudevents import ESCAPED, read_event
from retrysafe.protocol.messages import Envelope

PAYLOAD = "data"


def envelope_in(fields: Mapping[bytes, bytes], place: str) -> Envelope:
    """The envelope in the fields of an entry; ``place`` is the topic or partition of its stream."""
    given = {name.decode(errors=ESCAPED): value.decode(errors=ESCAPED) for name, value in fields.items()}
    given.pop(PAYLOAD, None)
    return read_event(given, fields.get(PAYLOAD.encode(), b""), place)
