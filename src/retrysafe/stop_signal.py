"""Waking a loop in the background to its end, from a thread, a task or a signal handler."""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from retrysafe import runtime
from retrysafe.errors import ConfigurationError


class StopSignal:
    """Rung once and for good; nudged, it only ends the wait that is under way, or the next one.

    A simple queue, since an event must not be set by a signal handler of the very thread that waits for it.

    Arguments:
        loop: the event loop of its run, which is over once that is closed.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.rung = False
        self._nudged = False
        self._queue: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._run_loop = self._loop = loop
        self._process = runtime.pid
        self._waiters: set[asyncio.Future[None]] = set()

    def is_current(self) -> bool:
        """Tell whether its run may go on: it is not its parent's in a forked child, nor is its event loop closed."""
        return self._process == runtime.pid and not (self._run_loop is not None and self._run_loop.is_closed())

    def ring(self) -> None:
        """Wake, now and ever after."""
        self.rung = True
        self._queue.put(None)
        self._wake_soon()

    def nudge(self) -> None:
        """Wake once; any number of nudges before the next wait are one."""
        if not self._nudged:
            self._nudged = True
            self._queue.put(None)
            self._wake_soon()

    def wait(self, seconds: float) -> bool:
        """Wait so long, or until it is rung or nudged; whether it was nudged."""
        if not self.rung and seconds > 0:
            with suppress(queue.Empty):
                self._queue.get(timeout=min(seconds, threading.TIMEOUT_MAX))
            self._pass_on()
        return self._was_nudged()

    async def await_for(self, seconds: float) -> bool:
        """`wait` for async code."""
        self._loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.add(waiter)
        try:
            if not self.rung and not self._nudged:
                await asyncio.wait((waiter,), timeout=seconds)
        finally:
            self._waiters.discard(waiter)
        return self._was_nudged()

    def _pass_on(self) -> None:
        """Wake the other waiters."""
        if self.rung:
            self._queue.put(None)

    def _was_nudged(self) -> bool:
        nudged, self._nudged = self._nudged, False
        if nudged:
            with suppress(queue.Empty):
                self._queue.get_nowait()
        return nudged

    def _wake_soon(self) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            with suppress(RuntimeError):  # closed since
                loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)


class Stops:
    """The stop signals of one object's runs: each run has its own.

    A stop is for the runs that are under way; before the first one it is for that, whose thread may not have come so
    far. After a run it does nothing, so that it cannot end a run that comes later.

    Arguments:
        alone: why there may be no second run beside the first; empty if there may.
    """

    def __init__(self, alone: str = "") -> None:
        self._alone = alone
        self._running: list[StopSignal] = []
        self._has_run_in = self._was_stopped_in = 0
        """The numbers of the latest process: a forked child begins anew."""

    def begin(self, loop: asyncio.AbstractEventLoop | None = None) -> StopSignal:
        """The signal of a run that begins. Raises `ConfigurationError` when it may not run beside another.

        ``loop``: the one that it runs on, with which it ends, too.
        """
        stop = StopSignal(loop)
        self._running[:] = [one for one in self._running if one.is_current()]
        self._running.append(stop)
        if self._alone and self._running[0] is not stop:  # of two threads that begin at once, one is the first
            self._running.remove(stop)
            raise ConfigurationError(self._alone)
        if self._has_run_in != runtime.pid == self._was_stopped_in:
            stop.ring()
        self._has_run_in = runtime.pid
        return stop

    def end(self, stop: StopSignal) -> None:
        """The run with this signal is over. Further calls do nothing."""
        with suppress(ValueError):
            self._running.remove(stop)

    @contextmanager
    def during(self, stop: StopSignal) -> Iterator[None]:
        """The run with this signal, to its end."""
        try:
            yield
        finally:
            self.end(stop)

    @contextmanager
    def run(self) -> Iterator[StopSignal]:
        """A run of this thread, from its beginning to its end."""
        stop = self.begin(_running_loop())
        with self.during(stop):
            yield stop

    def stop(self) -> None:
        """Stop the runs that there are, or the first one; see above. Safe to call from a signal handler."""
        self._was_stopped_in = runtime.pid
        self.ring()

    def ring(self) -> None:
        """Stop the runs that there are."""
        for stop in [*self._running]:
            if stop.is_current():
                stop.ring()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop that this code runs on, if it does."""
    if "asyncio" not in sys.modules:
        return None
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
