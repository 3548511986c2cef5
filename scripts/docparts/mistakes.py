"""The mistakes whose errors name the fix: each is made by a test."""

from __future__ import annotations

from docparts.markdown import table
from tests.mistakes.catalogue import MISTAKES


def mistakes() -> str:
    """A table for each subject."""
    parts = []
    for subject, made in MISTAKES.items():
        rows = [(one.what, f"`{one.error}`", f"{one.fix}") for one in made]
        parts.append(f"## {subject}\n\n{table(('mistake', 'error', 'it says'), rows)}")
    return "\n\n".join(parts)
