"""Why a key is as it is: its state in words, its history as far as the record tells, and what a retry gets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from retrysafe.admin.rendering import answer, duration, explain, has_lapsed
from retrysafe.claims.notes import note_of
from retrysafe.protocol.records import EffectiveState, Micros, Record


class Moment(NamedTuple):
    """One instant of a key's history, or of its future."""

    at: Micros
    text: str
    ahead: bool


class Why(NamedTuple):
    """The panel of one key."""

    state: str
    retry: str
    timeline: list[Moment]


_SETTLED = {
    EffectiveState.COMPLETED: "completed: the result was stored",
    EffectiveState.FAILED: "failed for good: the failure was stored",
    EffectiveState.RELEASED: "released: the next attempt runs",
    EffectiveState.UNKNOWN: "the attempt ended in doubt",
}


def why(record: Record) -> Why:
    return Why(explain(record), f"A retry {answer(record)}.", sorted(_moments(record)))


def _moments(record: Record) -> Iterator[Moment]:
    now, state = record.now, record.effective_state

    def moment(at: Micros, text: str) -> Moment:
        return Moment(at, text, at > now)

    yield moment(record.created, "the key was claimed for the first time")
    if record.attempts > 1 and record.token > record.created:
        yield moment(record.token, f"attempt {record.attempts} claimed it")
    if state in (EffectiveState.RUNNING, EffectiveState.LAPSED):
        if record.updated > record.token:
            yield moment(record.updated, "the attempt renewed its lease")
        until = "the lease lapses, unless it is renewed" if record.lease_until > now else "the lease lapsed"
        yield moment(record.lease_until, until)
        return
    if has_lapsed(record):
        yield moment(record.lease_until, f"attempt {record.attempts} lapsed: its process had died or was stalled")
        yield moment(record.updated, "a later request found that, and made the key unknown")
        return
    note = note_of(record.result)
    by = "" if note is None else f", by {note.by}"
    yield moment(record.updated, _SETTLED.get(state, f"written as {record.state.value}") + by)
    if state is EffectiveState.UNKNOWN:
        return
    kept = duration((record.expires - record.updated) / 1e6)
    over = "ends" if record.expires > now else "ended"
    yield moment(record.expires, f"the window {over}: results are kept for {kept}")
    if record.tombstone_until > record.expires:
        yield moment(
            record.tombstone_until,
            "the memory of the key ends" if record.tombstone_until > now else "the memory of the key ended",
        )
