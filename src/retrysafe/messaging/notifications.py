"""The wake-up of relays by writers of an outbox: in this process directly, in others through PostgreSQL's NOTIFY.

A message is visible once its transaction has committed, and only its writer knows when that is. Relays that are woken
look again at once, and then a little less often each time, so that they meet the commit soon after it.

A NOTIFY in the transaction that writes would be exact, and would make its commit wait for every other one that notifies
too: PostgreSQL holds one lock of the whole server from before such a commit is written until it is. So ours is a small
transaction of its own, one for any number of messages within a moment. It may come before the commit.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from weakref import WeakKeyDictionary

from retrysafe.backends.backend import Backend
from retrysafe.backends.driver import arun, run
from retrysafe.errors import ConfigurationError
from retrysafe.protocol.requests import Ask, ask
from retrysafe.runtime import PerLoop, PerProcess
from retrysafe.stop_signal import StopSignal

_bells: WeakKeyDictionary[Backend, set[StopSignal]] = WeakKeyDictionary()


@contextmanager
def waking(backend: Backend, bell: StopSignal) -> Iterator[None]:
    """Let those who write into a backend's outbox wake this bell's loop."""
    bells = _bells.setdefault(backend, set())
    bells.add(bell)
    try:
        yield
    finally:
        bells.discard(bell)


def wake(backend: Backend) -> None:
    """Wake the relays of a backend in this process."""
    for bell in tuple(_bells.get(backend, ())):
        bell.nudge()


PAUSE = 0.02
"""Seconds between two notifications of one process: those who want one meanwhile share the next."""


class Coalesced:
    """A notifier that lives as long as there are listeners; others only ask it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted = self._telling = False

    def want(self) -> bool:
        """Want it; whether who asks has to begin with it."""
        with self._lock:
            begins = not self._telling
            self._wanted = self._telling = True
            return begins

    def again(self) -> bool:
        """Tell whether another notification is needed; else the notifying thread or task may end."""
        with self._lock:
            self._telling, self._wanted = self._wanted, False
            return self._telling


class Notifier:
    """Tells, in a thread or a task that lives only while there is something to tell; a failure is not told.

    Raises `ConfigurationError` where the database cannot notify.
    """

    def __init__(self, backend: Backend, request: Ask[None] | None) -> None:
        if request is None:
            raise ConfigurationError(f"notify=True: a {backend.kind} store cannot notify, PostgreSQL can.")
        self._backend, self._request = backend, request
        self._threads = PerProcess(Coalesced)
        self._loops: PerLoop[tuple[Coalesced, set[asyncio.Task[None]]]] = PerLoop(lambda: (Coalesced(), set()))

    def tell(self) -> None:
        """Tell soon, from a thread."""
        coalesced = self._threads()
        if coalesced.want():
            threading.Thread(target=self._tell, args=(coalesced,), name="retrysafe-notify", daemon=True).start()

    def _tell(self, coalesced: Coalesced) -> None:
        while coalesced.again():
            with suppress(Exception):  # relays look by themselves too
                run(ask(self._request), self._backend.client())
            time.sleep(PAUSE)

    def atell(self) -> None:
        """Tell soon, from the running loop."""
        coalesced, tasks = self._loops()
        if coalesced.want():
            task = asyncio.create_task(self._atell(coalesced), name="retrysafe-notify")
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async def _atell(self, coalesced: Coalesced) -> None:
        while coalesced.again():
            with suppress(Exception):
                await arun(ask(self._request), self._backend.aclient())
            await asyncio.sleep(PAUSE)
