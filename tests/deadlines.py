"""A test that hangs fails under its name, and shows where its children hang.

pytest's own `faulthandler_timeout` only ends the process, long after this: it is for what no signal can interrupt.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from types import FrameType

import pytest

SHARE = 0.8
"""Of `faulthandler_timeout`."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Fail the test when its time is over."""
    limit = SHARE * float(item.config.getini("faulthandler_timeout"))
    begun = time.clock_gettime(time.CLOCK_BOOTTIME)

    def end(_signal: int, _frame: FrameType | None) -> None:
        faulthandler.dump_traceback(sys.__stderr__)
        for child in _descendants(os.getpid(), begun):
            os.kill(child, signal.SIGABRT)  # it shows where it is, if it was forked, as pytest has enabled faulthandler
        pytest.fail(f"hung for {limit:.0f} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        return (yield)
    finally:
        allow_any_time()
        signal.signal(signal.SIGALRM, before)


def allow_any_time() -> None:
    """Let the test that is running take as long as it wants."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    faulthandler.cancel_dump_traceback_later()


def _descendants(of: int, since: float) -> Iterator[int]:
    """The processes below that one which began after that moment, in seconds since the machine was started."""
    tick = os.sysconf("SC_CLK_TCK")
    begun: dict[int, float] = {}
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(stat.parent.name)], begun[int(stat.parent.name)] = int(fields[1]), int(fields[19]) / tick
    below = {of}
    while found := {child for child, parent in parents.items() if parent in below} - below:
        below |= found
    yield from sorted(child for child in below - {of} if begun[child] >= since - 1 / tick)
