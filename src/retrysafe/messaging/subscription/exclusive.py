"""Runs a message that may crash the process with nothing else in progress, so that a crash can be attributed to it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 5.0
"""Longest wait in seconds, of work that runs alone for the other work, and of the other work for it."""


class Exclusive:
    """Runs work on one event loop, together with other work or alone."""

    def __init__(self, patience: float = PATIENCE) -> None:
        self._patience = patience
        self._turn = asyncio.Lock()
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._inside = 0

    async def together(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run the work beside other work, as soon as nothing runs alone."""
        async with self._turn:
            pass
        with self._busy():
            return await work()

    async def alone(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run the work when all other work has ended; none begins meanwhile. Each waits up to ``patience`` seconds."""
        async with self._turn:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._patience):
                    await self._quiet.wait()
            doing = asyncio.ensure_future(self._do(work))
            try:
                await asyncio.wait([doing], timeout=self._patience)
            except asyncio.CancelledError:
                doing.cancel()
                await asyncio.wait([doing])
                raise
        return await doing

    async def _do(self, work: Callable[[], Awaitable[T]]) -> T:
        with self._busy():
            return await work()

    @contextmanager
    def _busy(self) -> Iterator[None]:
        self._inside += 1
        self._quiet.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._quiet.set()
