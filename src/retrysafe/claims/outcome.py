"""The end of guarded work, and the meaning of a stored outcome for a later caller.

The first half turns a record that a claim met into the stored result, or into the error that says why there is none;
the second half turns the end of a handler into the settlement of the record and the result to be stored.
"""

from __future__ import annotations

from typing import Any

from retrysafe.claims.codec import MEDIA_TYPE as JSON
from retrysafe.claims.codec import AnswerCodec, Codec, JSONCodec, decode_failure, encode_failure, require_body
from retrysafe.claims.notes import MARK, without_note
from retrysafe.claims.observers import AttemptEvents
from retrysafe.claims.sealing import MEDIA_TYPE as ENCRYPTED
from retrysafe.claims.sealing import Bound, unseal
from retrysafe.claims.settings import BoundarySettings
from retrysafe.errors import (
    KeyExpired,
    KeyReused,
    OutcomeUnknown,
    Postponed,
    ResultNotEncodable,
    ResultUnreadable,
    RetrysafeError,
    StoredFailure,
)
from retrysafe.protocol import fingerprint
from retrysafe.protocol.decisions import Decision
from retrysafe.protocol.exception_groups import every, leaves, unwrap
from retrysafe.protocol.outcomes import (
    Answered,
    Ending,
    ModeKind,
    Settlement,
    ending_of_answer,
    ending_of_error,
    settlement_of,
)
from retrysafe.protocol.records import ClaimRequest, Record, State, StoredResult
from retrysafe.protocol.transitions import Transition


def load_result(
    settings: BoundarySettings, request: ClaimRequest, record: Record, annotation: Any, events: AttemptEvents
) -> Any:
    """The result of an earlier attempt.

    Raises `ResultUnreadable` if it cannot be read, and `ResultNotEncodable` if the attempt could not store it.
    """
    given = record.result is not None and MARK in record.result.media_type
    try:
        return decode_result(settings.codec, _decrypt(settings, request, record), annotation, given=given)
    except ResultUnreadable as unreadable:
        events.emit("unreadable", reason=unreadable.detail)
        raise


def is_answer(settings: BoundarySettings, request: ClaimRequest, record: Record) -> bool:
    """Tell whether a stored failure is an answer of the kind that retries get, as an HTTP response is."""
    codec = settings.codec
    try:
        return isinstance(codec, AnswerCodec) and _decrypt(settings, request, record).media_type == codec.media_type
    except ResultUnreadable:
        return False


def refusal(
    settings: BoundarySettings, request: ClaimRequest, decision: Decision, record: Record, events: AttemptEvents
) -> RetrysafeError:
    """The error for a caller whose key is neither free nor has a result."""
    if decision is Decision.REPLAY_FAILURE:
        try:
            kind, message, data = decode_failure(_decrypt(settings, request, record))
        except ResultUnreadable as unreadable:
            unreadable.failed = True
            events.emit("unreadable", reason=unreadable.detail)
            raise
        events.emit("failure_replayed", error_type=kind)
        return StoredFailure(kind, message, data)
    if decision is Decision.REUSED:
        given = request.fingerprint
        if request.payload is not None:
            given = settings.fingerprint_secrets.count_as(record.fingerprint, request.payload, record.key) or given
        differing = fingerprint.differing(record.fingerprint, given)
        events.emit("mismatch", differing=differing)
        return KeyReused(f"The payload differs in: {', '.join(differing)}.", differing=differing)
    if decision is Decision.EXPIRED:
        events.emit("expired_refused")
        return KeyExpired()
    try:
        reason = reason_of_doubt(record, None if record.result is None else _decrypt(settings, request, record))
    except ResultUnreadable:
        reason = ""
    events.emit("unknown_refused", **({"reason": reason} if reason else {}))
    return OutcomeUnknown(reason)


def reason_of_doubt(record: Record, stored: StoredResult | None) -> str:
    """The `OutcomeUnknown` by which an attempt ended, such as of a step in doubt; empty if another error ended it.

    ``stored``: the result of the record, decrypted as far as it can be.
    """
    if record.state is not State.UNKNOWN or stored is None or stored.body is None or stored.media_type != JSON:
        return ""
    try:
        kind, message, _ = decode_failure(stored)
    except ResultUnreadable:
        return ""
    reason = message.partition("\n")[0]
    return reason if kind == OutcomeUnknown.__name__ and not str(OutcomeUnknown()).startswith(reason) else ""


def _decrypt(settings: BoundarySettings, request: ClaimRequest, record: Record) -> StoredResult:
    """The answer as its codec wrote it."""
    stored = record.result
    if stored is None or MARK in stored.media_type:
        stored = without_note(stored)
    assert stored is not None
    if settings.encryption is None and stored.media_type != ENCRYPTED:
        return stored
    return unseal(settings.encryption, stored, Bound.of(request, record.state))


class HandlerSignals:
    """The signals of a handler or a probe about the effect."""

    committed = False
    not_executed = False
    failure: BaseException | None = None
    answered: tuple[Answered, str] = (Answered.DONE, "")


NO_SIGNALS = HandlerSignals()
"""The signals of a handler that gave none."""


_RETURNED = (Ending.RETURNED, Settlement(Transition.COMPLETE))


class WorkOutcome:
    """The end of the block: its kind, settlement and stored result, and the reason why there is none."""

    __slots__ = ("ending", "settlement", "stored", "unencodable")

    def __init__(
        self,
        ending: Ending,
        settlement: Settlement,
        stored: StoredResult | None,
        unencodable: ResultNotEncodable | None = None,
    ) -> None:
        self.ending = ending
        self.settlement = settlement
        self.stored = stored
        self.unencodable = unencodable


def end_of(
    signals: HandlerSignals,
    error: BaseException | None,
    mode: ModeKind,
    settings: BoundarySettings,
    result: Any,
    annotation: Any,
) -> WorkOutcome:
    """Judge the end of a block that raised ``error``, or None and left ``result``."""
    ending, settlement = _RETURNED
    if error is not None or signals is not NO_SIGNALS:
        judged = _judge(signals, error, mode, settings)
        if isinstance(judged, WorkOutcome):
            return judged
        ending, settlement = judged
    try:
        return WorkOutcome(
            ending, settlement, encode_result(settings.codec, result, annotation, settings.largest_result)
        )
    except ResultNotEncodable as refused:
        ending = Ending.UNENCODABLE
        return WorkOutcome(ending, settlement_of(ending, mode), StoredResult(None, "", 0), refused)


def _judge(
    signals: HandlerSignals, error: BaseException | None, mode: ModeKind, settings: BoundarySettings
) -> WorkOutcome | tuple[Ending, Settlement]:
    """The outcome of work that failed or was declared so; else how it ended, and that its result is stored."""
    largest = settings.largest_result
    if signals.failure is not None:
        ending = Ending.DECLARED
        return WorkOutcome(ending, settlement_of(ending, mode), encode_error(signals.failure, largest))
    postponed = isinstance(error, Postponed)
    said = {"committed": signals.committed, "not_executed": signals.not_executed or postponed}
    if error is not None:
        ending = ending_of_error(permanent=is_permanent(error, settings), **said)
        settlement = settlement_of(ending, mode)
        return WorkOutcome(
            ending, settlement, None if settlement.event is Transition.RELEASE else encode_error(error, largest)
        )
    answered, reason = signals.answered
    ending = ending_of_answer(answered, **said)
    settlement = settlement_of(ending, mode)
    if settlement.event is Transition.COMPLETE:
        return ending, settlement
    stored = encode_failure("Failure", reason, None) if settlement.event is Transition.DOUBT else None
    return WorkOutcome(ending, settlement, stored)


def verdict_of_probe(
    signals: HandlerSignals, settings: BoundarySettings, result: Any, annotation: Any
) -> tuple[Transition, StoredResult | None] | None:
    """The transition and result that a probe's answer leads to; None if it could not tell."""
    if signals.failure is not None:
        return Transition.RESOLVE_FAILED, encode_error(signals.failure, settings.largest_result)
    if signals.committed:
        try:
            return Transition.RESOLVE_COMPLETED, encode_result(
                settings.codec, result, annotation, settings.largest_result
            )
        except ResultNotEncodable as error:
            raise OutcomeUnknown(f"The result of the probe cannot be stored. {error.detail}") from error
    return (Transition.RESOLVE_RELEASED, None) if signals.not_executed else None


def is_final(signals: HandlerSignals, error: BaseException | None, settings: BoundarySettings) -> bool:
    """Tell whether work failed for good: it declared that, raised a permanent error, or made a stored answer of one."""
    if signals.failure is not None:
        return True
    return signals.answered[0] is Answered.ABORTED if error is None else is_permanent(error, settings)


def is_permanent(error: BaseException, settings: BoundarySettings) -> bool:
    """Tell whether an error, or all errors of a group, are of ``permanent=`` types, and none passes by itself."""
    return every(error, settings.permanent) and not any(_is_passing(leaf, settings) for leaf in leaves(error))


def _is_passing(error: BaseException, settings: BoundarySettings) -> bool:
    """Tell whether an error may pass by itself, whatever ``permanent=`` says: a restart, or ours of an inner claim."""
    ours = isinstance(error, RetrysafeError) and not isinstance(error, StoredFailure)
    return settings.backend.restarts(error) or (ours and type(error) not in settings.permanent)


def encode_result(codec: Codec, result: Any, annotation: Any, largest: int | None) -> StoredResult:
    """Encode a result; whatever goes wrong in a codec is `ResultNotEncodable`, so that the key is settled."""
    try:
        stored = codec.encode(result, annotation)
    except ResultNotEncodable:
        raise
    except Exception as error:
        raise ResultNotEncodable(f"The codec failed: {error!r}") from error
    if largest is not None and not _fits(stored, largest):
        size = len(stored.body or b"")
        raise ResultNotEncodable(
            f"The result takes {size} bytes, and this store keeps up to {largest}. Store it elsewhere, and return its "
            "location"
        )
    return stored


def decode_result(codec: Codec, stored: StoredResult, annotation: Any, *, given: bool = False) -> Any:
    """Decode a stored result, which a person or a probe may have ``given``; whatever goes wrong is `ResultUnreadable`.

    Raises `ResultNotEncodable` for a result that was withheld, whichever codec it is: there is nothing to read.
    """
    if stored.body is None:
        require_body(stored)
    try:
        if given and isinstance(codec, JSONCodec):
            return codec.decode_given(stored, annotation)
        return codec.decode(stored, annotation)
    except ResultUnreadable:
        raise
    except ResultNotEncodable as error:  # as codecs do that are older than `ResultUnreadable`
        raise ResultUnreadable(error.detail) from error
    except Exception as error:
        raise ResultUnreadable(f"The codec failed: {error!r}") from error


def encode_error(error: BaseException, largest: int | None) -> StoredResult:
    """An error as a stored failure; what of it cannot be read, encoded or kept by the store is left out.

    Of a group with one error, that is stored; of several, the data is a list of their types, messages and data.
    """
    kind, message, data = _describe(unwrap(error))
    stored = encode_failure(kind, message, data)
    if _fits(stored, largest):
        return stored
    shown = f"{message[:_SHORTENED]}… (shortened: the store keeps up to {largest} bytes)"
    return encode_failure(kind, shown, None)


def _describe(error: BaseException) -> tuple[str, str, Any]:
    if not isinstance(error, BaseExceptionGroup):
        return type(error).__name__, _text(error), _data(error)
    parts = [_describe(leaf) for leaf in leaves(error)]
    message = "; ".join(f"{kind}: {text}" for kind, text, _ in parts)
    data = [{"type": kind, "message": text, "data": given} for kind, text, given in parts]
    return type(error).__name__, f"{len(parts)} errors: {message}", data


def _data(error: BaseException) -> Any:
    """The ``data`` of an error, if it has such, and it can be read and encoded."""
    try:
        data = getattr(error, "data", None)
        JSONCodec().encode(data, None)
    except Exception:  # noqa: BLE001 - the failure itself must be kept, whatever its data does
        return None
    return data


def failure_as_stored(error: BaseException, largest: int | None) -> StoredFailure:
    """Return the first caller's error of a declared failure: the one that retries get from the store."""
    return StoredFailure(*decode_failure(encode_error(error, largest)))


_SHORTENED = 1000
"""The number of characters that are kept of a failure's text if it is too large for its store."""


def _fits(stored: StoredResult, largest: int | None) -> bool:
    return largest is None or len(stored.body or b"") <= largest


def _text(error: BaseException) -> str:
    try:
        return str(error).encode("utf-8", "backslashreplace").decode()
    except Exception:  # noqa: BLE001 - an error whose text raises still has a type
        return "(its text could not be read)"
