"""Waking a loop in the background to its end, from a thread, a task or a signal handler."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    import asyncio

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def end_process(number: int, _: object) -> NoReturn:
    """Do what a signal without a handler does."""
    os._exit(128 + number)


_UNHANDLED = (signal.SIG_DFL, signal.default_int_handler, end_process)


def heed_as_first_process() -> None:
    """Let SIGTERM end a process with the id 1, as in a container: the kernel hands it no signal without a handler."""
    if os.getpid() == 1 and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, end_process)


SAME = 1.0
"""Seconds for which a further signal is the first one again: a terminal and a supervisor may both pass on a Ctrl-C."""


@contextmanager
def stopped_by_signals(stop: Callable[[], None], again: Callable[[int], None] | None = None) -> Iterator[None]:
    """Let SIGTERM and SIGINT call ``stop`` during the block, instead of ending the process in the middle of its work.

    ``again`` is called with the number of a signal that comes later than `SAME` seconds after the first.

    A signal that the program handles itself keeps its handler: that of a server, or of `asyncio.run`, which cancels the
    main task on SIGINT. Outside the main thread nothing changes, because only that one may set handlers.
    """
    first: float | None = None

    def heard(number: int, _: object) -> None:
        nonlocal first
        now = time.monotonic()
        first = now if first is None else first
        stop()
        if again is not None and now - first > SAME:
            again(number)

    main = threading.current_thread() is threading.main_thread()
    taken = [number for number in _SIGNALS if main and signal.getsignal(number) in _UNHANDLED]
    before = {number: signal.signal(number, heard) for number in taken}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class StopSignal:
    """Rung once and for good; nudged, it only ends the wait that is under way, or the next one.

    A simple queue, since an event must not be set by a signal handler of the very thread that waits for it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.rung = False
        self._nudged = False
        self._queue: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._loop = loop
        self._waiter: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """Wake, now and ever after."""
        self.rung = True
        self._queue.put(None)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake)

    def nudge(self) -> None:
        """Wake once; any number of nudges before the next wait are one."""
        if not self._nudged:
            self._nudged = True
            self._queue.put(None)
            loop = self._loop
            if loop is not None and not loop.is_closed():
                with suppress(RuntimeError):  # closed since
                    loop.call_soon_threadsafe(self._wake)

    def wait(self, seconds: float) -> bool:
        """Wait so long, or until it is rung or nudged; whether it was nudged."""
        if not self.rung and seconds > 0:
            with suppress(queue.Empty):
                self._queue.get(timeout=min(seconds, threading.TIMEOUT_MAX))
        return self._was_nudged()

    async def await_for(self, seconds: float) -> bool:
        """`wait` for async code."""
        import asyncio

        self._loop = asyncio.get_running_loop()
        self._waiter = self._loop.create_future()
        if not self.rung and not self._nudged:
            await asyncio.wait((self._waiter,), timeout=seconds)
        return self._was_nudged()

    def _was_nudged(self) -> bool:
        nudged, self._nudged = self._nudged, False
        if nudged:
            with suppress(queue.Empty):
                self._queue.get_nowait()
        return nudged

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
