"""Watches a process: counts the calls that leave it, tells them, and lets happen at one of them what was planned."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from weakref import WeakSet

from retrysafe.testing.crashing.places import is_within, user_place
from retrysafe.testing.crashing.points import STOPS, Action, Call, Database, Point

Tell = Callable[[tuple[Any, ...]], None]

_inside: ContextVar[bool | None] = ContextVar("retrysafe_crossing", default=None)
"""None outside the run; then whether a call is under way, whose own calls are part of it."""


class Tracer:
    """One for the parent of all processes, so that libraries are instrumented once. A process begins with `watch`."""

    def __init__(self) -> None:
        self.watching = False
        self.lapsed = False
        """True if the leases that this process finds have lapsed."""
        self.aged: WeakSet[Any] = WeakSet()
        """The stores where they have been made to."""
        self.databases: dict[Database, None] = {}
        """The databases that the process has worked on."""
        self.task: asyncio.Task[Any] | None = None
        self._tell: Tell = lambda event: None
        self._plan: dict[int, Action] = {}
        self._count = 0
        self._cancelled = False

    def watch(self, tell: Tell, plan: Point | None, *, lapsed: bool = False) -> None:
        self._tell, self._count, self.lapsed = tell, 0, lapsed
        self._cancelled = False
        self.aged.clear()
        self.databases.clear()
        self._plan = {} if plan is None else {plan.boundary: plan.action}
        self.watching = True

    @contextmanager
    def run(self) -> Iterator[None]:
        """Around the operation under test: what it calls is counted, also on event loops and in `asyncio.to_thread`."""
        token = _inside.set(False)
        try:
            yield
        finally:
            _inside.reset(token)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Around calls of the kit's own."""
        token = _inside.set(True)
        try:
            yield
        finally:
            _inside.reset(token)

    @property
    def crossing(self) -> bool:
        """True if a counted call is under way."""
        return self.watching and _inside.get() is True

    def tell(self, *event: Any) -> None:
        """Send word of something else than a call."""
        if self.watching:
            self._tell(event)

    def note_database(self, database: Database) -> None:
        if self.watching and database not in self.databases:
            self.databases[database] = None
            where = dict(database.where)
            self._tell(("known", f"a connection to {where.get('host')}:{where.get('port')}"))

    def counts(self) -> bool:
        """Tell whether a call made here and now is a boundary."""
        inside = _inside.get() if self.watching else True
        thread = threading.current_thread()
        ours = thread.name.startswith("retrysafe") or thread is threading.main_thread()
        if inside is None and not ours and not is_within("aiosqlite"):
            self.tell("unseen", f"a call on a thread of its own ({user_place(None)})")
        return inside is False

    @contextmanager
    def call(self, describe: Callable[[], Call]) -> Iterator[None]:
        """Around one call that leaves the process."""
        if not self.counts():
            yield
            return
        self._count += 1
        action = self._plan.get(self._count)
        call = describe()._replace(place=user_place(self.task))
        if action is not None:
            self._tell(("at", call))
            self._before(action)
        self._tell(("call", call))
        with self.pause():
            yield
        if action is Action.CRASH_AFTER:
            _die()

    def note_return(self) -> None:
        """The operation has returned: its answer may be lost too."""
        if Action.CRASH_AFTER is self._plan.get(self._count + 1):
            _die()

    def _before(self, action: Action) -> None:
        if action is Action.CRASH_BEFORE:
            _die()
        if action in STOPS:
            self._tell(("stopped",))
            os.kill(os.getpid(), signal.SIGSTOP)
        if action is Action.CANCEL and not self._cancelled:
            self._cancelled = True
            self._cancel()

    def _cancel(self) -> None:
        if self.task is None:
            raise KeyboardInterrupt  # as sync code gets from Ctrl-C, or in another shape from a task queue
        loop = self.task.get_loop()
        if loop is _running_loop():
            self.task.cancel()
        else:
            loop.call_soon_threadsafe(self.task.cancel)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()
