"""The implementation of the pytest plugin's fixtures."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl, urlencode

import pytest

from retrysafe import testing
from retrysafe.backends import registry
from retrysafe.backends.backend import Backend
from retrysafe.backends.driver import arun, run
from retrysafe.boundary import Boundary
from retrysafe.protocol.migrating import CreatedStore
from retrysafe.testing.asserting import ACounted, Counted, aassert_once, assert_once
from retrysafe.testing.duplicates import redelivered
from retrysafe.testing.time_travel import clear

if TYPE_CHECKING:
    from retrysafe.testing.crashing import Report

T = TypeVar("T")


# ---------------------------------------------------------------- the store


@contextmanager
def store(config: pytest.Config, folder: Callable[[], Path]) -> Iterator[str]:
    """The URL of a store without records: a new SQLite file, or the one that the configuration gives, cleared."""
    given = config.getoption("retrysafe_store") or config.getini("retrysafe_store")
    url = _of_this_worker(given, config) if given else f"sqlite:///{folder() / 'retrysafe.db'}"
    backend = registry.connect(url)
    try:
        if given:
            _empty(backend)
        yield url
    finally:
        close_all(backend)


_ASYNC = {"sqlite": ("aiosqlite",), "postgresql": ("asyncpg", "psycopg"), "mysql": ("asyncmy",)}
"""The async drivers that SQLAlchemy and retrysafe know, by the kind of database."""


def async_url(url: str) -> str:
    """The URL by which SQLAlchemy makes an async engine on the database of a store, with a driver that is installed."""
    scheme, rest = url.split(":", 1)
    kind, _, given = scheme.partition("+")
    drivers = _ASYNC.get(kind)
    if drivers is None:
        raise pytest.UsageError(f"retrysafe_async_url: SQLAlchemy has no engine for a store on {kind}.")
    if given not in drivers:
        given = next((driver for driver in drivers if find_spec(driver) is not None), drivers[0])
    place, _, query = rest.partition("?")
    options = [(name, value) for name, value in parse_qsl(query) if name != "pool"]
    if given == "asyncpg":  # of libpq's options it has this one, by another name
        options = [("ssl", value) for name, value in options if name in ("ssl", "sslmode")]
    return f"{kind}+{given}:{place}{'?' if options else ''}{urlencode(options)}"


def _of_this_worker(given: str, config: pytest.Config) -> str:
    if given.startswith("memory:"):
        raise pytest.UsageError("--retrysafe-store: every boundary on memory:// has records of its own. Use sqlite.")
    xdist: dict[str, Any] = getattr(config, "workerinput", {"workerid": "gw0", "workercount": 1})
    if "{worker}" not in given and xdist["workercount"] > 1:
        raise pytest.UsageError(
            f"--retrysafe-store={given}: the tests of several xdist workers would forget each other's records. Put "
            "{worker} into the URL, such as redis://localhost/{worker} or postgresql://localhost/test_{worker}."
        )
    return given.replace("{worker}", xdist["workerid"].removeprefix("gw"))


def _empty(backend: Backend) -> None:
    """Migrate, and forget what is there; async clients are driven on a loop in another thread, not to disturb any."""
    if backend.serves_sync:
        if isinstance(backend.store, CreatedStore) or run(backend.tables.schema(), backend.client()) is not None:
            backend.migrate()
        run(clear(backend.store), backend.client())
        return
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, _aempty(backend)).result()


async def _aempty(backend: Backend) -> None:
    try:
        if (
            isinstance(backend.store, CreatedStore)
            or await arun(backend.tables.schema(), backend.aclient()) is not None
        ):
            await backend.amigrate()
        await arun(clear(backend.store), backend.aclient())
    finally:
        await backend.aclose()


def close_all(backend: Backend) -> None:
    """Close all connections of a backend, though in use, on loops that stand still too."""
    registry.forget(backend)
    for loop in backend.aclient.loops():
        if not (loop.is_closed() or loop.is_running()):
            loop.run_until_complete(backend.aclose())
    backend.close()


# ---------------------------------------------------------------- boundaries


@contextmanager
def boundaries(url: str) -> Iterator[Callable[..., Boundary]]:
    """A function that makes boundaries on a store, which are closed at the end."""
    made: list[Boundary] = []

    def make(name: str = "test", **settings: Any) -> Boundary:
        given: dict[str, Any] = {"store": url, **settings}
        boundary: Boundary = Boundary(name, **given)
        made.append(boundary)
        return boundary

    try:
        yield make
    finally:
        for boundary in made:
            boundary.close()
            close_all(boundary._settings.backend)


# ---------------------------------------------------------------- duplicates and redeliveries


class Duplicates:
    """`assert_once` with duplicates that begin together."""

    def __call__(self, operation: Callable[[], T], *, effects: Counted, copies: int = 8, retries: int = 1) -> T:
        """Call ``operation`` on ``copies`` threads at once, then ``retries`` times; see `assert_once`."""
        return assert_once(operation, effects=effects, copies=copies, retries=retries)

    async def acall(
        self, operation: Callable[[], Awaitable[T]], *, effects: ACounted, copies: int = 8, retries: int = 1
    ) -> T:
        """Async calls, in ``copies`` tasks."""
        return await aassert_once(operation, effects=effects, copies=copies, retries=retries)


class Redeliver:
    """`redelivered` with a seed of the test's own."""

    def __init__(self, seed: str) -> None:
        self.seed = seed
        self._calls = 0

    def __call__(self, messages: Iterable[T], *, chance: float = 0.3, out_of_order: bool = False) -> list[T]:
        """The deliveries of ``messages``; see `redelivered`. The next call gives other ones."""
        self._calls += 1
        return redelivered(messages, seed=f"{self.seed} {self._calls}", chance=chance, out_of_order=out_of_order)


def crash_points(run: Callable[[Any], Any], **how: Any) -> Report:
    """`retrysafe.testing.crash_points`, which fails the test unless all is well."""
    report = testing.crash_points(run, **how)
    if not report.ok:
        pytest.fail(str(report), pytrace=False)
    return report
