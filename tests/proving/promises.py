"""`python -m tests.proving.promises`: for each row of faults, HTTP and checklist, the tests that cover it.

Two trees are compared by comparing what it prints: a row that has lost its last test shows as a line without one.
"""

from __future__ import annotations

import re
import sys

from retrysafe.conformance import RULES
from tests.proving.catalogue import FAULTS
from tests.proving.injected import ROOT, all_tests, injected

_RULES = re.compile(r"test_((?:[a-z]\d+_)+)")


def covered() -> dict[str, list[str]]:
    """The tests of each row, by their node ids without parameters."""
    found = {f"fault {row}": tests for row, tests in injected().items() if row in FAULTS}
    contract = "tests/http/test_contract.py::test_every_rule"
    found |= {f"http {rule}": [contract] for rule, known in RULES.items() if known.visible}
    for test in sorted(all_tests()):
        named = _RULES.match(test.rpartition("::")[2]) if test.startswith("tests/http/") else None
        for rule in named[1].rstrip("_").split("_") if named else ():
            found.setdefault(f"http {rule[0].upper()}{int(rule[1:])}", []).append(test)
    sys.path.insert(0, str(ROOT / "scripts"))
    from docparts.checklist_lines import CHECKLIST

    for lines in CHECKLIST.values():
        for line in lines:
            found[f"checklist {line.name}"] = [one.text for one in line.by if one.kind == "test"]
    return found


def _place(row: str) -> list[int | str]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", row)]


if __name__ == "__main__":
    for row, tests in sorted(covered().items(), key=lambda item: _place(item[0])):
        print(f"{row}: {len(tests)}: {', '.join(sorted(tests)[:3])}")
