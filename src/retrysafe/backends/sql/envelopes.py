"""Envelopes in tables: the columns that outboxes and inboxes share, written and read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from retrysafe.backends.sql.store import SqlStore
from retrysafe.protocol.messages import Envelope

PAGE_BYTES = 4 << 20
"""Bytes of payloads and headers that a page of messages has, at most; one message always fits."""

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
    headers = json.dumps(dict(envelope.headers), ensure_ascii=True, separators=(",", ":"))
    return (
        *(envelope.id, envelope.topic, envelope.key, envelope.type, envelope.source, envelope.sequence),
        *(headers, envelope.payload, envelope.media_type),
    )


def page(store: SqlStore, columns: Iterable[str], source: str, order: Iterable[str]) -> str:
    """The first messages ``d`` of a source, in an order of what its columns say: parameters ``limit``, ``span_bytes``.

    Behind their columns is the instant of reading, so the source has the store's clock.
    """
    size = f"{store.BYTES}(d.payload) + {store.BYTES}(d.headers) AS size"
    names, by = ", ".join(f"d.{name}" for name in columns), ", ".join(order)
    page = f"SELECT {names}, t.now AS read_at, {size} FROM {source} ORDER BY {by} LIMIT {store.p('limit')}"
    summed = f"SELECT d.*, sum(d.size) OVER (ORDER BY {by}) AS upto FROM ({page}) AS d"
    fits = f"d.upto <= {store.p('limit', 'span_bytes')} OR d.upto = d.size"
    return f"SELECT {names}, d.read_at FROM ({summed}) AS d WHERE {fits} ORDER BY {by}"


def envelope_in(fields: Mapping[str, Any]) -> Envelope:
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
