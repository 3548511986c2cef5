"""All rules, and those of the scan itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from retrysafe.scan.findings import Finding, Rule, Severity
from retrysafe.scan.rules import entries, increments, keys, marks, steps, transactions
from retrysafe.scan.rules.view import View

UNREADABLE = Rule(
    "RS001",
    "A file was not scanned",
    Severity.WARNING,
    "What cannot be parsed cannot be checked.",
    "Mend the file, or leave it out with --exclude.",
    "how-to/scan.md",
    "",
    "",
)
ALLOWANCE = Rule(
    "RS002",
    "An allowance that allows nothing, or says no reason",
    Severity.WARNING,
    "An allowance that is left over would hide the next finding in its place; one without a reason can't be reviewed.",
    "Write `# retrysafe: allow[RS101] reason`, and take it away when the finding is gone.",
    "how-to/scan.md",
    "",
    "",
)
RULES: tuple[Rule, ...] = (
    entries.HANDLER,
    entries.PASSED_BY,
    transactions.CALL,
    transactions.SEND,
    transactions.AFTER,
    increments.INCREMENT,
    entries.CONSUMER,
    keys.RANDOM_KEY,
    keys.DOTTED,
    marks.MARK,
    marks.LOOK,
    marks.LOCK,
    marks.MEMORY,
    steps.SEVERAL,
    steps.COMMITTED,
)
EVERY_RULE = (UNREADABLE, ALLOWANCE, *RULES)
CHECKS: tuple[Callable[[View], Iterator[Finding]], ...] = (
    entries.handlers,
    entries.guards,
    entries.consumers,
    transactions.check,
    increments.check,
    keys.check,
    marks.check,
    steps.check,
)
