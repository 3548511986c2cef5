"""Keeping leases alive while work runs: one pure schedule, a thread for sync code, a timer for async code.

One heartbeat serves every lease of a process and store; it is started at the first lease and again
after a fork.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from retrysafe.connect import Backend
from retrysafe.core.beats import Beats
from retrysafe.errors import RetrysafeError
from retrysafe.ports import Client
from retrysafe.programs.drivers import arun, run
from retrysafe.programs.leasing import renew
from retrysafe.types import Held

if TYPE_CHECKING:
    import asyncio

_CLOCK = getattr(time, "CLOCK_BOOTTIME", None)


def clock() -> float:
    """Seconds on a clock that never goes back and, where the system has one, runs on while it is suspended."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


class Lease:
    """A lease as its holder knows it: until when it is certainly held, on this machine's own clock."""

    __slots__ = ("held", "lost", "on_failure", "on_loss", "until")

    def __init__(self, held: Held, claimed_at: float, on_loss: Callable[[], None], on_failure: Callable[[Exception], None]) -> None:
        self.held = held
        self.until = claimed_at + self.seconds
        self.lost = False
        self.on_loss = on_loss
        self.on_failure = on_failure

    @property
    def seconds(self) -> float:
        """The length of the lease."""
        return self.held.clocks.lease / 1e6

    def is_held(self) -> bool:
        """Whether the lease is certainly still held."""
        return not self.lost and clock() < self.until


class _Schedule:
    """What both heartbeats know: the leases, when they are due, and what a round of renewals means."""

    def __init__(self) -> None:
        self.beats = Beats()
        self.leases: dict[Held, Lease] = {}

    def add(self, lease: Lease) -> float:
        self.leases[lease.held] = lease
        return self.beats.add(lease.held, clock())

    def drop(self, held: Held) -> None:
        self.leases.pop(held, None)
        self.beats.drop(held)

    def renewed(self, due: list[Held], kept: set[bytes], asked_at: float) -> None:
        for held in due:
            lease = self.leases.get(held)
            if lease is None:
                continue
            if held.key in kept:
                lease.until = asked_at + lease.seconds
            else:
                self._lose(lease)

    def failed(self, due: list[Held], error: Exception) -> None:
        """A failed renewal is not a lost lease; it is lost when the next beat would come too late."""
        for held in due:
            lease = self.leases.get(held)
            if lease is not None:
                lease.on_failure(error)
                if lease.until - clock() <= lease.seconds / 3:
                    self._lose(lease)

    def _lose(self, lease: Lease) -> None:
        self.drop(lease.held)
        lease.lost = True
        lease.on_loss()


class ThreadHeartbeat:
    """Renews in a daemon thread, through a client of its own."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._client: Client | None = None
        self._schedule = _Schedule()
        self._changed = threading.Condition()
        self._wakes = float("inf")
        self._thread: threading.Thread | None = None

    def add(self, lease: Lease) -> None:
        """Keep ``lease`` alive until it is dropped or lost."""
        with self._changed:
            due = self._schedule.add(lease)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="retrysafe-heartbeat", daemon=True)
                self._thread.start()
            elif due < self._wakes:
                self._changed.notify()

    def drop(self, lease: Lease) -> None:
        """Let ``lease`` go."""
        with self._changed:
            self._schedule.drop(lease.held)

    def _run(self) -> None:
        while True:
            with self._changed:
                due = self._schedule.beats.due(clock())
                if not due:
                    upcoming = self._schedule.beats.next_due()
                    self._wakes = float("inf") if upcoming is None else upcoming
                    self._changed.wait(None if upcoming is None else max(0.0, upcoming - clock()))
                    continue
            self._beat(due)

    def _beat(self, due: list[Held]) -> None:
        asked_at = clock()
        try:
            self._client = self._client or self._backend.new_client()
            kept = run(renew(self._backend.store, due), self._client)
        except RetrysafeError as error:
            with self._changed:
                self._schedule.failed(due, error)
        else:
            with self._changed:
                self._schedule.renewed(due, kept, asked_at)


class LoopHeartbeat:
    """Renews on an event loop, by a timer that runs only while something is held."""

    def __init__(self, backend: Backend, loop: asyncio.AbstractEventLoop) -> None:
        self._backend = backend
        self._loop = weakref.ref(loop)
        self._schedule = _Schedule()
        self._timer: asyncio.TimerHandle | None = None
        self._beating: Any = None

    def add(self, lease: Lease) -> None:
        """Keep ``lease`` alive until it is dropped or lost."""
        self._schedule.add(lease)
        self._set_timer()

    def drop(self, lease: Lease) -> None:
        """Let ``lease`` go."""
        self._schedule.drop(lease.held)

    def _set_timer(self) -> None:
        loop, upcoming = self._loop(), self._schedule.beats.next_due()
        if loop is None or upcoming is None or self._beating is not None:
            return
        when = loop.time() + max(0.0, upcoming - clock())
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = loop.call_at(when, self._fire)

    def _fire(self) -> None:
        self._timer = None
        loop = self._loop()
        due = self._schedule.beats.due(clock())
        if due and loop is not None:
            self._beating = loop.create_task(self._beat(due))
        else:
            self._set_timer()

    async def _beat(self, due: list[Held]) -> None:
        asked_at = clock()
        try:
            kept = await arun(renew(self._backend.store, due), self._backend.aclient())
        except RetrysafeError as error:
            self._schedule.failed(due, error)
        else:
            self._schedule.renewed(due, kept, asked_at)
        finally:
            self._beating = None
            self._set_timer()


Heartbeat = ThreadHeartbeat | LoopHeartbeat
_threads: weakref.WeakKeyDictionary[Backend, tuple[int, ThreadHeartbeat]] = weakref.WeakKeyDictionary()
_loops: weakref.WeakKeyDictionary[Backend, weakref.WeakKeyDictionary[Any, LoopHeartbeat]] = weakref.WeakKeyDictionary()
_starting = threading.Lock()


def for_thread(backend: Backend) -> ThreadHeartbeat:
    """The heartbeat of this process for sync code."""
    pid = os.getpid()
    found = _threads.get(backend)
    if found is None or found[0] != pid:
        with _starting:
            found = _threads.get(backend)
            if found is None or found[0] != pid:
                found = _threads[backend] = (pid, ThreadHeartbeat(backend))
    return found[1]


def for_loop(backend: Backend) -> LoopHeartbeat:
    """The heartbeat of the running loop."""
    import asyncio

    loop = asyncio.get_running_loop()
    loops = _loops.get(backend)
    if loops is None:
        loops = _loops[backend] = weakref.WeakKeyDictionary()
    found = loops.get(loop)
    if found is None:
        found = loops[loop] = LoopHeartbeat(backend, loop)
    return found
