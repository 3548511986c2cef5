"""The findings of the conformance runner in our layer and others."""

from __future__ import annotations

import json
from typing import Any

from docparts import ROOT
from docparts.markdown import table
from retrysafe.conformance import RULES
from retrysafe.conformance.rules import CLIENT_RULES


def _compared() -> dict[str, Any]:
    """The results of the conformance runner, by server."""
    found: dict[str, Any] = json.loads((ROOT / "benchmarks" / "rivals" / "results.json").read_text(encoding="utf-8"))
    return found


def conformance_results() -> str:
    """One row per rule that can be seen, one column per server."""
    servers = list(_compared().values())
    marks = {"passed": "✓", "failed": "✗", "skipped": "–"}
    verdicts = [{one["rule"]: one["verdict"] for one in server["results"]} for server in servers]
    head = ("rule", *(f"{server['name']} {server['version']}" for server in servers))
    rows = [(rule, *(marks[found[rule]] for found in verdicts)) for rule in RULES if RULES[rule].visible]
    counts = [f"{server['counts']['passed']} of {_decided(server)}" for server in servers]
    on = ("runs on", *(server["server"] for server in servers))
    return table(head, [on, *rows, ("**kept**", *counts)])


def _decided(server: Any) -> int:
    return int(server["counts"]["passed"]) + int(server["counts"]["failed"])


def conformance_failures() -> str:
    """List each server's broken rules, and the reasons for skipped ones."""
    parts: list[str] = []
    for server in _compared().values():
        chosen = ", ".join(f"`{name}={value}`" for name, value in server["choices"].items())
        parts.append(f"### {server['name']} {server['version']}\n" + (f"\nIt chose {chosen}.\n" if chosen else ""))
        failed = [one for one in server["results"] if one["verdict"] == "failed"]
        rows = [(one["rule"], _plain(one["expected"]), _plain(one["came"])) for one in failed]
        parts.append(table(("rule", "expected", "came"), rows) if rows else "It broke no rule.\n")
        skipped = [
            f"{one['rule']} ({one['reason'].rstrip('.')})" for one in server["results"] if one["verdict"] == "skipped"
        ]
        if skipped:
            parts.append(f"Skipped: {'; '.join(skipped)}.\n")
    return "\n".join(parts)


def _plain(text: str) -> str:
    """Text of a foreign server as code, so that nothing in it is Markdown."""
    return f"`{text.replace('`', chr(39))}`" if text else ""


def conformance_rules() -> str:
    """The rules: what they ask for, where they come from, what of them can't be seen."""
    rows = [
        (
            rule + (" (S)" if known.should else ""),
            known.text,
            known.source,
            known.unseen if known.visible else f"all of it: {known.unseen}",
            "" if len(known.modes) > 1 else ", ".join(known.modes),
        )
        for rule, known in RULES.items()
    ]
    return table(("rule", "what it asks for", "source", "what can't be seen from outside", "only in mode"), rows)


def client_rules() -> str:
    """The rules for clients."""
    rows = ((rule + (" (S)" if known.should else ""), known.text, known.source) for rule, known in CLIENT_RULES.items())
    return table(("rule", "what it asks for", "source"), rows)
