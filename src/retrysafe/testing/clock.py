"""Time that passes when a test says so, for the records in any store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from retrysafe.backends import registry
from retrysafe.backends.backend import Backend
from retrysafe.backends.cache import ReadThroughCache
from retrysafe.backends.driver import arun, run
from retrysafe.boundary import Boundary
from retrysafe.errors import ConfigurationError
from retrysafe.protocol.durations import micros
from retrysafe.protocol.records import Duration, Record
from retrysafe.protocol.requests import Program
from retrysafe.protocol.store import OperableStore
from retrysafe.testing.time_travel import elapse_all, lapse

MakeProgram = Callable[[OperableStore, list[str] | None], Program[list[Record]]]


class _Place(NamedTuple):
    """A store, and whose records of it are meant; None: all."""

    backend: Backend
    boundaries: list[str] | None


class Clock:
    """Lets time pass for the records of boundaries, or of whole stores: leases lapse, windows and memories end.

    Arguments:
        places: boundaries, whose own records grow older; or what ``Boundary(store=…)`` takes, for all records in it.
            It must be a store of your tests' own.

    The instants of the records are moved back in the store; no clock is set. So nothing else notices: a duplicate in
    ``wait(5)`` still waits for five real seconds, and what an open transaction has locked is left as it is. A claim
    that is held while its lease lapses is lost, as if its process had been frozen.
    """

    def __init__(self, *places: Any) -> None:
        self._places = [_place(one) for one in places]
        for place in self._places:
            place.backend.users += 1

    def advance(self, duration: Duration) -> int:
        """Let time pass, such as "25h"; returns for how many records."""
        return self._do(_elapsing(duration))

    async def aadvance(self, duration: Duration) -> int:
        """`advance` for async code."""
        return await self._ado(_elapsing(duration))

    def lapse(self) -> int:
        """Let time pass for running records only, until their leases have lapsed; returns how many there were."""
        return self._do(lapse)

    async def alapse(self) -> int:
        """`lapse` for async code."""
        return await self._ado(lapse)

    def _do(self, program: MakeProgram) -> int:
        count = 0
        for backend, boundaries in self._places:
            if backend.serves_sync:
                records = run(program(backend.store, boundaries), backend.client())
            else:
                records = _on_a_loop_of_its_own(backend, program(backend.store, boundaries))
            if backend.cache is not None:
                _drop(backend.cache, records)
            count += len(records)
        return count

    async def _ado(self, program: MakeProgram) -> int:
        count = 0
        for backend, boundaries in self._places:
            records = await arun(program(backend.store, boundaries), backend.aclient())
            if backend.cache is not None:
                await asyncio.to_thread(_drop, backend.cache, records)
            count += len(records)
        return count

    def close(self) -> None:
        """Close the connections that no boundary uses."""
        while self._places:
            backend = self._places.pop().backend
            if registry.leave(backend):
                backend.close()

    async def aclose(self) -> None:
        """`close` for async code."""
        while self._places:
            backend = self._places.pop().backend
            if registry.leave(backend):
                await backend.aclose()

    def __enter__(self) -> Clock:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    async def __aenter__(self) -> Clock:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()


def _place(given: Any) -> _Place:
    if isinstance(given, Boundary):
        return _Place(given._settings.backend, [given.name])
    if given == "memory://":
        raise ConfigurationError("Every boundary on memory:// has records of its own: give Clock() the boundary.")
    return _Place(registry.connect(given), None)


def _on_a_loop_of_its_own(backend: Backend, program: Program[list[Record]]) -> list[Record]:
    """Drive a program of a store for async code alone in a thread, where no loop of the test's is in the way."""

    async def drive() -> list[Record]:
        client = backend.new_aclient()
        try:
            return await arun(program, client)
        finally:
            await client.aclose()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, drive()).result()


def _drop(cache: ReadThroughCache, records: list[Record]) -> None:
    for record in records:
        cache.drop(record)


def _elapsing(duration: Duration) -> MakeProgram:
    passed = micros(duration, "duration")
    return lambda store, boundaries: elapse_all(store, passed, boundaries)
