"""The guarantees page: what each store promises in each mode, under what, and what runs have shown of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from docparts import ROOT, faults, twice
from docparts.markdown import table
from retrysafe.backends.registry import stores
from retrysafe.protocol.outcomes import ModeKind
from retrysafe.protocol.retry_table import ANSWERS, WITHHELD, Prospect, prospects
from retrysafe.protocol.store import Capabilities
from tests.proving.breaks.table import all_breaks
from tests.proving.proofs import MODES, Proof, Run, read
from tests.proving.servers import SERVICES
from tests.stores import harnesses

PROOFS = ROOT / "tests/proving/proofs.json"
PARTS = ROOT / "tests/proving/parts"
"""Runs of one part of the proof each."""
MUTATION = ROOT / "tests/proving/mutation.json"
NO_RUN = "No run of `make prove` has been recorded yet, so this page has no figures."

PROMISES: dict[ModeKind, str] = {
    ModeKind.OWN: "the work's rows, the record and the result commit together, or none of them does",
    ModeKind.JOINED: "the same, in your transaction: nothing is stored until you commit",
    ModeKind.KEYED: (
        "one result is stored and replayed; every attempt carries the same derived keys; a late attempt is fenced"
    ),
    ModeKind.EXTERNAL: (
        "the work is run again only after an operator or a probe has said that it did not happen; "
        "doubt ends as *unknown*"
    ),
}
MODE = dict(zip(ModeKind, MODES, strict=True))
OF_TESTS = ("mutants", "histories: the checker")
"""Proofs of the tests: what they inject is no fault of a store, and counts as none."""


# ---------------------------------------------------------------- what is promised


def promises() -> str:
    """One section for each store: its modes, what they rest on, what they cost."""
    run = read(PROOFS)
    return "\n".join(_store(store.capabilities, run) for store in stores())


def _store(known: Capabilities, run: Run | None) -> str:
    modes = [ground for ground in ModeKind if known.transactions or ground not in (ModeKind.OWN, ModeKind.JOINED)]
    rows = [(twice.NAMES[ground], PROMISES[ground], _shown(run, known, ground)) for ground in modes]
    refused = "" if known.transactions else '\n`effects="transactional"` is refused when the boundary is built.\n'
    settings = harnesses.SETTINGS[known.name]
    return (
        f"### {known.name}\n\n"
        + ("**Never run**: this is what it is written to keep.\n\n" if known.never_run else "")
        + table(("mode", "what is promised", "what runs have shown"), rows)
        + refused
        + "\nUnder which configuration:\n\n"
        + f"- What survives: {known.durability}.\n"
        + f"- What a failover loses: {known.failover}.\n"
        + f"- Whose clock decides leases and windows: {known.clock}.\n"
        + f"- Refused before the first claim: {settings.refused}.\n"
        + f"- Warned of: {settings.warned}.\n"
        + "\nBesides what [each mode allows](#when-code-can-still-run-twice), code can run twice when:\n\n"
        + twice.of_store(known.name)
    )


def _shown(run: Run | None, known: Capabilities, ground: ModeKind) -> str:
    if known.never_run:
        return "never run"
    if run is None:
        return "no run recorded"
    proofs = [
        one
        for recorded in (run, *_list_parts())
        for one in recorded.proofs
        if (one.kind, one.mode) == (known.name, MODE[ground])
    ]
    return _faults(proofs) if proofs else "no fault injected"


def _faults(proofs: Iterable[Proof]) -> str:
    injected, broken = map(sum, zip(*((one.injected, one.broken) for one in proofs), strict=True))
    return f"{injected:,} faults injected, {_broken(broken)}"


def _broken(broken: int) -> str:
    return f"**{broken:,} promises broken**" if broken else "no promise broken"


# ---------------------------------------------------------------- when code can still run twice


def retries() -> str:
    """Show the answer to a retry after every way in which work can end or be met, in each mode."""
    columns = [list(prospects(ground, "new")) for ground in ModeKind]
    rows = [(found[0].situation, *map(_answer, found)) for found in zip(*columns, strict=True)]
    return table(("when", *(twice.NAMES[ground] for ground in ModeKind)), rows)


def _answer(prospect: Prospect) -> str:
    return WITHHELD if prospect.withheld else ANSWERS[prospect.decision]


# ---------------------------------------------------------------- what was injected


def run() -> str:
    """From which seed, with what effort, on what, and with what end the recorded run was made."""
    found = read(PROOFS)
    if found is None:
        return NO_RUN + "\n"
    tests = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(found.tests.items()))
    versions = ", ".join(f"{name} {number}" for name, number in found.versions.items())
    injected = sum(one.injected for one in found.proofs if one.part not in OF_TESTS)
    rows = [
        ("faults injected", f"{injected:,}"),
        ("promises broken", f"{sum(one.broken for one in found.proofs):,}"),
        ("tests", tests),
        ("effort", found.effort),
        ("seed", f"{found.seed}"),
        ("again", f"`RETRYSAFE_SEED={found.seed} make prove`"),
        ("pytest was given", f"`{found.command}`"),
        ("versions", versions),
    ]
    return table(("the recorded run", ""), rows)


def injected() -> str:
    """Count the injections of each fault, on each store in each mode; one table for each part of the proof."""
    found = read(PROOFS)
    if found is None:
        return NO_RUN + "\n"
    parts = dict.fromkeys(one.part for one in found.proofs if one.part not in OF_TESTS)
    shown = [_part(part, [one for one in found.proofs if one.part == part]) for part in parts]
    return "\n".join([*shown, *map(_run_of_part, _list_parts())])


def _list_parts() -> list[Run]:
    """The runs of one part each that have been recorded."""
    return [run for path in sorted(PARTS.glob("*.json")) if (run := read(path)) and run.proofs]


def _run_of_part(run: Run) -> str:
    """The table of a part that was recorded in a run of its own, and that run."""
    met = {one.kind for one in run.proofs}
    versions = {name: number for name, number in run.versions.items() if SERVICES.get(name) in (None, *met)}
    told = ", ".join(f"{name} {number}" for name, number in versions.items())
    servers = [
        f"{name} {re.split('[- ]', number)[0]}"
        for name, number in versions.items()
        if name in SERVICES and name[0].isupper()
    ]
    tests = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(run.tests.items()))
    return (
        _part(f"{run.proofs[0].part} on {', '.join(servers)}" if servers else run.proofs[0].part, run.proofs)
        + f"\nA run of its own, in which each test counts once for each of its rows: seed {run.seed}, effort "
        f"{run.effort}, {tests}; pytest was given `{run.command}`. Versions: {told}.\n"
    )


def _part(part: str, proofs: list[Proof]) -> str:
    stores = sorted({one.store for one in proofs})
    lines: dict[tuple[str, str], list[Proof]] = {}
    for one in proofs:
        lines.setdefault((one.fault, one.mode), []).append(one)
    head = ("fault", "mode", *(store or "any" for store in stores), "broken", "rows of the [catalogue](faults.md)")
    rows = [
        (
            fault,
            mode or "–",
            *(_count(one.injected for one in here if one.store == store) for store in stores),
            str(sum(one.broken for one in here)),
            ", ".join(map(str, sorted({row for one in here for row in one.rows}))) or "–",
        )
        for (fault, mode), here in sorted(lines.items())
    ]
    return (
        f"### {part[0].upper()}{part[1:]}\n\n{_faults(proofs)[0].upper()}{_faults(proofs)[1:]}.\n\n{table(head, rows)}"
    )


def _count(numbers: Iterable[int]) -> str:
    found = list(numbers)
    return f"{sum(found):,}" if found else "–"


# ---------------------------------------------------------------- tests of the tests


def breaks() -> str:
    """Every deliberate break, with the tests that must fail on it, and whether they did in the recorded run."""
    found, run = all_breaks().values(), read(PROOFS)
    if not found:
        return "No deliberate break has been written down yet.\n"
    caught = {one.fault for one in run.proofs if one.part == "mutants"} if run else set[str]()
    rows = [
        (
            one.name,
            f"`{one.symbol}`",
            faults.named(one.killed_by),
            ", ".join(map(str, one.rows)) or "–",
            "yes" if one.name in caught else "not run",
        )
        for one in found
    ]
    killed = sum(one.name in caught for one in found)
    head = ("taken out", "in", "must fail then", "rows", "and did")
    return (
        f"{len(rows)} defences; in the recorded run the tests failed without {killed} of them.\n\n{table(head, rows)}"
    )


def checker() -> str:
    """Show the defects that the checkers of histories were given to find."""
    found = read(PROOFS)
    proofs = [one for one in found.proofs if one.part in OF_TESTS and one.part != "mutants"] if found else []
    if not proofs:
        return NO_RUN + "\n"
    return table(("planted", "times"), ((one.fault, f"{one.injected:,}") for one in proofs))


def mutation() -> str:
    """Show the result of a mutation tool on the core."""
    if not MUTATION.exists():
        return "No run of a mutation tool has been recorded yet.\n"
    found: dict[str, Any] = json.loads(MUTATION.read_text(encoding="utf-8"))
    figures = ("mutants", "killed", "survived", "timeouts", "equivalent", "score")
    rows = [("all", *(_figure(found, name) for name in figures))]
    rows += [(f"`{file}`", *(_figure(one, name) for name in figures)) for file, one in found["per_file"].items()]
    return f"{found['tool']} {found['version']}:\n\n" + table(("file", *figures), rows)


def _figure(found: Any, name: str) -> str:
    value = found.get(name) if isinstance(found, dict) else None
    if name == "score" and value is not None:
        return f"{value:.1%}" if value <= 1 else f"{value:.1f}%"
    return "–" if value is None else f"{value:,}"
