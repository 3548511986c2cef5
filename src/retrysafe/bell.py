"""Waking a loop in the background to its end, from a thread, a task or a signal handler."""

from __future__ import annotations

import queue
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


class Bell:
    """Rung once and for good.

    A simple queue, since an event must not be set by a signal handler of the very thread that waits for it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.rung = False
        self._queue: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._loop = loop
        self._waiter: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """Wake, now and ever after."""
        self.rung = True
        self._queue.put(None)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake)

    def wait(self, seconds: float) -> None:
        """Wait so long, or until it is rung."""
        if not self.rung and seconds > 0:
            with suppress(queue.Empty):
                self._queue.get(timeout=min(seconds, threading.TIMEOUT_MAX))

    async def await_for(self, seconds: float) -> None:
        """The same on the loop."""
        import asyncio

        self._loop = asyncio.get_running_loop()
        self._waiter = self._loop.create_future()
        if self.rung:
            return
        await asyncio.wait((self._waiter,), timeout=seconds)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
