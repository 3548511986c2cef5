"""Findings that the code allows, with a reason: ``# retrysafe: allow[RS101] reason``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from retrysafe.scan.findings import Finding
from retrysafe.scan.rules.catalogue import ALLOWANCE
from retrysafe.scan.source import comments

_COMMENT = re.compile(r"#\s*+retrysafe:\s*+allow\[([^\]]*+)\]\s*+(.*)")


class Excuse(NamedTuple):
    """A comment that allows rules at the statement it stands in, or above."""

    line: int
    rules: frozenset[str]
    reason: str


def allowances(data: bytes) -> list[Excuse]:
    if b"retrysafe" not in data:
        return []
    found = []
    for line, text in comments(data):
        if match := _COMMENT.match(text):
            found.append(Excuse(line, frozenset(one.strip() for one in match[1].split(",")), match[2].strip()))
    return found


def judge(shown: str, findings: Iterable[Finding], allowed: list[Excuse]) -> Iterator[Finding]:
    """The findings that are not allowed, and allowances that allow nothing or give no reason."""
    used: set[Excuse] = set()
    for one in findings:
        fitting = [a for a in allowed if one.rule.id in a.rules and one.first_line - 1 <= a.line <= one.last_line]
        used.update(fitting)
        if not any(a.reason for a in fitting):
            yield one
    for allowance in allowed:
        ids = ", ".join(sorted(allowance.rules))
        if not allowance.reason:
            yield _complaint(shown, allowance, f"allow[{ids}] gives no reason, and allows nothing without one.")
        elif allowance not in used:
            yield _complaint(shown, allowance, f"allow[{ids}] allows nothing: no such finding is here.")


def _complaint(shown: str, allowance: Excuse, message: str) -> Finding:
    line = allowance.line
    return Finding(ALLOWANCE, message, shown, line, 1, line, line, code=",".join(sorted(allowance.rules)))
