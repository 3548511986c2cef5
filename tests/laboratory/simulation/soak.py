"""Millions of schedules on all cores: `make soak`."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TextIO

from tests.laboratory.simulation.plan import named
from tests.laboratory.simulation.report import Report
from tests.laboratory.simulation.schedule import Script, simulate
from tests.laboratory.simulation.shrinking import shrink
from tests.laboratory.simulation.survey import NOTHING, Survey, survey
from tests.laboratory.simulation.world import Clock, Subject, memory

CHUNK = 200
"""Seeds that a process is given at a time."""
_EVERY = 5.0
"""Seconds between two lines of progress."""

Told = Callable[[str], None]


class Work(NamedTuple):
    """A range of seeds, gone through once for every plan; ``store`` names a factory of a `Subject`."""

    seeds: range
    plans: tuple[str, ...]
    store: str = ""
    shrinks: bool = True


class _Chunk(NamedTuple):
    seeds: range
    plan: str
    store: str


def factory(store: str) -> Callable[[Clock], Subject]:
    """The factory that ``module:factory`` names; the memory store by default."""
    if not store:
        return memory
    from importlib import import_module

    sys.path.insert(0, os.getcwd())  # noqa: PTH109 - as `python -m` does
    module, _, name = store.partition(":")
    found: Callable[[Clock], Subject] = getattr(import_module(module), name)
    return found


def soak(work: Work, *, processes: int | None = None, out: TextIO = sys.stdout) -> Survey:
    """Go through the seeds until one fails; tell of progress, and at the end of what was met."""
    processes = processes or os.cpu_count() or 1
    total, began, told = NOTHING, time.monotonic(), time.monotonic()
    chunks = list(_chunks(work))
    wanted = len(work.seeds) * len(work.plans)
    print(f"{wanted} schedules: seeds {_range(work.seeds)} in {len(work.plans)} plans", file=out, flush=True)
    upto = work.seeds.start
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for chunk, found in pool.imap(_run, chunks):
            total = total.plus(found)
            if found.failures:
                break
            if chunk.plan == work.plans[-1]:
                upto = chunk.seeds.stop
            if time.monotonic() - told > _EVERY:
                told = time.monotonic()
                rate = total.seeds / (told - began)
                print(f"  {total.seeds}/{wanted}, {rate:.0f}/s; seeds before {upto} are done", file=out, flush=True)
        pool.terminate()
    if total.failures:
        tell_failure(total.failures[0], work.store, shrinks=work.shrinks, out=out)
    tell_survey(total, time.monotonic() - began, out)
    if total.failures:
        print(f"stopped at a failure; seeds before {upto} have passed: go on with --from {upto}", file=out)
    return total


def _range(seeds: range) -> str:
    return f"{seeds.start}–{seeds.stop - 1}" if seeds else "none"


def _chunks(work: Work) -> Iterator[_Chunk]:
    for start in range(work.seeds.start, work.seeds.stop, CHUNK):
        for plan in work.plans:
            yield _Chunk(range(start, min(start + CHUNK, work.seeds.stop)), plan, work.store)


def _run(chunk: _Chunk) -> tuple[_Chunk, Survey]:
    found = survey(chunk.seeds, plan=named(chunk.plan), subject=factory(chunk.store), stop_after=1)
    return chunk, found._replace(failures=tuple(report.portable(chunk.store) for report in found.failures))


def tell_failure(report: Report, store: str = "", *, shrinks: bool, out: TextIO) -> None:
    """Print a failing schedule, cut down to what it takes, with the commands that play it again."""
    print(f"\nseed {report.seed} broke a promise:", *report.violations, sep="\n  ", file=out)
    print(f"again:  {report.command}", file=out)
    if not shrinks:
        print(f"\n{report}", file=out)
        return

    def replay(script: Script) -> Report:
        return simulate(report.seed, plan=report.plan, subject=factory(store), script=script)

    small = shrink(report, replay)._replace(store=store)
    print(f"\ncut down from {len(report.injected)} faults to {len(small.injected)}:\n\n{small}", file=out)


def tell_survey(total: Survey, seconds: float, out: TextIO) -> None:
    """Print what was met how often."""
    print(f"\n{total.seeds} schedules in {seconds:.1f} s, {total.seeds / max(seconds, 1e-9):.0f}/s", file=out)
    print(f"longest wait for an answer after the last fault: {total.longest} µs of simulated time", file=out)
    for title, counts in (("faults", total.faults), ("sights", total.seen)):
        print(title, file=out)
        ordered: Sequence[tuple[str, int]] = sorted((str(name), number) for name, number in counts.items())
        for name, number in ordered:
            print(f"  {number:>12}  {name}", file=out)
