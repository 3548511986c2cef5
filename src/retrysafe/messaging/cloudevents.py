"""An envelope as the attributes of a CloudEvent, which every binding writes in its own place.

CloudEvents 1.0.2 (https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/spec.md); ``sequence`` and the trace are
its extensions "Sequence" and "Distributed Tracing".
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from retrysafe.types import Envelope

VERSION = "1.0"
OWN = ("specversion", "id", "source", "type", "subject", "sequence", "topic", "datacontenttype")


def attributes(envelope: Envelope) -> dict[str, str]:
    """The attributes by name, without the payload; headers are extensions."""
    found = {
        **envelope.headers,
        "specversion": VERSION,
        "id": envelope.id,
        "source": envelope.source,
        "type": envelope.type,
        "topic": envelope.topic,
        "datacontenttype": envelope.media_type,
    }
    if envelope.key is not None:
        found["subject"] = envelope.key
    if envelope.sequence is not None:
        found["sequence"] = str(envelope.sequence)
    return found


def received(given: Mapping[str, str], payload: bytes, topic: str) -> Envelope:
    """The envelope of what a broker hands out, whoever published it there.

    What has no ``id``, ``source`` or ``type`` has empty ones, for an inbox to judge; a sequence that is no number is
    none.
    """
    known = {"id": "", "source": "", "type": "", "topic": topic, **given}
    if not re.fullmatch(r"-?\d{1,18}", known.get("sequence", "0"), re.ASCII):
        del known["sequence"]
    return envelope_of(known, payload)


def envelope_of(given: Mapping[str, str], payload: bytes) -> Envelope:
    """The envelope that these attributes are of.

    Raises `KeyError` without ``id``, ``source`` or ``type``, and `ValueError` for a sequence that is no number.
    """
    sequence = given.get("sequence")
    return Envelope(
        id=given["id"],
        topic=given.get("topic", ""),
        key=given.get("subject"),
        type=given["type"],
        source=given["source"],
        sequence=None if sequence is None else int(sequence),
        headers={name: value for name, value in given.items() if name not in OWN},
        payload=payload,
        media_type=given.get("datacontenttype", "application/octet-stream"),
    )
