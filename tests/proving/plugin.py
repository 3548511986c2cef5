"""Hands tests their chance, gathers what they prove, and says from which seed."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.proving import effort, proofs
from tests.proving.proofs import Proof

PROOFS = "RETRYSAFE_PROOFS"
"""Where to write what was proved; nothing is written without it."""

Record = Callable[[Proof], None]


def pytest_configure(config: pytest.Config) -> None:
    """Fix the seed before any worker starts, and declare the markers."""
    effort.seed()
    config.addinivalue_line("markers", "fault(*rows): which rows of the fault catalogue the test injects")
    config.addinivalue_line("markers", "prove: runs at full length in `make prove`")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(
            _Gathering(shlex.join(map(str, config.invocation_params.args))), "retrysafe-proofs"
        )


def pytest_report_header() -> str:
    """Name the seed: the same run again is `RETRYSAFE_SEED=… make test`."""
    return f"seed: {effort.SEED}={effort.seed()}, effort: {effort.effort('short', 'full')}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name it at the end too, where a quiet run and whoever reads a long log will see it."""
    terminalreporter.write_line(pytest_report_header())


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Name the seed where a test that uses chance fails."""
    outcome = yield
    report = outcome.get_result()
    if report.failed and "chance" in getattr(item, "fixturenames", ()):
        full = f"{effort.EFFORT}=full " if effort.is_full() else ""
        report.sections.append(("seed", f"{full}{effort.SEED}={effort.seed()} python -m pytest '{item.nodeid}'"))


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> Random:
    """Chance of this test's own, from the seed of the run."""
    return effort.chance_of(request.node.nodeid)


@pytest.fixture
def proof(request: pytest.FixtureRequest) -> Record:
    """Takes down what the test has proved."""

    def record(proved: Proof) -> None:
        request.node.user_properties.append(("proof", proofs.checked(proved)._asdict()))

    return record


class _Gathering:
    """On the process that sees every report: sums up, and writes."""

    def __init__(self, command: str) -> None:
        self.command = command
        self.found: list[dict[str, Any]] = []
        self.tests: dict[str, int] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.tests[report.outcome] = self.tests.get(report.outcome, 0) + 1
        if report.when == "call":
            self.found += [value for name, value in report.user_properties if name == "proof"]

    def pytest_sessionfinish(self) -> None:
        if PROOFS in os.environ:
            proofs.write(Path(os.environ[PROOFS]), self.found, versions(), self.tests, self.command)


def versions() -> dict[str, str]:
    """Versions of the servers under test."""
    from tests.proving.servers import server_versions

    return server_versions()
