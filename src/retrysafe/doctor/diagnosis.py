"""A finding of the doctor: a check that failed on one subject, with its evidence and the exact fix."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from retrysafe.protocol.checks import Check, Facts, Severity


class Diagnosis(NamedTuple):
    """One finding.

    id, severity, page: of its check.
    subject: the store, broker or part of the application, without passwords.
    evidence: what was seen.
    fix: what to change, exactly.
    repair: SQL statements that ``--fix`` would run on the subject.
    waived: the reason of the waiver that covers it; None without one.
    """

    id: str
    severity: Severity
    subject: str
    evidence: str
    fix: str
    page: str
    repair: tuple[str, ...] = ()
    waived: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The finding for ``--json``."""
        return {**self._asdict(), "severity": self.severity.value, "repair": list(self.repair)}


class _Known(dict[str, Any]):
    """Facts for a fix: one that was not gathered is left as its name."""

    def __missing__(self, name: str) -> str:
        return f"<{name}>"


def judge(checks: Iterable[Check], facts: Facts, subject: str) -> list[Diagnosis]:
    """The checks that fail on these facts."""
    found = []
    for check in checks:
        evidence = check.judge(facts)
        if evidence is not None:
            fix = check.fix.format_map(_Known(facts))
            repair = () if check.repair is None else tuple(check.repair(facts))
            found.append(
                Diagnosis(check.id, check.severity, subject, " ".join(evidence.split()), fix, check.page, repair)
            )
    return found
