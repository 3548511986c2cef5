"""Records as people and programs read them. Times are in UTC; payloads appear by the names of their parts only."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any

from retrysafe.backends.commands import WHY, Commands
from retrysafe.claims.attempt_ids import worker_of
from retrysafe.claims.codec import MEDIA_TYPE as JSON
from retrysafe.claims.notes import note_of, without_note
from retrysafe.claims.outcome import reason_of_doubt
from retrysafe.claims.responses import is_http
from retrysafe.claims.sealing import MEDIA_TYPE, label_of
from retrysafe.errors import ResultUnreadable
from retrysafe.protocol import fingerprint
from retrysafe.protocol.decisions import Decision
from retrysafe.protocol.records import LAPSED_AS, EffectiveState, Micros, Record, State, StoredResult
from retrysafe.protocol.retry_table import ANSWERS, WITHHELD, possible, retry
from retrysafe.protocol.transitions import Transition

LONGEST_RESULT = 65_536
"""Bytes of a result that `keys show --result` prints."""

LONGEST_END = 2000
"""Characters of each output of a command that `keys show` prints."""

_UNITS = ((86_400.0, "d"), (3600.0, "h"), (60.0, "m"), (1.0, "s"))
_WINDOWED = (EffectiveState.COMPLETED, EffectiveState.FAILED, EffectiveState.RELEASED)
_NEXT: dict[Transition, tuple[str, tuple[tuple[str, str], ...], str]] = {
    Transition.RESOLVE_COMPLETED: (
        "resolve",
        (("as", "completed"), ("result", "JSON")),
        "Its effect happened; retries get this result",
    ),
    Transition.RESOLVE_FAILED: (
        "resolve",
        (("as", "failed"), ("reason", WHY)),
        "Its effect will never happen; retries get StoredFailure, with the reason",
    ),
    Transition.RESOLVE_RELEASED: (
        "release",
        (("reason", WHY),),
        "Its effect did not happen; the next attempt runs the work",
    ),
    Transition.EXPIRE: ("expire", (), "Run the work again on its next use"),
}
"""The verb of `retrysafe keys` for each change, its options beside the key, and what it is for."""
_NEXT_OF_HTTP: dict[Transition, tuple[str, tuple[tuple[str, str], ...], str]] = {
    Transition.RESOLVE_COMPLETED: (
        "resolve",
        (("as", "completed"), ("status", "201"), ("content-type", "application/json"), ("body", "JSON")),
        "Its effect happened; retries get this response",
    ),
    Transition.RESOLVE_FAILED: (
        "resolve",
        (("as", "failed"), ("status", "409"), ("content-type", "text/plain"), ("body", WHY)),
        "Its effect will never happen; retries get this response",
    ),
}
"""The same for keys of HTTP requests, where that differs."""
_NEXT_OF_TEXT = (
    "resolve",
    (("as", "completed"), ("result", '"TEXT"')),
    "Its effect happened; retries get this text, or the object of a whole result",
)
"""To complete a key of an MCP tool, or of `retrysafe run`: both make a result of any JSON."""
_SETTLED = "It was settled as {state} by {by} at {at}{reason}. Retries get the answer that was given."
_ENDED = "Its window was ended by {by} at {at}{reason}."
_EXPLAINED = {
    EffectiveState.COMPLETED: "An attempt has completed, and its result is stored.",
    EffectiveState.FAILED: "An attempt has failed for good, and its failure is stored.",
    EffectiveState.RELEASED: "An attempt ended without an answer to keep, and has released the key.",
    EffectiveState.EXPIRED: "The window is over. The key itself is still remembered.",
    EffectiveState.FORGOTTEN: "The window and the memory of the key are over; a sweep removes the record.",
    EffectiveState.UNKNOWN: "Its attempt{worker} has ended, and it is not known whether its effect happened. Find out "
    "where the effect would be visible, and settle the key.",
}
_RUNNING = (
    "An attempt is at work{worker}, since {started}. Its lease lapses in {left} unless it is renewed. If its process "
    "is dead, "
)
_IF_DEAD = {
    EffectiveState.LAPSED: "the next attempt takes over then; there is nothing to do but to wait.",
    EffectiveState.UNKNOWN: "wait until then: nobody can tell by then whether its effect happened, and the key can be "
    "settled.",
}
RELEASING = (
    "The effect may have happened, or still happen if the attempt's process is only stalled. Once released, the next "
    "retry runs the work again: if the effect did happen, it happens twice."
)
_DIED = "The attempt{worker} stopped renewing its lease {ago} ago: its process has died or is stalled. "
_STOPPED = "The attempt{worker} stopped renewing its lease, which ended at {at}: its process has died, or was stalled. "
_LEFT = {
    EffectiveState.LAPSED: "The next attempt takes over, with the same derived keys; nothing needs to be settled.",
    EffectiveState.UNKNOWN: "Its effect may have happened: every retry is refused until the key is settled. Find out "
    "where the effect would be visible.",
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


def explain(record: Record) -> str:
    """Why a key is as it is, and what can be done about it now."""
    state, worker = record.effective_state, worker_of(record.attempt)
    named = "" if worker is None else f" on {worker.host}, pid {worker.pid},"
    if state is EffectiveState.RUNNING:
        told = _RUNNING.format(worker=named.rstrip(","), started=start_time(record), left=duration(record.lease_left))
        return told + _IF_DEAD[LAPSED_AS[record.effects]]
    if state is EffectiveState.LAPSED:
        return _DIED.format(worker=named, ago=duration(-record.lease_left)) + _LEFT[record.reported_state]
    note = note_of(record.result)
    if note is not None:
        told = note.reason and f", because: {note.reason.rstrip('.')}"
        settled = _SETTLED if record.state is not State.RELEASED else _SETTLED.partition(" Retries")[0]
        if state in (EffectiveState.EXPIRED, EffectiveState.FORGOTTEN) and record.expires == record.updated:
            settled = _ENDED
        said = settled.format(state=record.state.value, by=note.by, at=instant(record.updated), reason=told)
        return said if state in _WINDOWED else f"{said} {_EXPLAINED[state]}"
    if has_lapsed(record):
        return _STOPPED.format(worker=named, at=instant(record.lease_until)) + _LEFT[EffectiveState.UNKNOWN]
    reason = reason_of_doubt(record, record.result)
    return f"{_EXPLAINED[state].format(worker=named)}{reason and f' The attempt has said: {reason}.'}"


def has_lapsed(record: Record) -> bool:
    """Tell whether a later request made a key unknown, by finding that its attempt had lapsed; takes a whole record.

    An attempt that ends in doubt by itself stores why.
    """
    unanswered = record.state is State.UNKNOWN and record.result is None
    return unanswered and record.effects == "external" and record.lease_until <= record.updated


def _lapse(record: Record) -> str | None:
    if not has_lapsed(record):
        return None
    lapsed, found = instant(record.lease_until), instant(record.updated)
    return f"attempt {record.attempts} lapsed at {lapsed}; a later request found that at {found}, and made it unknown"


def start_time(record: Record) -> str:
    """Show the time at which the last attempt claimed the key: its fencing token, unless an earlier one was larger."""
    return instant(min(record.token, record.updated))


def next_steps(record: Record, commands: Commands, *, can_fail: bool = True) -> list[dict[str, str]]:
    """The commands that apply to a record, each with its purpose."""
    return [
        {"command": commands.line(f"keys {verb}", [("hash", record.key.hex()), *options]), "when": when}
        for verb, options, when in (
            _way(event, record)
            for event in possible(record)
            if (can_fail or event is not Transition.RESOLVE_FAILED)
            and (event is not Transition.EXPIRE or retry(record, "refuse") is not Decision.TAKE)  # which runs it anyway
        )
    ]


def _way(event: Transition, record: Record) -> tuple[str, tuple[tuple[str, str], ...], str]:
    if is_http(record.operation):
        return _NEXT_OF_HTTP.get(event, _NEXT[event])
    takes_text = record.operation.startswith("mcp ") or _is_command(record)
    return _NEXT_OF_TEXT if takes_text and event is Transition.RESOLVE_COMPLETED else _NEXT[event]


def _is_command(record: Record) -> bool:
    return record.boundary == record.operation == "run"


def end_of_command(record: Record) -> dict[str, Any]:
    """The exit code that `retrysafe run` has stored for a command, with the ends of its outputs if it failed."""
    stored = without_note(record.result) if _is_command(record) else None
    if stored is None or stored.body is None or stored.media_type != JSON:
        return {}
    end = json.loads(stored.body)
    types = {name: type(part) for name, part in end.items()} if isinstance(end, dict) else {}
    if types != {"code": int, "stdout": str, "stderr": str}:  # settled to something else
        return {}
    outputs = {name: end[name][-LONGEST_END:] for name in ("stdout", "stderr")} if end["code"] else {}
    return {"exit_code": end["code"], **outputs}


def summary(record: Record) -> dict[str, Any]:
    return {
        "key_hash": record.key.hex(),
        "boundary": record.boundary,
        "operation": record.operation,
        "scope": record.scope,
        "effective_state": record.reported_state.value,
        "attempts": record.attempts,
        "effects": record.effects,
        "updated": instant(record.updated),
        "age": (record.now - record.updated) / 1e6,
    }


def details(record: Record) -> dict[str, Any]:
    """A record in full, without its result."""
    state = record.effective_state
    running = state in (EffectiveState.RUNNING, EffectiveState.LAPSED)
    settled = not running and state is not EffectiveState.UNKNOWN  # an unknown key has no end until it is settled
    worker, note = worker_of(record.attempt), note_of(record.result)
    return {
        **summary(record),
        "state": record.state.value,
        "why": explain(record),
        "lapse": _lapse(record),
        "settled_by": None if note is None else note.by,
        "settled_because": None if note is None else note.reason,
        "host": None if worker is None else worker.host,
        "pid": None if worker is None else worker.pid,
        "started": start_time(record),
        "attempt": record.attempt,
        "token": record.token,
        "version": record.version,
        "lease_left": record.lease_left if state is EffectiveState.RUNNING else None,
        "window_left": (record.expires - record.now) / 1e6 if state in _WINDOWED else None,
        "lease_until": instant(record.lease_until) if running else None,
        "created": instant(record.created),
        "expires": instant(record.expires) if settled else None,
        "tombstone_until": instant(record.tombstone_until) if settled else None,
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
        return shown | _describe_encrypted(stored)
    body = stored.body[:LONGEST_RESULT]
    shown |= {"bytes": len(stored.body), "truncated": len(stored.body) > len(body)}
    try:
        return {**shown, "text": body.decode()}
    except UnicodeDecodeError:
        return {**shown, "base64": base64.b64encode(body).decode()}


def _describe_encrypted(stored: StoredResult) -> dict[str, Any]:
    shown: dict[str, Any] = {"bytes": len(stored.body or b"")}
    try:
        label = label_of(stored)
    except ResultUnreadable as unreadable:
        return {**shown, "encrypted": unreadable.detail}
    return {**shown, "encrypted_with": label.key_id, "encrypted_media_type": label.media_type}
