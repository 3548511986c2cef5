"""Harnesses: a store behind its client, driven from sync code or on an event loop, with time that passes."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from retrysafe.backends.backend import Backend
from retrysafe.backends.driver import arun, run
from retrysafe.backends.memory.store import MemoryClient, MemoryStore
from retrysafe.backends.spec import StoreAccess
from retrysafe.protocol.requests import Program
from retrysafe.protocol.store import OperableStore
from retrysafe.testing.bench import Harness
from retrysafe.testing.time_travel import elapse

__all__ = ["AsyncHarness", "Harness", "SyncHarness", "memory"]

_START = 10.0
"""Seconds within which all who race have come to the start."""


@dataclass
class SyncHarness:
    """Programs on the sync client of a backend, races on threads; time passes as `retrysafe.testing.age` is told."""

    backend: Backend

    @property
    def store(self) -> OperableStore:
        """The store under test."""
        return self.backend.store

    def do(self, program: Program[Any]) -> Any:
        """Drive a program."""
        return run(program, self.backend.client())

    def race(self, programs: Sequence[Program[Any]]) -> list[Any]:
        """Drive programs at once, each on a thread of its own."""
        start = threading.Barrier(len(programs))

        def one(program: Program[Any]) -> Any:
            start.wait(_START)
            return self.do(program)

        with ThreadPoolExecutor(len(programs)) as pool:
            return list(pool.map(one, programs))

    def elapse(self, key: bytes, seconds: float) -> None:
        """Let time pass for the record of a key."""
        self.do(elapse(self.store, [key], round(seconds * 1e6)))

    def close(self) -> None:
        """Close the client."""
        self.backend.close()


@dataclass
class AsyncHarness:
    """Programs on the async client of a backend, races as tasks of one loop, which is the harness's own."""

    backend: Backend
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop, kw_only=True)

    @property
    def store(self) -> OperableStore:
        """The store under test."""
        return self.backend.store

    def do(self, program: Program[Any]) -> Any:
        """Drive a program."""
        return self.loop.run_until_complete(self._do(program))

    async def _do(self, program: Program[Any]) -> Any:
        return await arun(program, self.backend.aclient())

    def race(self, programs: Sequence[Program[Any]]) -> list[Any]:
        """Drive programs at once, each in a task of its own."""

        async def all_of_them() -> list[Any]:
            return await asyncio.gather(*map(self._do, programs))

        return self.loop.run_until_complete(all_of_them())

    def elapse(self, key: bytes, seconds: float) -> None:
        """Let time pass for the record of a key."""
        self.do(elapse(self.store, [key], round(seconds * 1e6)))

    def close(self) -> None:
        """Close the client, and the loop."""
        self.loop.run_until_complete(self.backend.aclose())
        self.loop.close()


def memory(now: int = 1_800_000_000_000_000) -> SyncHarness:
    """The memory store, which is the transition table executed, under a clock that ticks once for each request.

    It must not stand still: the token of a key that was swept is above those before only as long as time has passed.
    """
    ticks = itertools.count(now)
    client = MemoryClient(lambda: next(ticks))
    return SyncHarness(Backend(MemoryStore(), StoreAccess("memory://", sync=lambda: client)))
