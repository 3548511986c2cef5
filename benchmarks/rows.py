"""What a benchmark is: two sides that do the same work, a unit to compare them in, and an aim."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

Side = Callable[[Sequence[str]], object]
"""Does one operation for each of the keys."""
Work = Callable[[str], Awaitable[object]]
"""One operation of one async client."""


class Sides(NamedTuple):
    """The same work twice: through retrysafe, and as the best straightforward code by hand."""

    ours: Side
    floor: Side


class Unit(NamedTuple):
    """How two sides are compared: their times for one operation, in seconds, give one figure."""

    name: str
    clock: Callable[[], float]
    figure: Callable[[float, float], float]
    more_is_better: bool

    def met(self, figure: float, aim: float) -> bool:
        """Whether the figure reaches the aim."""
        return figure >= aim if self.more_is_better else figure <= aim


def cpu() -> float:
    """Seconds of processor time used by this process, all its threads and its ended children."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


RATIO = Unit("of floor", time.perf_counter, lambda ours, floor: floor / ours, more_is_better=True)
MICROSECONDS = Unit("µs CPU added", cpu, lambda ours, floor: (ours - floor) * 1e6, more_is_better=False)
MILLISECONDS = Unit("ms CPU added", cpu, lambda ours, floor: (ours - floor) * 1e3, more_is_better=False)


class Row(NamedTuple):
    """One line of the table. A replay is the second pass over the same keys."""

    name: str
    sides: Callable[[], AbstractContextManager[Sides]]
    unit: Unit
    aim: float | None = None
    replay: bool = False


def one_by_one(work: Callable[[str], object]) -> Side:
    """A side with a single sync client."""

    def side(keys: Sequence[str]) -> None:
        for key in keys:
            work(key)

    return side


def at_once(runner: asyncio.Runner, clients: Sequence[Work]) -> Side:
    """A side with async clients that work at the same time, each on its share of the keys."""

    async def client(work: Work, keys: Sequence[str]) -> None:
        for key in keys:
            await work(key)

    async def all_clients(keys: Sequence[str]) -> None:
        await asyncio.gather(*(client(work, keys[i :: len(clients)]) for i, work in enumerate(clients)))

    return lambda keys: runner.run(all_clients(keys))
