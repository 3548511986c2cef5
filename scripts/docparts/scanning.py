"""The rules of `retrysafe scan`, each with its two examples."""

from __future__ import annotations

from docparts.markdown import table
from retrysafe.scan.findings import Rule
from retrysafe.scan.rules.catalogue import EVERY_RULE


def rules() -> str:
    """A table of all rules, and a section for each that has examples."""
    rows = [(f"`{one.id}`", one.title, one.severity.value) for one in EVERY_RULE]
    return "\n".join([table(("rule", "reports", "severity"), rows), *map(_section, EVERY_RULE)])


def _section(rule: Rule) -> str:
    page = f"[more](../{rule.page})" if rule.page != "how-to/scan.md" else ""
    parts = [f"### {rule.id}: {rule.title}", rule.why, " ".join(filter(None, (rule.fix, page)))]
    if rule.wrong:
        parts += ["Reported:", _code(rule.wrong), "Not reported:", _code(rule.right)]
    return "\n\n".join(parts) + "\n"


def _code(text: str) -> str:
    """Not as ``python``: the examples of pages are run, and these are only read."""
    return f"```text\n{text.strip()}\n```"
