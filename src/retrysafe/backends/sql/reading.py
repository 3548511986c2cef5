"""Reads answers: rows become records, pages, tallies, or a word."""

from __future__ import annotations

from typing import Any

from retrysafe.protocol import quotas
from retrysafe.protocol.records import Allowance, EffectiveState, QuotaRefusal, Record, StoredResult, Tally
from retrysafe.protocol.requests import Rows
from retrysafe.protocol.transitions import state_of

_USAGE = 4
"""The number of columns for the use of a quota; a record has more."""


def record(answer: Rows) -> Record | None:
    if not answer.rows or answer.rows[0][0] is None:
        return None
    return _record_of(answer.rows[0])


def record_or_usage(answer: Rows, allowance: Allowance) -> Record | QuotaRefusal | None:
    """A record, or how the quota is used: if there is room by now, there was none a moment ago."""
    if not answer.rows or len(answer.rows[0]) > _USAGE:
        return record(answer)
    now, filling, kept, forgotten = answer.rows[0]
    used = (None if value is None else int(value) for value in (filling, forgotten))
    return quotas.judge(allowance, int(now), next(used), int(kept), next(used)) or quotas.room_again(allowance)


def records(answer: Rows) -> list[Record]:
    return [_record_of(row) for row in answer.rows]


def tallies(answer: Rows) -> list[Tally]:
    return [
        Tally(boundary, EffectiveState(standing), int(count), int(oldest), int(now))
        for boundary, standing, count, oldest, now in answer.rows
    ]


def _record_of(row: Any) -> Record:
    """The record of a row by place: `COLUMNS` are in the order of its fields, but for the result, which has three."""
    *fields, result, media_type, codec_version, now = row
    fields[0], fields[4], fields[5] = bytes(fields[0]), bytes(fields[4]), state_of(fields[5])
    stored = (
        None
        if media_type is None
        else StoredResult(None if result is None else bytes(result), media_type, codec_version)
    )
    return Record._make((*fields, stored, int(now)))


def has_changed_one(answer: Rows) -> bool:
    return answer.affected == 1


def count(answer: Rows) -> int:
    return answer.affected


def keys(answer: Rows) -> set[bytes]:
    return {bytes(row[0]) for row in answer.rows}


def first_value(answer: Rows) -> Any:
    return answer.rows[0][0] if answer.rows else None
