"""Steps that go on when the caller is cancelled: what a broker has handed out must not be lost on its way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from retrysafe.cancellation import await_shared


class SingleFlight:
    """One step at a time. A caller that is cancelled leaves it to the next, who waits for its end instead of another.

    Otherwise callers who are cancelled often, because they wait for something else too, would never get anywhere.
    """

    def __init__(self, step: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._step = step
        self._running: asyncio.Task[None] | None = None

    async def __call__(self) -> None:
        """Wait for the end of a step; raises what it raises, and `ConnectionError` when `aclose` has ended it."""
        running = self._running = self._running or asyncio.create_task(self._step())
        try:
            await await_shared(running, ConnectionError("It was closed meanwhile."))
        finally:
            if running.done() and self._running is running:
                self._running = None

    async def aclose(self) -> None:
        """Let no step go on."""
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
            await asyncio.wait([running])
            if not running.cancelled():
                running.exception()
