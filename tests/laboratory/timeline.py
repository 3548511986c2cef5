"""Operations of one key as lines of text, beside the time in which each of them happened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from retrysafe.protocol.records import ClaimRequest, Ownership, Record
from tests.laboratory.histories import UNKNOWN, Operation

_WIDTH = 32


def drawn(operations: Sequence[Operation], marked: Sequence[bool]) -> list[str]:
    """A line for each: its number, its span on a common axis, who, what, and the answer."""
    if not operations:
        return []
    first = operations[0].begun
    instants = sorted({instant for one in operations for instant in (one.begun, one.ended) if instant is not None})
    scale = {instant: round(place * (_WIDTH - 1) / max(len(instants) - 1, 1)) for place, instant in enumerate(instants)}
    return [
        f"{number:>3}{'*' if mark else ' '}|{_span(one, scale)}| {(one.begun - first) / 1e6:>10.3f} ms  {_told(one)}"
        for number, (one, mark) in enumerate(zip(operations, marked, strict=True), 1)
    ]


def _span(one: Operation, scale: dict[int, int]) -> str:
    begin = scale[one.begun]
    if one.ended is None:
        return " " * begin + "[" + "." * (_WIDTH - begin - 1)
    end = scale[one.ended]
    bar = "|" if end == begin else "[" + "-" * (end - begin - 1) + "]"
    return (" " * begin + bar).ljust(_WIDTH)


def _told(one: Operation) -> str:
    return f"{one.actor:<10} {_step(one)} -> {_answer(one)}"


def _step(one: Operation) -> str:
    arguments = one.arguments
    if one.kind in ("claim", "take"):
        want: ClaimRequest = arguments[0]
        saw = f", having seen {_seen(arguments[1])}" if one.kind == "take" else ""
        return f"{one.kind} as {want.attempt}{saw}"
    if one.kind in ("settle", "renew"):
        ownership: Ownership = arguments[0]
        what = arguments[1].value if one.kind == "settle" else "renew"
        return f"{what} as {ownership.attempt} with token {ownership.token}{_result(arguments[2:])}"
    if one.kind == "resolve":
        return f"{arguments[1].value}, having seen {_seen(arguments[0])}{_result(arguments[2:3])}"
    if one.kind == "elapse":
        return f"{arguments[1] / 1e6:g} s pass"
    return one.kind


def _result(arguments: Sequence[Any]) -> str:
    return f", result {arguments[0].body!r}" if arguments and arguments[0] is not None else ""


def _seen(record: Record) -> str:
    return f"{record.state.value} by {record.attempt}, version {record.version}"


def _answer(one: Operation) -> str:
    answer = one.answer
    if answer is UNKNOWN:
        return "no answer"
    if isinstance(answer, Record):
        return told_state(answer) + f", at {answer.now}"
    if isinstance(answer, set):
        return "extended" if answer else "not extended"
    return "no record" if answer is None and one.kind in ("read", "claim") else str(answer)


def told_state(record: Record | None) -> str:
    """A record in a few words."""
    if record is None:
        return "absent"
    lease = f", lease until {record.lease_until}" if record.state.value == "running" else ""
    result = "" if record.result is None else f", result {record.result.body!r}"
    return (
        f"{record.state.value} by {record.attempt}, token {record.token}, version {record.version}, "
        f"attempts {record.attempts}, written at {record.updated}{lease}, forgotten at {record.tombstone_until}{result}"
    )
