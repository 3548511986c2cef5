"""A test that hangs fails under its name, and shows where its children hang.

pytest's own `faulthandler_timeout` only ends the process, long after this: it is for what no signal can interrupt.
"""

from __future__ import annotations

import faulthandler
import signal
import sys
import time
from collections.abc import Generator
from contextlib import suppress
from types import FrameType

import psutil
import pytest

SHARE = 0.8
"""Of `faulthandler_timeout`."""
CLOCK_STEP = 0.1
"""Seconds by which a process may seem to have begun too early."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Fail the test when its time is over."""
    limit = SHARE * float(item.config.getini("faulthandler_timeout"))
    begun = time.time() - CLOCK_STEP

    def end(_signal: int, _frame: FrameType | None) -> None:
        faulthandler.dump_traceback(sys.__stderr__)
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if child.create_time() >= begun:
                    child.send_signal(
                        signal.SIGABRT
                    )  # one that was forked shows where it is: pytest enables faulthandler
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
