"""The checklist: a hundred things that a careful team settles, each with what covers it here."""

from __future__ import annotations

from docparts.checklist_lines import CHECKLIST, Cover, Line
from docparts.markdown import table


def checklist() -> str:
    """One table for each part."""
    lines = [line for part in CHECKLIST.values() for line in part]
    whole = sum(bool(line.by) and not line.missing for line in lines)
    partly = sum(bool(line.by) and bool(line.missing) for line in lines)
    parts = [
        f"Of {len(lines)} lines, {whole} are covered, {partly} in part, and {len(lines) - whole - partly} not yet.\n",
        *(_part(title, part) for title, part in CHECKLIST.items()),
    ]
    return "\n".join(parts)


def _part(title: str, lines: tuple[Line, ...]) -> str:
    return f"## {title}\n\n" + table(("", "settle", "covered by"), map(_line, lines))


def _line(line: Line) -> tuple[str, ...]:
    covers = [_cover(one) for one in line.by]
    covers += [f"**not yet:** {line.missing}"] if line.missing else []
    return line.name, line.text, "<br>".join(covers)


def _cover(one: Cover) -> str:
    return f"{one.kind}: [{one.text}]({one.link})" if one.link else f"{one.kind}: `{one.text}`"
