"""Leaves cells of large or slow matrices to `make prove`: others on each run, which says how many it left."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from random import Random
from typing import Any, TypeVar

import pytest

from tests.proving import effort

Cell = TypeVar("Cell")
Axes = frozenset[tuple[str, str]]
"""The values of one cell, each with the name of its axis."""

THINNED, DRAWN = "thinned", "drawn"
LEFT = "cells_left"
_counts: pytest.StashKey[dict[str, int]] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers."""
    others = "others on each run, all in `make prove` and where tests are named"
    thinned = "this share of the cells, every value of every axis in one of them, and all that have a value of `whole`"
    drawn = "this share of the cells, or of the tests with this `of`, at least one"
    config.addinivalue_line("markers", f"{THINNED}(share, whole=()): in `make test` {thinned}; {others}")
    config.addinivalue_line("markers", f"{DRAWN}(share, of=None): in `make test` {drawn}; {others}")
    config.stash[_counts] = {}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what is thinned for `make prove`, and take out what this run leaves to it."""
    cells: dict[str, list[pytest.Function]] = {}
    for item in items:
        marker = _marker(item) if isinstance(item, pytest.Function) else None
        if marker is not None and (hasattr(item, "callspec") or "of" in marker.kwargs):
            item.add_marker("prove")
            cells.setdefault(marker.kwargs.get("of") or item.nodeid.partition("[")[0], []).append(item)
    named = config.option.keyword or any("::" in one for one in config.args)
    if effort.is_full() or named:
        return
    left = {item for test, matrix in cells.items() for item in _left(test, matrix)}
    if left:
        items[:] = [item for item in items if item not in left]
        config.hook.pytest_deselected(items=[*left])
        for item in left:
            test = item.nodeid.partition("[")[0]
            config.stash[_counts][test] = config.stash[_counts].get(test, 0) + 1


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
    """Say what was left, so that nothing is left unseen."""
    for test, count in sorted(terminalreporter.config.stash[_counts].items()):
        terminalreporter.write_line(f"{count} cells left to make prove: {test}")


def _marker(item: pytest.Function) -> pytest.Mark | None:
    return item.get_closest_marker(THINNED) or item.get_closest_marker(DRAWN)


def _left(test: str, matrix: list[pytest.Function]) -> list[pytest.Function]:
    """The cells of a test that are left to `make prove`."""
    marker = _marker(matrix[0])
    assert marker is not None
    share, chance = marker.args[0], effort.chance_of(test)
    if marker.name == DRAWN:
        kept = {*chance.sample(matrix, max(1, round(share * len(matrix))))}
    else:
        whole = {str(value) for value in marker.kwargs.get("whole", ())}
        kept = sample({item: axes_of(item.callspec.params) for item in matrix}, share, whole, chance)
    return [item for item in matrix if item not in kept]


def sample(cells: dict[Cell, Axes], share: float, whole: Collection[str], chance: Random) -> set[Cell]:
    """The share of the cells, with each value of each axis in one of them, and all that have a value of ``whole``."""
    kept = {cell for cell, axes in cells.items() if any(value in whole for _, value in axes)}
    rest = [cell for cell in cells if cell not in kept]
    chance.shuffle(rest)
    wanted = round(share * len(rest))
    missing = set().union(*cells.values()) - set().union(*(cells[cell] for cell in kept))
    picked: list[Cell] = []
    while missing:
        best = max((cell for cell in rest if cell not in picked), key=lambda cell: len(cells[cell] & missing))
        picked.append(best)
        missing -= cells[best]
    others = [cell for cell in rest if cell not in picked]
    return kept | {*picked, *others[: max(0, wanted - len(picked))]}


def axes_of(params: Mapping[str, object]) -> Axes:
    """What a cell has of each axis; the axes of a tuple are its places."""
    return frozenset((name, value) for param in params.items() for name, value in _flat(*param))


def _flat(name: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, tuple):
        for place, one in enumerate(value):
            yield f"{name} {place}", str(one)
    else:
        yield name, str(value)
