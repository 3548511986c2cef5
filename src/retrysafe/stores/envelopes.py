"""Envelopes in tables: the columns that outboxes and inboxes have in common, written and read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from retrysafe.types import Envelope

ENVELOPE: tuple[str, ...] = (
    "message_id",
    "topic",
    "message_key",
    "message_type",
    "source",
    "sequence",
    "headers",
    "payload",
    "media_type",
)


def values_of(envelope: Envelope) -> tuple[Any, ...]:
    """An envelope as the values of those columns."""
    headers = json.dumps(dict(envelope.headers), ensure_ascii=True, separators=(",", ":"))
    return (
        *(envelope.id, envelope.topic, envelope.key, envelope.type, envelope.source, envelope.sequence),
        *(headers, envelope.payload, envelope.media_type),
    )


def envelope_in(fields: Mapping[str, Any]) -> Envelope:
    """The envelope of a row, by its columns."""
    sequence = fields["sequence"]
    return Envelope(
        id=fields["message_id"],
        topic=fields["topic"],
        key=fields["message_key"],
        type=fields["message_type"],
        source=fields["source"],
        sequence=None if sequence is None else int(sequence),
        headers=json.loads(fields["headers"]),
        payload=bytes(fields["payload"]),
        media_type=fields["media_type"],
    )
