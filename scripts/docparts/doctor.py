"""The checks of the doctor, from its registry, and the set-ups that tests try them on."""

from __future__ import annotations

from docparts.markdown import table
from retrysafe.doctor import registry
from retrysafe.protocol.checks import Check
from tests.doctor.setups import BROKEN, SOUND, UNMADE
from tests.doctor.setups.form import Setup


def checks() -> str:
    """Every check, by what it looks at."""
    return "\n".join(f"## {title}\n\n{table(_HEAD, map(_row, found))}" for title, found in registry.groups())


def setups() -> str:
    """Every broken set-up that the doctor was tried on, and every sound one."""
    every = [setup for found in BROKEN.values() for setup in found]
    head = ("what is wrong", "made by", "found by", "severity")
    said = "each was found by its check, and by no other than those named beside it"
    parts = [f"{len(every)} broken set-ups: {said}. {len(SOUND)} sound ones: nothing was found.\n"]
    for title, found in BROKEN.items():
        parts.append(f"### {title}\n\n{table(head, map(_tried, found))}")
    sound = "".join(f"- {one.what}.\n" for one in SOUND)
    parts.append(f"### Sound ones\n\n{sound}")
    names = ", ".join(f"`{check}`" for check in UNMADE)
    parts.append(
        f"What the tests have no service, version or network for is judged by facts that a test gives: {names}. Kafka "
        "and NATS have one broker there, so that `kafka-replicas` and `nats-replicas` are always found.\n"
    )
    return "\n".join(parts)


def _tried(setup: Setup) -> tuple[str, ...]:
    beside = f"; beside it {', '.join(f'`{one}`' for one in setup.beside)}" if setup.beside else ""
    return setup.broken, setup.made.replace("|", "\\|"), f"`{setup.finds}`{beside}", setup.severity.value


_HEAD = ("id", "asks", "severity", "fix", "page")


def _row(check: Check) -> tuple[str, ...]:
    fix = check.fix.replace("{program}", "retrysafe").replace("{store}", "URL")
    fix = fix.replace("{{", "{").replace("}}", "}").replace("|", "\\|")
    mends = "" if check.repair is None else " (`--fix` does it)"
    name = check.page.rpartition("/")[2].removesuffix(".md").replace("-", " ")
    return f"`{check.id}`", check.asks, check.severity.value, f"{fix}{mends}", f"[{name}](../{check.page})"
