"""Services: a test that needs one is skipped with the reason when it is absent, and fails in CI."""

from __future__ import annotations

import gc
import logging
import os
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from fnmatch import fnmatch
from itertools import chain, groupby, islice
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

import pytest
from hypothesis import settings

from retrysafe.backends import registry
from retrysafe.backends.registry import stores
from retrysafe.claims import context
from tests.proving import effort
from tests.stores.ageing import mysql_connection
from tests.stores.harnesses import HARNESSES, finish
from tests.stores.harnesses.base import AnyHarness
from tests.versions import OTHER_VERSIONS, variable_of

pytest_plugins = [
    "pytester",
    "tests.cells",
    "tests.deadlines",
    "tests.forking",
    "tests.proving.plugin",
    "tests.reporting",
    "tests.slowness",
]

settings.register_profile("ci", parent=settings.get_profile("ci"), max_examples=effort.effort(50, 100))

POSTGRESQL, MYSQL = "RETRYSAFE_TEST_POSTGRESQL", "RETRYSAFE_TEST_MYSQL"
FOUND = pytest.StashKey[set[str]]()
OWN_DATABASES = pytest.StashKey[dict[str, tuple[str, str]]]()


def pytest_configure() -> None:
    """Let programs that tests start hear SIGINT.

    A shell lets what it runs in the background ignore it, and every program that is started from there.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave what is collected to live on: every collection of garbage would look at hundreds of thousands of objects.

    In the tests that fork, each child would copy them too.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(10_000, 20)  # the usual one takes an eighth of the time of all tests
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let each worker begin with a share of what is slow: at the end one would be busy with it alone, for minutes.

    xdist hands out as many neighbours to each worker. Tests of a file stay together, for the fixtures that they share.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    slow = [item for item in items if item.get_closest_marker("slow") is not None]
    slow.sort(key=lambda item: {*item.path.parts}.isdisjoint({"streams", "tasks"}))
    quick = iter([item for item in items if item.get_closest_marker("slow") is None])
    shares: list[list[pytest.Item]] = [[] for _ in range(workers)]
    for _, tests in groupby(slow, key=lambda item: item.path):
        min(shares, key=len).extend(tests)
    left = len(items)
    for number, share in enumerate(shares):
        size = left // (workers - number)
        share += islice(quick, max(0, size - len(share)))
        left -= size
    items[:] = [*chain(*shares), *quick]


def pytest_sessionstart(session: pytest.Session) -> None:
    """Give every run, and every worker of a run, a database of its own on each SQL server."""
    session.config.stash[FOUND] = files_at_the_root()
    session.config.stash[OWN_DATABASES] = {}
    for variable, server in os.environ.items():
        perform = _sql_server(variable)
        if perform is not None:
            name = f"retrysafe_test_{os.getpid()}"
            perform(server, f"DROP DATABASE IF EXISTS {name}")
            perform(server, f"CREATE DATABASE {name}")
            session.config.stash[OWN_DATABASES][variable] = (server, name)
    for variable, (server, name) in session.config.stash[OWN_DATABASES].items():
        os.environ[variable] = urlsplit(server)._replace(path=f"/{name}").geturl()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Drop them."""
    own = session.config.stash.get(OWN_DATABASES, {})
    os.environ.update({variable: server for variable, (server, _) in own.items()})
    for variable, (server, name) in own.items():
        perform = _sql_server(variable)
        assert perform is not None
        perform(server, f"DROP DATABASE {name}{' WITH (FORCE)' if perform is _on_postgresql else ''}")

    if not hasattr(session.config, "workerinput") and files_at_the_root() - session.config.stash[FOUND]:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    finish()


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    """A command that a test runs in this process sends its log to stderr, from level INFO, for good."""
    log = logging.getLogger("retrysafe")
    level, handlers = log.level, log.handlers[:]
    yield
    log.setLevel(level)
    log.handlers[:] = handlers


@pytest.fixture(autouse=True)
def files_of_the_test_are_closed(request: pytest.FixtureRequest) -> Iterator[None]:
    """A process shares the connections of a URL for as long as it lives: thousands of tests would keep theirs open."""
    yield
    folder = (getattr(request.node, "funcargs", None) or {}).get("tmp_path")
    if folder is not None:
        for backend in [shared for name, (shared, _) in registry._shared.items() if str(folder) in str(name)]:
            registry.forget(backend)
            backend.close()


@pytest.fixture(autouse=True)
def claims_of_the_test_are_left() -> Iterator[None]:
    """A claim that a test leaves open would be the enclosing one of every later test in its process."""
    yield
    left = context.enclosing()
    if left is not None:
        context.innermost.set(None)
        pytest.fail(f"the test left a claim of {left.operation!r} open")


def files_at_the_root() -> set[str]:
    """The names of what lies at the top of the working tree, but for what git is told to ignore."""
    root = Path(__file__).parents[1]
    ignored = [line.strip("/") for line in (root / ".gitignore").read_text(encoding="utf-8").splitlines()]
    names = (path.name for path in root.iterdir())
    return {name for name in names if not any(fnmatch(name, pattern) for pattern in ignored)}


def _sql_server(variable: str) -> Callable[[str, str], None] | None:
    """Return a function that performs a statement on the variable's SQL server; None for any other variable."""
    if variable.startswith(POSTGRESQL):
        return _on_postgresql
    return _on_mysql if variable.startswith(MYSQL) else None


def _on_postgresql(server: str, sql: str) -> None:
    import psycopg

    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(sql.encode())


def _on_mysql(server: str, sql: str) -> None:
    with closing(mysql_connection(server, autocommit=True)) as connection:
        connection.cursor().execute(sql)


def require(service: str) -> None:
    """Skip the test when the service is absent; in CI an absent service is a failure."""
    if variable_of(service) not in os.environ:
        absent(f"no {service}: {variable_of(service)} is not set; run scripts/services start {service}")


def served(request: pytest.FixtureRequest, service: str | None) -> None:
    """Require the service for one test; another version takes the place of the ordinary one for as long."""
    if service is None:
        return
    require(service)
    if service in OTHER_VERSIONS:
        patch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
        patch.setenv(variable_of(OTHER_VERSIONS[service]), os.environ[variable_of(service)])


def unfetched(reason: str) -> NoReturn:
    """Skip the test for what only `make prove` fetches; a failure there."""
    if effort.is_full():
        pytest.fail(reason)
    pytest.skip(reason)


def absent(reason: str) -> NoReturn:
    """Skip the test for something that is not installed; in CI that is a failure."""
    if os.environ.get("RETRYSAFE_REQUIRE_SERVICES"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture
def postgresql() -> str:
    """The URL of the test PostgreSQL."""
    require("postgresql")
    return os.environ["RETRYSAFE_TEST_POSTGRESQL"]


@pytest.fixture
def mysql() -> str:
    """The URL of the test MySQL or MariaDB."""
    require("mysql")
    return os.environ["RETRYSAFE_TEST_MYSQL"]


@pytest.fixture(params=HARNESSES)
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AnyHarness]:
    """Every store behind every executor."""
    service, make = HARNESSES[request.param]
    served(request, service)
    made = make(tmp_path)
    yield made
    made.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say at the end what each store promises, and how much was skipped and why, so that no skip goes unseen.

    A test that leaves a file at the top of the working tree fails the run: it would be committed one day.
    """
    for name in sorted(files_at_the_root() - terminalreporter.config.stash[FOUND]):
        terminalreporter.write_line(f"a test left {name} behind: give it tmp_path", red=True)
    for store in stores():
        known = store.capabilities
        terminalreporter.write_line(
            f"{known.name}: transactions={known.transactions} waits_in_transaction={known.waits_in_transaction}"
        )
    reasons: dict[str, int] = {}
    for report in terminalreporter.stats.get("skipped", []):
        reason = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reasons[reason] = reasons.get(reason, 0) + 1
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(f"{count} skipped: {reason}")
