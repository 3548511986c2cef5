"""The HTTP contract: options, problems, and what became of every rule in every integration."""

from __future__ import annotations

import json
import re
from typing import Any

from docparts import ROOT
from docparts.markdown import prose, table
from retrysafe.conformance import RULES
from retrysafe.http.policy import Options, Policy
from retrysafe.http.problems import BASE, PROBLEMS


def http_options() -> str:
    """List the options of every HTTP integration, with their defaults."""
    described = re.findall(r"^- `(\w+)`: (.*(?:\n  .*)*)", prose(Options.__doc__), re.MULTILINE)
    defaults = Policy()._asdict()
    rows = ((f"`{name}=`", " ".join(text.split()), _default(defaults[name])) for name, text in described)
    return table(("option", "meaning", "default"), rows)


def _default(value: Any) -> str:
    if isinstance(value, frozenset):
        return ", ".join(sorted(map(str, value))) if len(value) < 10 else "as said"
    return "–" if value is None else f"`{value!r}`"


def problems() -> str:
    """Every problem, with the page that its type names."""
    rows = (
        (f"[`{code}`]({code}.md)", str(problem.status), problem.title, "yes" if problem.safe_new_key else "no")
        for code, problem in PROBLEMS.items()
    )
    return table(("code", "status", "title", "is a new key safe?"), rows)


def problem(code: str) -> str:
    """Show an example of a problem."""
    found = PROBLEMS[code]
    lines = [
        f"**{found.title}.** Status {found.status}, `safe_new_key: {str(found.safe_new_key).lower()}`.",
        *([f"With `Retry-After` ({found.retry_after:g} s at least)."] if found.retry_after else []),
        f"`type` is `{BASE}{code}/`.",
    ]
    return "\n".join(lines)


def _matrix() -> dict[str, Any]:
    """Read the result of every rule in every cell."""
    found: dict[str, Any] = json.loads((ROOT / "tests/http/contract/results.json").read_text(encoding="utf-8"))
    return found


def http_matrix() -> str:
    """One table for each store and mode: rule × integration; notes for what is not checked over a connection."""
    matrix = _matrix()
    cells: dict[str, dict[str, str]] = matrix["cells"]
    places = list(dict.fromkeys(cell.partition("-")[2] for cell in [*cells, *matrix["not there"]]))
    notes: dict[str, int] = {}

    def mark(found: str) -> str:
        if found == "passed":
            return "✓"
        sign = "–" if found.startswith("without") else "✓"
        return f"{sign} [{notes.setdefault(found, len(notes) + 1)}](#notes)"

    parts: list[str] = []
    for place in places:
        store, _, mode = place.partition("-")
        parts.append(f"## {store}, {mode}\n")
        ours = {name: f"{name}-{place}" for name in matrix["integrations"]}
        reasons = {matrix["not there"][cell] for cell in ours.values() if cell in matrix["not there"]}
        if reasons:
            parts.append(f"There is no such cell: {'; '.join(sorted(reasons))}.\n")
            continue
        rows = [(rule, *(mark(cells[cell][rule]) for cell in ours.values())) for rule in RULES]
        parts.append(table(("rule", *(matrix["integrations"][name] for name in ours)), rows))
    parts.append("## Notes\n")
    parts.append(table(("note", "what it stands for"), ((str(number), _note(text)) for text, number in notes.items())))
    return "\n".join(parts)


def _note(text: str) -> str:
    kind, _, rest = text.partition(": ")
    if kind == "tested":
        return "✓ by " + ", ".join(f"`{test}`" for test in rest.split(", "))
    return f"✓ but {rest}" if kind == "passed" else f"– {rest}"


def http_matrix_versions() -> str:
    """The libraries that the matrix was run with."""
    return ", ".join(f"{name} {number}" for name, number in _matrix()["versions"].items()) + ".\n"
