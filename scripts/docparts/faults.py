"""The catalogue of faults: effect, defence and limit of each, and the number of tests that inject it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from docparts.markdown import table
from tests.proving.breaks.table import all_breaks
from tests.proving.catalogue import CATALOGUE, FAULTS, Fault
from tests.proving.injected import injected

HEAD = ("row", "fault", "what you see", "what is done about it", "what is left", "tests")


def faults() -> str:
    """One table for each group of faults."""
    tests = injected()
    parts = (f"## {group}\n\n{table(HEAD, (_cells(one, tests) for one in rows))}" for group, rows in CATALOGUE.items())
    return "\n".join(parts)


def summary() -> str:
    """Count the rows that are injected, documented, not yet there."""
    tests = injected()
    removed = {row for one in all_breaks().values() for row in one.rows}
    count = len({test for row in tests.keys() & FAULTS.keys() for test in tests[row]})
    documented = sum(bool(one.documented) and one.row not in tests for one in FAULTS.values())
    unmet = sum(bool(one.unmet) for one in FAULTS.values())
    said = (
        f"Of {len(FAULTS)} rows, {len(tests.keys() & FAULTS.keys())} are injected by {count} tests",
        f"for {len(tests.keys() & removed)} of these a test has to fail when the defence is taken out",
        f"{documented} more have no defence, and their cost is documented",
        f"{unmet} cannot happen yet, because their subject does not exist",
    )
    return "{}; {}. {}. {}.\n".format(*said)


def named(tests: Iterable[str]) -> str:
    """Tests as `file`: `name`, `name`; one line for each file."""
    pairs = sorted({tuple(test.partition("[")[0].split("::", 1)) for test in tests})
    lines = []
    for file, of_file in groupby(pairs, key=lambda pair: pair[0]):
        lines.append(f"`{file}`: " + ", ".join(f"`{pair[1]}`" for pair in of_file))
    return "<br>".join(lines)


def _cells(fault: Fault, tests: dict[int, list[str]]) -> tuple[str, ...]:
    left = fault.left or ("Not built yet." if fault.unmet else "–")
    if fault.documented:
        left = f"[{left}](../{fault.documented})"
    return str(fault.row), fault.fault, fault.seen, fault.defence, left, str(len(tests.get(fault.row, ())))
