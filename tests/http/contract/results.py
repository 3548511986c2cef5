"""The committed results of the matrix: what became of every rule in every cell."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from retrysafe.conformance import Result, Verdict

RESULTS = Path(__file__).with_name("results.json")


def data(result: Result) -> str:
    """A result as it is committed: "passed", or why the rule was not checked."""
    if result.verdict is Verdict.PASSED:
        return "passed"
    assert result.verdict is not Verdict.FAILED, str(result)
    return f"{result.verdict}: {result.reason}"


@cache
def committed() -> dict[str, Any]:
    """The file."""
    found: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return found
