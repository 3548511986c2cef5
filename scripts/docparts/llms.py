"""docs/llms.txt: the pages of the documentation for language models (llmstxt.org)."""

from __future__ import annotations

import re

from docparts import ROOT
from retrysafe.backends.registry import specs

_STORES = ", ".join(spec.title for spec in specs() if spec.schemes and spec.name != "memory")
FILE = ROOT / "docs" / "llms.txt"
HEAD = f"""# retrysafe

> A Python library that makes an operation safe to retry: the effect happens once, and a retry gets the first answer. It
> claims an idempotency key in a store ({_STORES}), and stores the outcome.

Read "For coding agents" first: it is enough to write a guarded operation and to test it by crashes.
"""
SECTIONS = {"Start": "", "How-to": "how-to/", "Explanation": "explanation/", "Reference": "reference/"}


def llms() -> str:
    """The whole file."""
    pages = [path for path in sorted((ROOT / "docs").rglob("*.md")) if "decisions" not in path.parts]
    parts = [HEAD]
    for section, folder in SECTIONS.items():
        found = [path.relative_to(ROOT / "docs").as_posix() for path in pages]
        found = [name for name in found if name.startswith(folder) and name.count("/") == (1 if folder else 0)]
        parts.append(
            f"## {section}\n\n" + "".join(f"- [{_title(name)}]({name})\n" for name in sorted(found, key=_first))
        )
    return "\n".join(parts)


def _first(name: str) -> tuple[bool, str]:
    return name != "coding-agents.md", name


def _title(name: str) -> str:
    match = re.search(r"^# (.+)$", (ROOT / "docs" / name).read_text(encoding="utf-8"), re.MULTILINE)
    if match is None:
        raise SystemExit(f"docs/{name} has no title")
    return match[1].replace("`", "")
