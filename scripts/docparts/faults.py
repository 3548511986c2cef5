"""The catalogue of faults: which tests inject each, and what happens to them without the defence."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from docparts.markdown import table
from tests.proving.breaks import Break
from tests.proving.breaks.table import all_breaks
from tests.proving.catalogue import CATALOGUE, FAULTS, Fault
from tests.proving.injected import injected


def faults() -> str:
    """One table for each group of faults."""
    tests, removed = injected(), _removed()
    parts: list[str] = []
    for group, rows in CATALOGUE.items():
        parts.append(f"## {group}\n")
        head = ("row", "what goes wrong", "what is promised", "injected by", "with the defence taken out")
        lines = (
            (
                str(one.row),
                one.fault,
                one.promise,
                _injected(one, tests.get(one.row, [])),
                _taken_out(one, removed.get(one.row, [])),
            )
            for one in rows
        )
        parts.append(table(head, lines))
    return "\n".join(parts)


def summary() -> str:
    """How many rows are injected, documented, not yet there."""
    tests, removed = injected(), _removed()
    injectable = [one for one in FAULTS.values() if one.row in tests]
    broken = [one for one in injectable if one.row in removed]
    documented = [one for one in FAULTS.values() if one.documented and one.row not in tests]
    unmet = [one for one in FAULTS.values() if one.unmet]
    count = len({test for one in injectable for test in tests[one.row]})
    said = (
        f"Of {len(FAULTS)} rows, {len(injectable)} are injected by {count} tests",
        f"for {len(broken)} of these a test has to fail when the defence is taken out",
        f"{len(documented)} more are not defended against, and documented instead",
        f"{len(unmet)} cannot happen yet: what they would hit does not exist",
    )
    return "{}; {}. {}. {}.\n".format(*said)


def named(tests: Iterable[str]) -> str:
    """Tests as `file`: `name`, `name`; one line for each file."""
    pairs = sorted({tuple(test.partition("[")[0].split("::", 1)) for test in tests})
    lines = []
    for file, of_file in groupby(pairs, key=lambda pair: pair[0]):
        lines.append(f"`{file}`: " + ", ".join(f"`{pair[1]}`" for pair in of_file))
    return "<br>".join(lines)


def _injected(fault: Fault, tests: list[str]) -> str:
    """The tests, and what stands in for them."""
    parts = [named(tests)] if tests else []
    parts += [f"not yet: {fault.unmet}"] if fault.unmet else []
    parts += [f"[documented](../{fault.documented})"] if fault.documented else []
    return "<br>".join(parts) or "**nothing yet**"


def _taken_out(fault: Fault, removed: list[Break]) -> str:
    if removed:
        return "<br>".join(f"{one.name} (`{one.symbol}`)" for one in removed)
    return fault.nothing_to_remove or "–"


def _removed() -> dict[int, list[Break]]:
    found: dict[int, list[Break]] = {}
    for one in all_breaks().values():
        for row in one.rows:
            found.setdefault(row, []).append(one)
    return found
