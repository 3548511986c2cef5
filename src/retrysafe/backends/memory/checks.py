"""The check of a store in memory."""

from __future__ import annotations

from retrysafe.backends.checks import Examination, no_facts
from retrysafe.protocol.checks import Check, Severity

CHECKS = (
    Check(
        "memory-store",
        "Do records outlive the process?",
        Severity.WARNING,
        "Give store= a database, such as sqlite:///shop.db or postgresql://…",
        "explanation/which-store.md",
        lambda facts: "store= is memory://: a restart forgets every key, and another process knows none.",
    ),
)
EXAMINATION = Examination(CHECKS, no_facts)
