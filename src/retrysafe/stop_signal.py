"""Waking a loop in the background to its end, from a thread, a task or a signal handler."""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, NoReturn

from retrysafe import runtime
from retrysafe.errors import ConfigurationError

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def end_process(number: int, _: object) -> NoReturn:
    """Do what a signal without a handler does."""
    os._exit(128 + number)


_UNHANDLED = (signal.SIG_DFL, signal.default_int_handler, end_process)


def heed_as_first_process() -> None:
    """Let SIGTERM end a process with the id 1, as in a container: the kernel hands it no signal without a handler."""
    if runtime.pid == 1 and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, end_process)


SAME = 1.0
"""Seconds for which a further signal is the first one again: a terminal and a supervisor may both pass on a Ctrl-C."""


class _Hearing(NamedTuple):
    """A listener for signals: a run that goes on until it is stopped, or the program around one."""

    hear: Callable[[int], None]
    process: int
    loop: asyncio.AbstractEventLoop | None

    @property
    def is_there(self) -> bool:
        """A child that was forked has those of its parent in its list, too; a loop may have been closed over one."""
        return self.process == runtime.pid and not (self.loop is not None and self.loop.is_closed())


_hearing: list[_Hearing] = []
_before: dict[int, Any] = {}
"""The former handlers of the signals that we have taken, until these are given back."""


@contextmanager
def stopped_by_signals(stop: Callable[[], None], again: Callable[[int], None] | None = None) -> Iterator[None]:
    """Let SIGTERM and SIGINT call ``stop`` during the block, instead of ending the process in the middle of its work.

    Blocks may overlap: a signal calls the ``stop`` of each. ``again`` is called with the number of a signal that comes
    later than `SAME` seconds after the first.

    A signal that the program handles itself keeps its handler: that of a server, or of `asyncio.run`, which cancels the
    main task on SIGINT. Outside the main thread nothing changes, because only that one may set handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    first: float | None = None

    def hear(number: int) -> None:
        nonlocal first
        now = time.monotonic()
        first = now if first is None else first
        stop()
        if again is not None and now - first > SAME:
            again(number)

    mine = _Hearing(hear, runtime.pid, _running_loop())
    _hearing[:] = [*_present(), mine]
    try:
        for number in _SIGNALS:
            if signal.getsignal(number) in _UNHANDLED:
                _before[number] = signal.signal(number, _tell)
        yield
    finally:
        with suppress(ValueError):  # in a child that was forked in the block
            _hearing.remove(mine)
        if not _present():
            _give_back()


def _present() -> list[_Hearing]:
    return [one for one in _hearing if one.is_there]


def _running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop that this code runs on, if it does."""
    if "asyncio" not in sys.modules:
        return None
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _tell(number: int, _: object) -> None:
    hearing = _present()
    for one in hearing:
        one.hear(number)
    if not hearing:  # a child of ours, or a server had taken the signal and has given it back to us since
        signal.signal(number, _before.pop(number, signal.SIG_DFL))
        signal.raise_signal(number)


def _give_back() -> None:
    """Let signals do what they did before; one that the program has taken meanwhile is its own."""
    for number in [*_before]:
        if signal.getsignal(number) is _tell:
            signal.signal(number, _before.pop(number))


class StopSignal:
    """Rung once and for good; nudged, it only ends the wait that is under way, or the next one.

    A simple queue, since an event must not be set by a signal handler of the very thread that waits for it.

    Arguments:
        loop: the event loop that its run ends with.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.rung = False
        self._nudged = False
        self._queue: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._run_loop = self._loop = loop
        self._waiters: set[asyncio.Future[None]] = set()

    @property
    def is_closed_over(self) -> bool:
        """True if the event loop of its run was closed over it; other loops that were waited on say nothing of that."""
        return self._run_loop is not None and self._run_loop.is_closed()

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

    A stop is for the runs that are under way. Before the first run, and after one that ended by an error, it is for the
    next: the thread that runs it may not have come so far, or is about to try again. After a run that ended by itself a
    stop does nothing, so that it cannot end a run that comes later. A run whose event loop was closed over it has ended
    by an error.

    Arguments:
        alone: why there may be no second run beside the first; empty if there may.
    """

    def __init__(self, alone: str = "") -> None:
        self._alone = alone
        self._running: list[StopSignal] = []
        self._process = runtime.pid
        self._ended_well = self._is_early = False

    def begin(self, loop: asyncio.AbstractEventLoop | None = None) -> StopSignal:
        """The signal of a run that begins. Raises `ConfigurationError` when it may not run beside another.

        ``loop``: the one that it runs on, with which it ends, too.
        """
        self._forget_the_dead()
        stop = StopSignal(loop)
        self._running.append(stop)
        if self._alone and self._running[0] is not stop:  # of two threads that begin at once, one is the first
            self._running.remove(stop)
            raise ConfigurationError(self._alone)
        if self._is_early:
            self._is_early = False
            stop.ring()
        return stop

    def end(self, stop: StopSignal, *, well: bool = True) -> None:
        """The run with this signal is over: by itself, or by an error. Further calls do nothing."""
        self._forget_the_dead()
        self._end(stop, well=well)

    @contextmanager
    def during(self, stop: StopSignal) -> Iterator[None]:
        """The run with this signal, to its end."""
        well = False
        try:
            yield
            well = True
        finally:
            self.end(stop, well=well)

    @contextmanager
    def run(self) -> Iterator[StopSignal]:
        """A run of this thread, from its beginning to its end."""
        stop = self.begin(_running_loop())
        with self.during(stop):
            yield stop

    def stop(self) -> None:
        """Stop the runs that there are, or the next one; see above. Safe to call from a signal handler."""
        self._forget_the_dead()
        self._is_early = not (self._running or self._ended_well)
        self.ring()

    def ring(self) -> None:
        """Stop the runs that there are."""
        self._forget_the_dead()
        for stop in [*self._running]:
            stop.ring()

    def _end(self, stop: StopSignal, *, well: bool) -> None:
        with suppress(ValueError):  # it has ended; perhaps a signal handler has just seen to that
            self._running.remove(stop)
            self._ended_well = well

    def _forget_the_dead(self) -> None:
        """End the runs whose event loops were closed over them.

        What runs in the process that this one was forked from does not run here, and what it was told is its own.
        """
        if self._process != runtime.pid:
            self._running, self._ended_well, self._is_early = [], False, False
            self._process = runtime.pid
        for one in [*self._running]:
            if one.is_closed_over:
                self._end(one, well=False)
