"""Chooses the cells of matrices for `make test`: others for each commit, all of them in `make prove`.

A cell is one parametrised case of a test. The executors of a store (drivers, colours, versions of its server) count as
one value: of them each cell takes one. Of these values each is in a cell that is chosen. The suites of stores, brokers
and frameworks are marked `every_value` or `every_pair`: there each version of a server counts for itself. Of a test
that is `slow`, and no suite, one cell is enough; of such tests in a file a fifth is.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from itertools import combinations
from random import Random
from typing import Any

import pytest
from _pytest._io.saferepr import saferepr

from tests.proving import effort
from tests.versions import kind_of

Values = tuple[tuple[str, str], ...]
"""The value of each axis in one cell, with the axis's name."""

LEFT = "cells_left"
_counts: pytest.StashKey[dict[str, int]] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers."""
    config.addinivalue_line("markers", "every_value: a suite, of which `make test` has every value, versions included")
    config.addinivalue_line("markers", "every_pair: a suite, of which `make test` has every pair of values")
    config.addinivalue_line("markers", "beside: needs an engine, a browser or a program that only `make prove` fetches")
    config.addinivalue_line("markers", "one_of(group, of=5): `make test` takes one of so many tests of the group")
    config.stash[_counts] = {}


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Generator[None, object, object]:
    """Take out the cells that this run leaves, before there is an item for each."""
    result = yield
    calls = metafunc._calls
    if len(calls) > 1 and not _takes_all(metafunc.config):
        test = metafunc.definition
        values = [values_of(call.params, versions=_is_suite(test)) for call in calls]
        kept = choose(values, _strength(test), effort.chance_of(test.nodeid))
        _count(metafunc.config, test.nodeid, len(calls) - len(kept))
        calls[:] = [calls[number] for number in kept]
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only `make prove` has the programs for, and of the groups all but a share."""
    if _takes_all(config):
        return
    left = {item for item in items if item.get_closest_marker("beside") is not None}
    groups: dict[tuple[str, int], list[pytest.Item]] = {}
    for item in items:
        if (marker := item.get_closest_marker("one_of")) is not None:
            groups.setdefault((marker.args[0], marker.kwargs.get("of", 5)), []).append(item)
        elif item.get_closest_marker("slow") is not None and not _is_suite(item):
            groups.setdefault((item.nodeid.partition("::")[0], 5), []).append(item)
    for (name, share), group in groups.items():
        left |= {*group} - {*effort.chance_of(name).sample(group, max(1, round(len(group) / share)))}
    for item in left:
        _count(config, item.nodeid, 1)
    items[:] = [item for item in items if item not in left]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell the process that reports."""
    output: dict[str, object] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[LEFT] = session.config.stash[_counts]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take the counts of a worker: all workers leave the same cells."""
    node.config.stash[_counts].update(getattr(node, "workeroutput", {}).get(LEFT, {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many were left in each file, so that nothing is left unseen; with -v, of each test."""
    files: dict[str, int] = {}
    for test, count in terminalreporter.config.stash[_counts].items():
        name = test if terminalreporter.verbosity > 0 else test.partition("::")[0]
        files[name] = files.get(name, 0) + count
    for name, count in sorted(files.items()):
        terminalreporter.write_line(f"{count} cells left to make prove: {name}")
    if files:
        terminalreporter.write_line(f"{sum(files.values())} cells left to make prove in all")


def _takes_all(config: pytest.Config) -> bool:
    """Tell whether the run is at full length, or names tests or their files."""
    named = any("::" in one or one.endswith(".py") for one in config.args)
    return effort.is_full() or bool(config.option.keyword) or named


def _strength(test: pytest.Item) -> int:
    """Return the number of axes of which every combination of values is met; 0: one cell is enough."""
    if test.get_closest_marker("every_pair") is not None:
        return 2
    return 1 if test.get_closest_marker("slow") is None or _is_suite(test) else 0


def _is_suite(test: pytest.Item) -> bool:
    return any(test.get_closest_marker(name) is not None for name in ("every_value", "every_pair"))


def _count(config: pytest.Config, test: str, left: int) -> None:
    if left:
        counts = config.stash[_counts]
        name = test.partition("[")[0]
        counts[name] = counts.get(name, 0) + left


def choose(cells: Sequence[Values], strength: int, chance: Random) -> list[int]:
    """The numbers of the cells that are kept, in order: every combination of ``strength`` axes is in one of them."""
    order = list(range(len(cells)))
    chance.shuffle(order)
    if strength == 0:
        return order[:1]
    met: set[Values] = set()
    kept: list[int] = []
    for number in order:
        found = {*combinations(cells[number], min(strength, len(cells[number])))}
        if not found <= met:
            met |= found
            kept.append(number)
    return sorted(kept)


def values_of(params: Mapping[str, object], *, versions: bool = False) -> Values:
    """The value of each axis in a cell; the axes of a tuple are its places."""
    return tuple(sorted((name, _shown(value, versions)) for param in params.items() for name, value in _flat(*param)))


def _flat(name: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, tuple):
        for place, one in enumerate(value):
            yield f"{name} {place}", one
    else:
        yield name, value


def _shown(value: object, versions: bool) -> str:
    return kind_of(value, versions=versions) if isinstance(value, str) else saferepr(value, maxsize=None)
