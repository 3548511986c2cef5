"""Tables, aligned lines and JSON for the output of the command line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from retrysafe.admin.rendering import duration
from retrysafe.protocol import keys
from retrysafe.protocol.records import Record

_IN_SECONDS = ("age", "lease_left", "window_left")


def lines(fields: Mapping[str, Any]) -> Iterator[str]:
    """Fields as aligned lines of text, without the empty ones."""
    shown = {name: value for name, value in fields.items() if value not in (None, "")}
    width = max(map(len, shown), default=0)
    for name, value in shown.items():
        if name in _IN_SECONDS:
            value = duration(value)
        elif isinstance(value, list):
            value = ", ".join(map(str, value)) or "(not checked)"
        yield f"{name.replace('_', ' '):<{width}}  {value}"


def row(record: Record) -> tuple[str, ...]:
    age = duration((record.now - record.updated) / 1e6)
    return (
        keys.redact(record.key),
        record.reported_state.value,
        record.boundary,
        record.operation,
        record.scope or "-",
        str(record.attempts),
        age,
    )


HEAD = ("key", "state", "boundary", "operation", "scope", "attempts", "age")


def table(rows: Sequence[Sequence[str]], head: Sequence[str] = HEAD, *, titled: bool = True) -> Iterator[str]:
    every = [head, *rows]
    widths = [max(len(line[i]) for line in every) for i in range(len(head))]
    for line in every if titled else rows:
        yield "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()


def render_size(size: float) -> str:
    """Bytes in the unit that fits them."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def say(told: Iterable[str]) -> None:
    """Print lines, each as one: what is stored cannot begin a line of its own, or speak to the terminal."""
    for line in told:
        print(plain(line))


def plain(text: str) -> str:
    """A text without what a terminal would take for a command or not show as it is: that is escaped."""
    if text.isprintable():
        return text
    return "".join(mark if mark.isprintable() else mark.encode("unicode_escape").decode() for mark in text)
