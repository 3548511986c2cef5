"""A pytest plugin for a run on broken source: writes which source was imported, and how every test ended.

A test counts as failed only if it failed in its own body: one that never came so far has not noticed the break.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

REPORT = "RETRYSAFE_BREAK_REPORT"

UNBORN = (ImportError, SyntaxError, NameError)
"""The errors of a break that is no program: a test that fails by them would fail by any typing error."""


class _Endings:
    def __init__(self) -> None:
        self.endings: dict[str, str] = {}


_SEEN = _Endings()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Any:
    """Note how this phase ended, unless an earlier one has ended the test."""
    outcome = yield
    report: pytest.TestReport = outcome.get_result()
    known = _SEEN.endings.get(item.nodeid, "passed")
    if known == "passed":
        _SEEN.endings[item.nodeid] = _ending(report, call.excinfo)


def _ending(report: pytest.TestReport, failure: pytest.ExceptionInfo[BaseException] | None) -> str:
    if report.passed:
        return "passed"
    if report.skipped:
        return "skipped"
    if report.when != "call":
        return f"failed in {report.when}"
    if failure is not None and isinstance(failure.value, UNBORN):
        return f"not a program: {failure.exconly()}"
    return "failed"


def pytest_sessionfinish() -> None:
    """Write what was seen."""
    import retrysafe

    seen = {"source": str(Path(retrysafe.__file__).resolve().parent), "endings": _SEEN.endings}
    Path(os.environ[REPORT]).write_text(json.dumps(seen), encoding="utf-8")
