"""Waking duplicates that wait in the same process, when the attempt they wait for ends."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Wakeups:
    """Who waits for which key. A wake-up may be missed; whoever waits also polls."""

    def __init__(self) -> None:
        self._waiting: defaultdict[bytes, list[Callable[[], object]]] = defaultdict(list)
        self._lock = threading.Lock()

    def wake(self, key: bytes) -> None:
        """Wake everybody who waits for ``key``."""
        if self._waiting:
            with self._lock:
                waiting = self._waiting.pop(key, ())
            for wake in waiting:
                wake()

    def wait(self, key: bytes, seconds: float) -> None:
        """Wait until ``key`` is woken, at most ``seconds``."""
        event = threading.Event()
        with self._registered(key, event.set):
            event.wait(seconds)

    async def await_(self, key: bytes, seconds: float) -> None:
        """The same on an event loop."""
        import asyncio

        loop = asyncio.get_running_loop()
        event = asyncio.Event()

        def wake() -> None:
            try:
                loop.call_soon_threadsafe(event.set)
            except RuntimeError:  # that loop has been closed: nobody waits there any more
                return

        with self._registered(key, wake):
            try:
                async with asyncio.timeout(seconds):
                    await event.wait()
            except TimeoutError:
                return

    @contextmanager
    def _registered(self, key: bytes, wake: Callable[[], object]) -> Iterator[None]:
        with self._lock:
            self._waiting[key].append(wake)
        try:
            yield
        finally:
            with self._lock:
                waiting = self._waiting.get(key)
                if waiting is not None and wake in waiting:
                    waiting.remove(wake)
                    if not waiting:
                        del self._waiting[key]
