"""The outbox in SQL: messages written in the caller's transaction."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from retrysafe.core.lanes import bucket, lane
from retrysafe.ports import Ask, Rows
from retrysafe.stores.sql import SqlStore
from retrysafe.types import Envelope

TABLE = "retrysafe_outbox"
AT_ONCE = 200
"""How many messages one statement writes: databases bound its parameters."""

_COLUMNS = (
    "bucket",
    "lane",
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


class SqlOutbox:
    """What to ask about messages, in the words of a store's dialect. Every method is pure."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    def add(self, envelopes: Sequence[Envelope]) -> list[Ask[None]]:
        """Write messages, in this order."""
        return [self._add(envelopes[start : start + AT_ONCE]) for start in range(0, len(envelopes), AT_ONCE)]

    def _add(self, envelopes: Sequence[Envelope]) -> Ask[None]:
        params: dict[str, Any] = {}
        rows: list[str] = []
        for i, envelope in enumerate(envelopes):
            params |= {f"{name}{i}": value for name, value in zip(_COLUMNS, _values(envelope), strict=True)}
            placed = ", ".join(self._store.p(name, f"{name}{i}") for name in _COLUMNS)
            rows.append(f"({placed}, {self._store.NOW})")
        sql = f"INSERT INTO {TABLE} ({', '.join(_COLUMNS)}, created) VALUES {', '.join(rows)}"
        return Ask(self._store.query(sql, params), _nothing)


def _values(envelope: Envelope) -> tuple[Any, ...]:
    of = lane(envelope.topic, envelope.key, envelope.id)
    headers = json.dumps(dict(envelope.headers), ensure_ascii=True, separators=(",", ":"))
    return (
        *(bucket(of), of, envelope.id, envelope.topic, envelope.key, envelope.type, envelope.source),
        *(envelope.sequence, headers, envelope.payload, envelope.media_type),
    )


def _nothing(answer: Rows) -> None:
    return None
