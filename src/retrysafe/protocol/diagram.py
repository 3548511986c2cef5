"""The state diagram of the documentation, drawn from the transition table."""

from __future__ import annotations

from retrysafe.protocol.records import Standing
from retrysafe.protocol.transitions import RULES, VACANT_CLAIM, Rule


def mermaid() -> str:
    """Return the state diagram as Mermaid source."""
    lines = ["stateDiagram-v2", f"    [*] --> {Standing.RUNNING}: claim"]
    for event, rule in RULES.items():
        lines += sorted(f"    {source} --> {_target(rule)}: {event.value}" for source in rule.sources)
    lines.append(f"    {Standing.RUNNING} --> {Standing.LAPSED}: lease ends")
    for settled in (Standing.COMPLETED, Standing.FAILED, Standing.RELEASED):
        lines.append(f"    {settled} --> {Standing.EXPIRED}: window ends")
    lines.append(f"    {Standing.EXPIRED} --> {Standing.FORGOTTEN}: memory ends")
    return "\n".join(lines) + "\n"


def table() -> str:
    """Return the transition table as Markdown, one row per event."""
    lines = ["| event | from | to | guard |", "|---|---|---|---|", _row("claim", VACANT_CLAIM)]
    lines += [_row(event.value, rule) for event, rule in RULES.items()]
    return "\n".join(lines) + "\n"


def _row(event: str, rule: Rule) -> str:
    return f"| {event} | {', '.join(sorted(rule.sources))} | {_target(rule, 'absent')} | {rule.guard.value} |"


def _target(rule: Rule, absent: str = "[*]") -> str:
    return absent if rule.target is None else rule.target.value
