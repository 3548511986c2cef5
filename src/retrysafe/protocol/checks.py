"""The form of a check of `retrysafe doctor`, which the folder of every store and broker brings its own of.

A check is pure: it judges facts, which an `Examination` has gathered by asking the store or broker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from retrysafe.protocol.records import Finding

Facts = Mapping[str, Any]
Judge = Callable[[Facts], str | None]
"""From facts to the evidence that something is wrong with them; None when nothing is."""


class Severity(StrEnum):
    """The meaning of a finding for the promises that are made."""

    ERROR = "error"
    """A promise is broken: work may run twice or be lost, or nothing can be claimed."""
    WARNING = "warning"
    """A promise is weaker than it looks, or will be broken by an event that is expected, such as a failover."""
    NOTE = "note"
    """Something could not be found out, or is worth knowing before the next change."""


class Check(NamedTuple):
    """One thing that is looked at.

    id: names it in output, waivers and metrics; never changed.
    asks: the question, of which "no" is the finding.
    severity: of the finding.
    fix: the exact change, with facts in braces such as ``{database}``.
    page: the page of the documentation that explains it, below ``docs/``.
    judge: finds the evidence in the facts.
    repair: the SQL statements by which ``--fix`` mends it, where that is safe under traffic; None otherwise.
    """

    id: str
    asks: str
    severity: Severity
    fix: str
    page: str
    judge: Judge
    repair: Callable[[Facts], list[str]] | None = None


def told(name: str, *levels: str) -> Judge:
    """The evidence is what the store's own examination says under a name, at one of these levels."""

    def judge(facts: Facts) -> str | None:
        found: list[Finding] = facts["findings"]
        return next((one.text for one in found if one.name == name and one.level in (levels or LEVELS)), None)

    return judge


def find_fact(name: str, text: str) -> Judge:
    """The evidence is a text about a fact, in the place of ``{}``, where that is true and not empty."""
    return lambda facts: text.format(facts[name]) if facts.get(name) else None


LEVELS = ("refuse", "warn")
"""The levels of a `Finding` that is more than information."""
