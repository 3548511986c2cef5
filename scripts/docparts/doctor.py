"""The checks of the doctor, from its registry."""

from __future__ import annotations

from docparts.markdown import table
from retrysafe.doctor import registry
from retrysafe.protocol.checks import Check


def checks() -> str:
    """Every check, by what it looks at."""
    return "\n".join(f"## {title}\n\n{table(_HEAD, map(_row, found))}" for title, found in registry.groups())


_HEAD = ("id", "asks", "severity", "fix", "page")


def _row(check: Check) -> tuple[str, ...]:
    fix = check.fix.replace("{{", "{").replace("}}", "}").replace("|", "\\|")
    mends = "" if check.repair is None else " (`--fix` does it)"
    name = check.page.rpartition("/")[2].removesuffix(".md").replace("-", " ")
    return f"`{check.id}`", check.asks, check.severity.value, f"{fix}{mends}", f"[{name}](../{check.page})"
