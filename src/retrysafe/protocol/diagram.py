"""The state diagram of the documentation, drawn from the transition table."""

from __future__ import annotations

from retrysafe.protocol.records import EffectiveState
from retrysafe.protocol.transitions import RULES, VACANT_CLAIM, Rule


def mermaid() -> str:
    """Return the state diagram as Mermaid source."""
    lines = ["stateDiagram-v2", f"    [*] --> {EffectiveState.RUNNING}: claim"]
    for event, rule in RULES.items():
        lines += sorted(f"    {source} --> {_target(rule)}: {event.value}" for source in rule.sources)
    lines.append(f"    {EffectiveState.RUNNING} --> {EffectiveState.LAPSED}: lease ends")
    for settled in (EffectiveState.COMPLETED, EffectiveState.FAILED, EffectiveState.RELEASED):
        lines.append(f"    {settled} --> {EffectiveState.EXPIRED}: window ends")
    lines.append(f"    {EffectiveState.EXPIRED} --> {EffectiveState.FORGOTTEN}: memory ends")
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
