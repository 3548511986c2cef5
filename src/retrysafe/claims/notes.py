"""The operator of a settled key and the reason: kept at the end of the media type under which its answer is stored."""

from __future__ import annotations

import json
from typing import NamedTuple

from retrysafe.claims.codec import LONGEST_MEDIA_TYPE
from retrysafe.protocol.records import StoredResult

MARK = "; settled="
PROBE = "a probe"
"""The name of a probe in a note; all others are people, or programs of theirs."""
_SHORTENED = "…"


class Note(NamedTuple):
    """The operator of a settled key and the reason. The time is the record's: it was not written since."""

    by: str
    reason: str


def add_note(stored: StoredResult | None, by: str, reason: str = "") -> StoredResult:
    """An answer with a note, of which the reason is shortened to what fits; None is the answer of a released key."""
    body, media_type, version = (b"", "", 0) if stored is None else stored
    given = reason
    while True:
        marked = f"{media_type}{MARK}{json.dumps([by, reason], separators=(',', ':'))}"
        if len(marked) <= LONGEST_MEDIA_TYPE:
            return StoredResult(body, marked, version)
        if not reason:
            by = by[:-1]
        given = given[: -max(1, (len(marked) - LONGEST_MEDIA_TYPE) // 6)]
        reason = given and f"{given}{_SHORTENED}"


def without_note(stored: StoredResult | None) -> StoredResult | None:
    """The answer itself; None for that of a released key."""
    if stored is None or MARK not in stored.media_type:
        return stored
    media_type = stored.media_type.partition(MARK)[0]
    return stored._replace(media_type=media_type) if media_type else None


def note_of(stored: StoredResult | None) -> Note | None:
    """The note of an answer; None if an attempt has given it."""
    if stored is None or MARK not in stored.media_type:
        return None
    by, reason = json.loads(stored.media_type.partition(MARK)[2])
    return Note(by, reason)


def is_settled_by_hand(stored: StoredResult | None) -> bool:
    """Tell whether a person, or a program of theirs, has settled the key, and not its attempt or probe."""
    note = note_of(stored)
    return note is not None and note.by != PROBE
