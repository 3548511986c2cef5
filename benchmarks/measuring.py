"""Interleaved measurement: ours and the floor by turns, so that what disturbs the machine disturbs both."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from benchmarks.rows import Row, Side, Unit

_numbers = itertools.count()


class Effort(NamedTuple):
    """How long to measure: pairs of turns, and about how long one turn takes."""

    rounds: int
    seconds: float


FULL = Effort(rounds=21, seconds=0.15)
QUICK = Effort(rounds=5, seconds=0.03)


class Figures(NamedTuple):
    """What was measured: seconds per operation of both sides, and the figure of every round."""

    ours: float
    floor: float
    rounds: list[float]

    @property
    def median(self) -> float:
        """The figure that counts."""
        return median(self.rounds)


def measure(row: Row, effort: Effort) -> Figures:
    """Measure one row: warm up, find how many operations fill a turn, then take turns."""
    with row.sides() as sides:
        count = _operations_in_a_turn(row, sides.ours, sides.floor, effort.seconds)
        ours: list[float] = []
        floor: list[float] = []
        for number in range(effort.rounds):
            turns = [(sides.ours, ours), (sides.floor, floor)]
            for side, times in turns if number % 2 else reversed(turns):
                times.append(_turn(side, count, row.unit, replay=row.replay))
    rounds = [row.unit.figure(*pair) for pair in zip(ours, floor, strict=True)]
    return Figures(median(ours), median(floor), rounds)


def _operations_in_a_turn(row: Row, ours: Side, floor: Side, seconds: float) -> int:
    for side in (ours, floor):
        _pass(side, _keys(32), replay=row.replay)
    count = 1
    while True:
        keys = _keys(count)
        began = time.perf_counter()
        _pass(ours, keys, replay=row.replay)
        if (took := time.perf_counter() - began) > seconds / 4:
            return max(1, round(count * seconds / took))
        count *= 4


def _turn(side: Side, count: int, unit: Unit, *, replay: bool) -> float:
    """Seconds for one operation."""
    keys = _keys(count)
    if replay:
        side(keys)
    began = unit.clock()
    side(keys)
    return (unit.clock() - began) / count


def _pass(side: Side, keys: Sequence[str], *, replay: bool) -> None:
    for _ in range(1 + replay):
        side(keys)


def _keys(count: int) -> list[str]:
    return [f"order-{number}" for number in itertools.islice(_numbers, count)]
