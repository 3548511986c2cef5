"""What became of the rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

from retrysafe.conformance.capabilities import Capabilities
from retrysafe.conformance.rules import RULES


class Verdict(StrEnum):
    """What became of one rule."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    NOT_VISIBLE = "not visible"


class Result(NamedTuple):
    """One rule on one server.

    Attributes:
        rule: The rule's ID, a key of `RULES`.
        verdict: What became of it.
        reason: Why it was skipped, or why it can't be seen from outside; with other verdicts, what was left out.
        expected: What should have come; of a rule that passed, what it asks for.
        came: What came instead; empty unless it failed.
        sent: The requests of the case and their answers, one line each.
        seconds: How long it took.
    """

    rule: str
    verdict: Verdict
    reason: str = ""
    expected: str = ""
    came: str = ""
    sent: Sequence[str] = ()
    seconds: float = 0.0

    def __str__(self) -> str:
        """The result in words, as an assertion would put it."""
        rule = RULES[self.rule]
        text = f"{self.rule} {self.verdict}: {rule.text} ({rule.source})"
        if self.verdict is not Verdict.FAILED:
            return f"{text} {self.reason}".rstrip()
        return "\n".join([text, f"expected: {self.expected}", f"came: {self.came}", "sent:", *self.sent])


class Report(NamedTuple):
    """What became of all rules on one server."""

    address: str
    capabilities: Capabilities
    results: Sequence[Result]

    def of(self, verdict: Verdict) -> Iterator[Result]:
        """The results with this verdict."""
        return (result for result in self.results if result.verdict is verdict)

    @property
    def counts(self) -> dict[str, int]:
        """How many rules got which verdict."""
        return {verdict.value: sum(1 for _ in self.of(verdict)) for verdict in Verdict}

    @property
    def passed(self) -> bool:
        """Whether no rule failed, those marked SHOULD included."""
        return not any(self.of(Verdict.FAILED))
