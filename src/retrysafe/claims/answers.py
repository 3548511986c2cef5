"""What a record that was found means for the caller: the stored result, or an error that says why there is none."""

from __future__ import annotations

from typing import Any

from retrysafe.claims.codec import decode_failure
from retrysafe.claims.encryption import MEDIA_TYPE as ENCRYPTED
from retrysafe.claims.encryption import Bound, opened
from retrysafe.claims.observers import AttemptEvents
from retrysafe.claims.settings import BoundarySettings
from retrysafe.errors import (
    KeyExpired,
    KeyReused,
    OutcomeUnknown,
    ResultUnreadable,
    RetrysafeError,
    StoredFailure,
)
from retrysafe.protocol import fingerprint
from retrysafe.protocol.decisions import Decision
from retrysafe.protocol.records import ClaimRequest, Record, StoredResult


def stored_result(
    settings: BoundarySettings, request: ClaimRequest, record: Record, annotation: Any, events: AttemptEvents
) -> Any:
    """The result of an earlier attempt; raises `ResultUnreadable` or `ResultNotEncodable` if it cannot be read."""
    return settings.codec.decode(_decrypted(settings, request, record, events), annotation)


def refusal(
    settings: BoundarySettings, request: ClaimRequest, decision: Decision, record: Record, events: AttemptEvents
) -> RetrysafeError:
    """The error for a caller whose key is neither free nor has a result."""
    if decision is Decision.REPLAY_FAILURE:
        kind, message, data = decode_failure(_decrypted(settings, request, record, events))
        events.emit("failure_replayed", error_type=kind)
        return StoredFailure(kind, message, data)
    if decision is Decision.REUSED:
        given = fingerprint.beside(record.fingerprint, request.payload)
        differing = fingerprint.differing(record.fingerprint, given)
        events.emit("mismatch", differing=differing)
        return KeyReused(f"The payload differs in: {', '.join(differing)}.", differing=differing)
    if decision is Decision.EXPIRED:
        events.emit("expired_refused")
        return KeyExpired()
    events.emit("unknown_refused")
    return OutcomeUnknown()


def _decrypted(
    settings: BoundarySettings, request: ClaimRequest, record: Record, events: AttemptEvents
) -> StoredResult:
    """The answer as its codec wrote it."""
    stored = record.result
    assert stored is not None
    if settings.encryption is None and stored.media_type != ENCRYPTED:
        return stored
    try:
        return opened(settings.encryption, stored, Bound.of(request, record.state))
    except ResultUnreadable as unreadable:
        events.emit("unreadable", reason=unreadable.detail)
        raise
