"""The definition of a benchmark: the same work by several contenders, of which "floor" is the same work written by
hand.
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

OURS, FLOOR = "retrysafe", "floor"

Work = Callable[[str], Awaitable[object]]
"""One operation of one async client."""


class Turn(NamedTuple):
    """The cost of one operation, as an average over a turn."""

    spent: float
    """In the unit of the row: seconds as a rule, of the wall's clock."""
    cpu: float | None
    """Seconds of processor time."""


def cpu() -> float:
    """Seconds of processor time used by this process, all its threads and its ended children."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def cpu_of(*processes: int) -> Callable[[], float]:
    """Reads the processor time that running processes have used, all their threads included."""
    clocks = [~process << 3 | 2 for process in processes]  # Linux's CPU clock of a process
    return lambda: sum(time.clock_gettime(clock) for clock in clocks)


class Side(NamedTuple):
    """A contender that is ready to work."""

    work: Callable[[Sequence[str]], Turn | None]
    """Does one operation for each key. It returns what counts, where that isn't all of its time."""
    cpu: Callable[[], float] = cpu
    """The clock of the processor time that counts."""


Opener = Callable[[], AbstractContextManager[Side]]
"""Sets a contender up, with a store of its own, and takes it down."""


class Stopwatch:
    """For a side that measures a part of its turn itself."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), cpu()

    def turn(self, operations: int) -> Turn:
        """Return the cost since the start."""
        return Turn((time.perf_counter() - self._wall) / operations, (cpu() - self._cpu) / operations)


class Row(NamedTuple):
    """One line of the table."""

    name: str
    beside: str
    """The floor, in words."""
    contenders: Mapping[str, Opener]
    """Ours, the floor, and rivals that do the same work."""
    replay: bool = False
    """True if the second pass over the same keys is what counts."""
    needs: tuple[str, ...] = ()
    """Services, as names of `services.VARIABLES`."""
    counted: tuple[str, ...] = ()
    """The services to which round trips are counted."""
    unit: str = "s"
    """Of what is spent: "s", or "bytes"."""
    operations: int | None = None
    """The number of operations of a turn; without it, as many as fill its time."""
    long: bool = False
    """True if it is measured only by `--full`."""


def one_by_one(work: Callable[[str], object]) -> Side:
    """A side with a single sync client."""

    def turn(keys: Sequence[str]) -> None:
        for key in keys:
            work(key)

    return Side(turn)


def at_once(runner: asyncio.Runner, clients: Sequence[Work]) -> Side:
    """A side with async clients that work at the same time, each on its share of the keys."""

    async def client(work: Work, keys: Sequence[str]) -> None:
        for key in keys:
            await work(key)

    async def turn(keys: Sequence[str]) -> None:
        await asyncio.gather(*(client(work, keys[i :: len(clients)]) for i, work in enumerate(clients)))

    return Side(lambda keys: runner.run(turn(keys)))
