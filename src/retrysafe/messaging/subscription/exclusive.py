"""What may kill the process is done while nothing else is, lest that be suspected too. On one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 5.0
"""Seconds for which the others are waited for, and for which they wait: something that hangs holds up nobody else."""


class Exclusive:
    """Works done together, and works done alone."""

    def __init__(self, patience: float = PATIENCE) -> None:
        self._patience = patience
        self._turn = asyncio.Lock()
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._inside = 0

    async def together(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do it beside others, when nothing is being done alone."""
        async with self._turn:
            pass
        with self._busy():
            return await work()

    async def alone(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do it when everything else has ended, and let nothing else begin meanwhile, as far as patience reaches."""
        async with self._turn:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._patience):
                    await self._quiet.wait()
            doing = asyncio.ensure_future(self._done(work))
            try:
                await asyncio.wait([doing], timeout=self._patience)
            except asyncio.CancelledError:
                doing.cancel()
                await asyncio.wait([doing])
                raise
        return await doing

    async def _done(self, work: Callable[[], Awaitable[T]]) -> T:
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
