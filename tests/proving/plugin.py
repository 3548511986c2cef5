"""Hands tests their chance, gathers what they prove, and says from which seed."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from retrysafe.backends.registry import stores
from tests.proving import effort, proofs
from tests.proving.catalogue import FAULTS
from tests.proving.journal import Journal
from tests.proving.proofs import Proof
from tests.versions import OTHER_VERSIONS

PROOFS = "RETRYSAFE_PROOFS"
"""The file for the proofs; nothing is written without it."""

JOURNAL = "RETRYSAFE_JOURNAL"
"""The file for the tests that pass, so that a run which was stopped goes on; see `tests.proving.journal`."""
DONE = "RETRYSAFE_DONE"
"""For the workers: a file of the tests that are not run again, as they were when this run began."""

BROKERS = ("kafka", "mqtt", "nats", "pubsub", "rabbitmq", "servicebus", "sqs")
PARTS = {"messaging": "messaging", "http": "HTTP", "gateway": "gateway", "streams": "streams", "pipeline": "pipeline"}
"""The parts of the proof whose tests tell by their marks alone what they inject, by the folder of the tests."""
_PLACES = (*OTHER_VERSIONS, *BROKERS, *(store.capabilities.name for store in stores()))
_PLACE = re.compile(rf"\b({'|'.join(_PLACES)})\b")
"""The store or broker in the name of a test's case."""

Record = Callable[[Proof], None]


def pytest_configure(config: pytest.Config) -> None:
    """Fix the seed before any worker starts, and declare the markers."""
    journal = None if hasattr(config, "workerinput") else _journal()
    effort.seed()
    config.addinivalue_line("markers", "fault(*rows): which rows of the fault catalogue the test injects")
    config.addinivalue_line("markers", "prove: runs at full length in `make prove`")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(
            _Gathering(shlex.join(map(str, config.invocation_params.args)), journal), "retrysafe-proofs"
        )


def _journal() -> Journal | None:
    """The journal of this run, if it has one; the seed is that of the journal, and the workers learn what is done."""
    if JOURNAL not in os.environ:
        return None
    journal = Journal(Path(os.environ[JOURNAL]))
    if journal.seed is not None:
        os.environ[effort.SEED] = str(journal.seed)
    journal.begin(effort.seed())
    done = journal.path.with_suffix(".done")
    done.write_text("\n".join(journal.passed), encoding="utf-8")
    os.environ[DONE] = str(done)
    return journal


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the journal has; all workers see the same, also one that starts later."""
    if DONE in os.environ:
        done = set(Path(os.environ[DONE]).read_text(encoding="utf-8").splitlines())
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in done])
        items[:] = [item for item in items if item.nodeid not in done]


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
    if report.passed and report.when == "call":
        _take_down_marks(item, report)
    if report.failed and "chance" in getattr(item, "fixturenames", ()):
        full = f"{effort.EFFORT}=full " if effort.is_full() else ""
        report.sections.append(("seed", f"{full}{effort.SEED}={effort.seed()} python -m pytest '{item.nodeid}'"))


def _take_down_marks(item: pytest.Item, report: pytest.TestReport) -> None:
    """Let a test of a marked part prove each of its rows once, unless it has told what it proved."""
    part = PARTS.get(item.nodeid.split("/")[1] if item.nodeid.startswith("tests/") else "")
    if part is None or any(name == "proof" for name, _ in report.user_properties):
        return
    named = _PLACE.search(item.nodeid.partition("[")[2])
    for row in sorted({row for mark in item.iter_markers("fault") for row in mark.args}):
        proved = Proof(part, named[1] if named else "", "", FAULTS[row].fault.rstrip("."), 1, rows=(row,))
        report.user_properties.append(("proof", proved._asdict()))


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

    def __init__(self, command: str, journal: Journal | None) -> None:
        self.command = command
        self.journal = journal
        earlier = journal.passed if journal else {}
        self.found: list[dict[str, Any]] = [one for proved in earlier.values() for one in proved]
        self.tests: dict[str, int] = {"passed": len(earlier)} if earlier else {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.tests[report.outcome] = self.tests.get(report.outcome, 0) + 1
        if report.when == "call":
            proved: list[Any] = [value for name, value in report.user_properties if name == "proof"]
            self.found += proved
            if self.journal is not None and report.passed and not isinstance(report, pytest.SubtestReport):
                self.journal.add(report.nodeid, proved)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and self.tests:
            session.exitstatus = pytest.ExitCode.OK  # the journal has all of them
        if PROOFS in os.environ:
            proofs.write(Path(os.environ[PROOFS]), self.found, versions(), self.tests, self.command)


def versions() -> dict[str, str]:
    """Versions of the servers under test."""
    from tests.proving.servers import server_versions

    return server_versions()
