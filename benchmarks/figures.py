"""Figures of a measured row: how a contender does beside the floor, round by round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from typing import Any, NamedTuple

from benchmarks.rows import FLOOR, OURS

Result = Mapping[str, Any]
"""The result of `benchmarks.measuring` for a row."""


class Figure(NamedTuple):
    """The combination of two values, a contender's and the floor's, into one."""

    of: str
    """"spent" or "cpu"."""
    value: Callable[[float, float], float]
    more_is_better: bool
    words: str
    """With a place for the value."""

    @property
    def sign(self) -> str:
        """The sign between a value and an aim that it meets."""
        return "≥" if self.more_is_better else "≤"


FIGURES = {
    "ratio": Figure("spent", lambda ours, floor: floor / ours, True, "{:.2f} of the floor"),
    "CPU ratio": Figure("cpu", lambda ours, floor: floor / ours, True, "{:.2f} of the floor by CPU"),
    "µs of CPU added": Figure("cpu", lambda ours, floor: (ours - floor) * 1e6, False, "{:.1f} µs of CPU added"),
    "ms of CPU added": Figure("cpu", lambda ours, floor: (ours - floor) * 1e3, False, "{:.1f} ms of CPU added"),
    "ms added": Figure("spent", lambda ours, floor: (ours - floor) * 1e3, False, "{:.2f} ms added"),
    "times": Figure("spent", lambda ours, floor: ours / floor, False, "{:.2f} × the floor"),
    "ms": Figure("spent", lambda ours, floor: ours * 1e3, False, "{:.1f} ms"),
    "a second": Figure("spent", lambda ours, floor: 1 / ours, True, "{:,.0f} a second"),
    "bytes added": Figure("spent", lambda ours, floor: ours - floor, False, "{:,.0f} bytes added"),
}


class Spread(NamedTuple):
    """A figure over all rounds."""

    low: float
    median: float
    high: float


def spread(result: Result, name: str, contender: str = OURS) -> Spread | None:
    """A figure of a contender; None where it wasn't measured."""
    figure = FIGURES[name]
    measured = result["contenders"]
    ours, floor = (measured.get(one, {}).get(figure.of) for one in (contender, FLOOR))
    if ours is None or floor is None:
        return None
    values = [figure.value(mine, below) for mine, below in zip(ours, floor, strict=True) if mine and below]
    return Spread(min(values), median(values), max(values)) if values else None


def typical(result: Result, contender: str, of: str) -> float | None:
    """The median of what one operation took."""
    values = result["contenders"].get(contender, {}).get(of)
    return median(values) if values else None
