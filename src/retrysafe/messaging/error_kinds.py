"""Errors that are of one kind although numbers and ids in their texts differ: for counting them together. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from retrysafe.protocol.messages import Groups

_VARYING = re.compile(
    r"(\b(?:HTTP|status)(?: code)? \d{3}\b)"  # which status it is makes a difference
    r"|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"
    r"|\b0x[0-9a-f]+\b"
    r"|\b(?=[a-f]*\d)[0-9a-f]{8,}\b"
    r"|\d+(?:[.:,-]\d+)*",
    re.IGNORECASE,
)


def kind_of(error: str) -> str:
    """An error's type as it is, and its text with ``#`` for each number and id, but statuses of HTTP."""
    kind, colon, text = error.partition(":")
    if not colon or not kind.isidentifier():
        kind, colon, text = "", "", error
    return kind + colon + _VARYING.sub(lambda found: found[1] or "#", text)


def by_kind(counts: Mapping[tuple[str, str, str], int]) -> Groups:
    """Counts by topic, type and error, as counts by kind of error; the most frequent first.

    An error that nothing is counted together with keeps its text.
    """
    errors: dict[tuple[str, str, str], list[str]] = {}
    totals: dict[tuple[str, str, str], int] = {}
    for (topic, message_type, error), count in counts.items():
        group = topic, message_type, kind_of(error)
        errors.setdefault(group, []).append(error)
        totals[group] = totals.get(group, 0) + count
    shown = {(*group[:2], errors[group][0] if len(errors[group]) == 1 else group[2]): n for group, n in totals.items()}
    return dict(sorted(shown.items(), key=lambda one: (-one[1], one[0])))
