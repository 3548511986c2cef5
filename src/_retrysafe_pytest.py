"""retrysafe's plugin for pytest: options and fixtures, nothing else.

It stands outside the package on purpose: pytest imports every plugin when it starts, in projects that only have
retrysafe installed too, and before anything measures coverage. So nothing of retrysafe is imported here until a test
uses a fixture.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from retrysafe import Boundary
    from retrysafe.testing import Clock, FaultyBroker
    from retrysafe.testing.crashing import Report
    from retrysafe.testing.fixtures import Duplicates, Redeliver

pytest.register_assert_rewrite(
    *(f"retrysafe.testing.{name}" for name in ("conformance", "differential", "lockstep", "quota_cases", "suite"))
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options for the store of the tests and for their seed."""
    group = parser.getgroup("retrysafe")
    store = (
        "run tests with retrysafe_store on this URL instead of SQLite files. Everything that retrysafe keeps there is "
        "forgotten before each test, so give a store of the tests' own; {worker} becomes the number of the xdist worker"
    )
    group.addoption("--retrysafe-store", metavar="URL", help=store)
    group.addoption("--retrysafe-seed", metavar="N", help="deliver messages again as in the run that printed this")
    parser.addini("retrysafe_store", "--retrysafe-store, where the command line does not say")


def pytest_configure(config: pytest.Config) -> None:
    """Fix the seed of the run, which is the same one for all workers of xdist."""
    if config.option.retrysafe_seed is None:
        run = getattr(config, "workerinput", {}).get("testrunuid") or os.urandom(4).hex()
        config.option.retrysafe_seed = run[:8]


@pytest.fixture
def retrysafe_store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a store for this test alone, without records; what was opened on it is closed at the end."""
    from retrysafe.testing import fixtures

    with fixtures.store(request.config, lambda: tmp_path_factory.mktemp("retrysafe")) as url:
        yield url


@pytest.fixture
def retrysafe_async_url(retrysafe_store: str) -> str:
    """The URL of `retrysafe_store` for SQLAlchemy: ``create_async_engine(retrysafe_async_url)``."""
    from retrysafe.testing import fixtures

    return fixtures.async_url(retrysafe_store)


@pytest.fixture
def retrysafe_boundary(retrysafe_store: str) -> Iterator[Callable[..., Boundary]]:
    """Makes boundaries on `retrysafe_store`: ``retrysafe_boundary(name, **terms)``. They are closed at the end."""
    from retrysafe.testing import fixtures

    with fixtures.boundaries(retrysafe_store) as make:
        yield make


@pytest.fixture
def retrysafe_clock(retrysafe_store: str) -> Iterator[Clock]:
    """Time that passes in `retrysafe_store` when the test says so: ``retrysafe_clock.advance("25h")``."""
    from retrysafe.testing import Clock

    clock = Clock(retrysafe_store)
    yield clock
    clock.close()


@pytest.fixture
def retrysafe_duplicates() -> Duplicates:
    """Calls an operation eight times at once, and then again, and asserts one effect and one answer."""
    from retrysafe.testing.fixtures import Duplicates

    return Duplicates()


@pytest.fixture
def retrysafe_redeliver(request: pytest.FixtureRequest) -> Redeliver:
    """Delivers messages again: ``for message in retrysafe_redeliver(messages)``, differently on each run."""
    from retrysafe.testing.fixtures import Redeliver

    seed = request.config.option.retrysafe_seed
    again = f"the same deliveries again: pytest --retrysafe-seed={seed} '{request.node.nodeid}'"
    request.node.add_report_section("call", "retrysafe", again)
    return Redeliver(f"{seed} {request.node.nodeid}")


@pytest.fixture
def retrysafe_broker() -> FaultyBroker:
    """A broker in memory with `outage()`, and with `relay_dies()` between publishing and marking."""
    from retrysafe.testing import FaultyBroker

    return FaultyBroker()


@pytest.fixture
def retrysafe_crash_points() -> Callable[..., Report]:
    """Crashes an operation at every step, as `retrysafe.testing.crash_points` does, and fails with the report."""
    from retrysafe.testing import fixtures

    return fixtures.crash_points
