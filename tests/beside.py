"""Tests that need an engine, a browser, a site or a program of load: only `make prove` fetches those, and runs them."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest

from tests.conftest import absent
from tests.proving import effort

BESIDE = "beside"
LEFT = "tests_left"
_left: pytest.StashKey[int] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line("markers", f"{BESIDE}: needs what only `make prove` fetches, which alone runs it unnamed")
    config.stash[_left] = 0


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark them for `make prove`, and leave them to it; what is named is run."""
    marked = [item for item in items if item.get_closest_marker(BESIDE)]
    for item in marked:
        item.add_marker("prove")
    named = config.option.keyword or any("::" in one or one.endswith(".py") for one in config.args)
    if marked and not (effort.is_full() or named):
        items[:] = [item for item in items if not item.get_closest_marker(BESIDE)]
        config.hook.pytest_deselected(items=marked)
        config.stash[_left] = len(marked)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell the process that reports."""
    output: dict[str, object] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[LEFT] = session.config.stash[_left]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take the count of a worker: all workers leave the same tests."""
    node.config.stash[_left] = getattr(node, "workeroutput", {}).get(LEFT, node.config.stash[_left])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say so, in one line."""
    if count := terminalreporter.config.stash[_left]:
        terminalreporter.write_line(f"{count} tests of engines, in a browser and of load profiles left to make prove")


def unfetched(reason: str) -> NoReturn:
    """Skip the test for what is not there, if it was named; a failure in `make prove`, which fetches it."""
    if effort.is_full():
        pytest.fail(reason)
    absent(reason)
