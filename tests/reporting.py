"""A report that cannot be made is a failure of its test: no error in a hook of reports ends a worker, or the run."""

from __future__ import annotations

import traceback
from collections.abc import Generator
from contextlib import suppress
from typing import Any, Literal

import pytest

When = Literal["setup", "call", "teardown"]
Location = tuple[str, int | None, str]


def pytest_sessionstart(session: pytest.Session) -> None:
    """Stand around the hooks of every plugin that is there by now."""
    session.config.pluginmanager.register(_Guard(session.config), "retrysafe-reports")


class _Guard:
    """Around all hooks of reports."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[Any]
    ) -> Generator[None, object, object]:
        try:
            return (yield)
        except Exception as error:  # noqa: BLE001 - of any plugin, or of what prints the traceback
            shown = call.excinfo.value if call.excinfo is not None else None
            return _failure(item.nodeid, item.location, call.when, error, shown)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None, object, object]:
        try:
            return (yield)
        except Exception as error:  # noqa: BLE001
            self._deliver(_failure(report.nodeid, report.location, report.when or "call", error))
            return None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str, location: Location) -> Generator[None, object, object]:
        try:
            return (yield)
        except Exception as error:  # noqa: BLE001
            self._deliver(_failure(nodeid, location, "setup", error))
            return None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logfinish(self, nodeid: str, location: Location) -> Generator[None, object, object]:
        try:
            return (yield)
        except Exception as error:  # noqa: BLE001
            self._deliver(_failure(nodeid, location, "teardown", error))
            return None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_exception_interact(self, node: Any, report: Any) -> Generator[None, object, object]:
        try:
            return (yield)
        except Exception as error:
            if not isinstance(node, pytest.Item):
                raise
            self._deliver(_failure(node.nodeid, node.location, report.when, error))
            return None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_report_from_serializable(self, data: dict[str, Any]) -> Generator[None, object, object]:
        try:
            return (yield)
        except Exception as error:  # noqa: BLE001
            nodeid = str(data.get("nodeid"))
            return _failure(nodeid, data.get("location") or (nodeid, None, nodeid), data.get("when", "call"), error)

    def _deliver(self, report: pytest.TestReport) -> None:
        """Hand the report to each plugin, also behind one that raises."""
        for implementation in reversed(self._config.hook.pytest_runtest_logreport.get_hookimpls()):
            if not implementation.wrapper and not implementation.hookwrapper:
                with suppress(Exception):
                    implementation.function(report)


def _failure(
    nodeid: str, location: Location, when: When, error: Exception, shown: BaseException | None = None
) -> pytest.TestReport:
    told = ["The report of this test could not be made:\n", *_printed(error)]
    if shown is not None:
        told += ["\nThe test itself ended with:\n", *_printed(shown)]
    return pytest.TestReport(nodeid, location, {}, "failed", "".join(told), when)


def _printed(error: BaseException) -> list[str]:
    """The traceback, or as much of it as can be had."""
    try:
        return traceback.format_exception(error)
    except Exception as another:  # noqa: BLE001 - the source may be unreadable, the error's text too
        return [f"{type(error).__name__} (its traceback cannot be printed: {type(another).__name__})\n"]
