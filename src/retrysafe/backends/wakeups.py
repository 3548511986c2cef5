"""Waking duplicates that wait, when the attempt they wait for ends in this process, or a store tells of it."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from retrysafe import lazy
from retrysafe.runtime import new_lock

if TYPE_CHECKING:
    from retrysafe.protocol.client import AsyncListener, Listener


class Wakeups:
    """The waiters of each key. A wake-up may be missed, because every waiter also polls."""

    def __init__(self) -> None:
        self.waiting: defaultdict[bytes, list[tuple[Callable[[], object], Listener | AsyncListener | None]]]
        self.waiting = defaultdict(list)
        """The waiters of each key: empty most of the time, and read without the lock."""
        self._lock = new_lock()

    def wake(self, key: bytes) -> None:
        if self.waiting:
            with self._lock:
                waiting = self.waiting.pop(key, ())
            for wake, _ in waiting:
                wake()

    def wait(self, key: bytes, seconds: float, listener: Listener | None = None) -> None:
        """Wait until ``key`` is woken, at most ``seconds``; ``listener`` hears of it from the store."""
        event = threading.Event()
        with self._register(key, event.set, listener):
            event.wait(seconds)

    async def await_(self, key: bytes, seconds: float, listener: AsyncListener | None = None) -> None:
        loop = lazy.asyncio.get_running_loop()
        event = lazy.asyncio.Event()

        def wake() -> None:
            try:
                loop.call_soon_threadsafe(event.set)
            except RuntimeError:  # that loop has been closed: no task waits there any more
                return

        with self._register(key, wake, listener):
            try:
                async with lazy.asyncio.timeout(seconds):
                    await event.wait()
            except TimeoutError:
                return

    @contextmanager
    def _register(
        self, key: bytes, wake: Callable[[], object], listener: Listener | AsyncListener | None
    ) -> Iterator[None]:
        with self._lock:
            self.waiting[key].append((wake, listener))
        if listener is not None:
            listener.listen(key)
        try:
            yield
        finally:
            with self._lock:
                left = [one for one in self.waiting.pop(key, ()) if one[0] is not wake]
                if left:
                    self.waiting[key] = left
                others = any(one[1] is listener for one in left)
            if listener is not None and not others:
                listener.ignore(key)
