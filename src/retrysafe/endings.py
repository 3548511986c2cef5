"""How guarded work ended: what was said of it, what becomes of its record, and what is stored."""

from __future__ import annotations

from typing import Any, NamedTuple

from retrysafe.codec import encode_failure
from retrysafe.core.outcomes import Ending, Ground, Verdict, ending_of_error, verdict
from retrysafe.core.transitions import Event
from retrysafe.errors import ResultNotEncodable
from retrysafe.terms import Terms
from retrysafe.types import Stored


class Said:
    """What the handler, or a probe, said about the effect."""

    __slots__ = ("committed", "failure", "not_executed")

    def __init__(self) -> None:
        self.committed = False
        self.not_executed = False
        self.failure: BaseException | None = None


class End(NamedTuple):
    """How the block ended, what that means, what to store, and why a result cannot be stored."""

    ending: Ending
    word: Verdict
    stored: Stored | None
    unencodable: ResultNotEncodable | None = None


def end_of(said: Said, error: BaseException | None, ground: Ground, terms: Terms, result: Any, annotation: Any) -> End:
    """Judge the end of a block that raised ``error``, or None and left ``result``."""
    if said.failure is not None:
        return End(Ending.DECLARED, verdict(Ending.DECLARED, ground), encode_error(said.failure))
    if error is not None:
        permanent = isinstance(error, terms.permanent) and not terms.backend.restarts(error)
        ending = ending_of_error(permanent=permanent, committed=said.committed, not_executed=said.not_executed)
        word = verdict(ending, ground)
        return End(ending, word, None if word.event is Event.RELEASE else encode_error(error))
    try:
        stored = terms.codec.encode(result, annotation)
    except ResultNotEncodable as reason:
        return End(Ending.UNENCODABLE, verdict(Ending.UNENCODABLE, ground), Stored(None, "", 0), reason)
    return End(Ending.RETURNED, verdict(Ending.RETURNED, ground), stored)


def encode_error(error: BaseException) -> Stored:
    """An error as a stored failure; its ``data`` is kept if it can be encoded."""
    try:
        return encode_failure(type(error).__name__, str(error), getattr(error, "data", None))
    except ResultNotEncodable:
        return encode_failure(type(error).__name__, str(error), None)
