"""Records as people and programs read them. Times are in UTC; payloads appear by the names of their parts only."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any

from retrysafe.claims.encryption import MEDIA_TYPE, label_of
from retrysafe.errors import ResultUnreadable
from retrysafe.protocol import fingerprint
from retrysafe.protocol.decisions import Decision
from retrysafe.protocol.records import EffectiveState, Micros, Record, StoredResult
from retrysafe.protocol.retry_table import ANSWERS, WITHHELD, possible, retry
from retrysafe.protocol.transitions import Transition

LONGEST_RESULT = 65_536
"""Bytes of a result that `keys show --result` prints."""

_UNITS = ((86_400.0, "d"), (3600.0, "h"), (60.0, "m"), (1.0, "s"))
_WINDOWED = (EffectiveState.COMPLETED, EffectiveState.FAILED, EffectiveState.RELEASED)
_NEXT: dict[Transition, tuple[str, str]] = {
    Transition.RESOLVE_COMPLETED: (
        "resolve {name} --as completed --result JSON",
        "Its effect happened; retries get this result",
    ),
    Transition.RESOLVE_FAILED: (
        "resolve {name} --as failed --result TEXT",
        "Its effect will never happen; retries get StoredFailure",
    ),
    Transition.RESOLVE_RELEASED: ("release {name}", "Its effect did not happen; the next attempt runs the work"),
    Transition.EXPIRE: ("expire {name}", "Run the work again on its next use"),
}


def instant(micros: Micros) -> str:
    """An instant of the store as ISO 8601, in UTC."""
    return datetime.fromtimestamp(micros / 1e6, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def duration(seconds: float) -> str:
    """A duration in its largest fitting unit."""
    for size, unit in _UNITS:
        if abs(seconds) >= size:
            return f"{seconds / size:.1f}".removesuffix(".0") + f" {unit}"
    return f"{seconds:.1f} s"


def answer(record: Record) -> str:
    """Describe the answer to a retry with the same payload."""
    met = retry(record)
    if met is Decision.REPLAY and record.result is not None and record.result.body is None:
        return WITHHELD
    if retry(record, "refuse") is not met:
        return f"{ANSWERS[met]}; {ANSWERS[retry(record, 'refuse')]} where on_expired='refuse'"
    return ANSWERS[met]


def next_steps(record: Record, store: str = "") -> list[dict[str, str]]:
    """The commands that apply to a record, each with its purpose."""
    name = f"--hash {record.key.hex()}{store}"
    return [
        {"command": f"retrysafe keys {command.format(name=name)}", "when": when}
        for command, when in (_NEXT[event] for event in possible(record))
    ]


def summary(record: Record) -> dict[str, Any]:
    """A record in a list."""
    return {
        "key_hash": record.key.hex(),
        "boundary": record.boundary,
        "operation": record.operation,
        "scope": record.scope,
        "effective_state": record.effective_state.value,
        "attempts": record.attempts,
        "effects": record.effects,
        "updated": instant(record.updated),
        "age": (record.now - record.updated) / 1e6,
    }


def details(record: Record) -> dict[str, Any]:
    """A record in full, without its result."""
    state = record.effective_state
    running = state in (EffectiveState.RUNNING, EffectiveState.LAPSED)
    return {
        **summary(record),
        "state": record.state.value,
        "attempt": record.attempt,
        "token": record.token,
        "version": record.version,
        "lease_left": record.lease_left if running else None,
        "window_left": (record.expires - record.now) / 1e6 if state in _WINDOWED else None,
        "lease_until": instant(record.lease_until) if running else None,
        "created": instant(record.created),
        "expires": instant(record.expires),
        "tombstone_until": instant(record.tombstone_until),
        "store_time": instant(record.now),
        "payload_parts": list(fingerprint.names(record.fingerprint)),
        "retry": answer(record),
    }


def result(stored: StoredResult) -> dict[str, Any]:
    """A stored result as text if it is UTF-8, else in base64, cut to `LONGEST_RESULT` bytes."""
    shown: dict[str, Any] = {"media_type": stored.media_type, "codec_version": stored.codec_version}
    if stored.body is None:
        return {**shown, "withheld": True}
    if stored.media_type == MEDIA_TYPE:
        return shown | _encrypted(stored)
    body = stored.body[:LONGEST_RESULT]
    shown |= {"bytes": len(stored.body), "truncated": len(stored.body) > len(body)}
    try:
        return {**shown, "text": body.decode()}
    except UnicodeDecodeError:
        return {**shown, "base64": base64.b64encode(body).decode()}


def _encrypted(stored: StoredResult) -> dict[str, Any]:
    """Size, key id and media type of an encrypted result."""
    shown: dict[str, Any] = {"bytes": len(stored.body or b"")}
    try:
        label = label_of(stored)
    except ResultUnreadable as unreadable:
        return {**shown, "encrypted": unreadable.detail}
    return {**shown, "encrypted_with": label.key_id, "encrypted_media_type": label.media_type}
