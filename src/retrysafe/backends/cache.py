"""The read-through cache: asked with a short time-out, and not asked for a while after it has not answered."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from retrysafe.backends.driver import arun, run
from retrysafe.errors import StoreUnavailable
from retrysafe.protocol import caching
from retrysafe.protocol.client import AsyncExecutor, Executor
from retrysafe.protocol.procedures import ClaimResult, NotWon
from retrysafe.protocol.records import ClaimRequest, Finding, Micros, Record
from retrysafe.protocol.requests import Program
from retrysafe.protocol.store import Cache

REST = 5.0
"""Seconds for which a cache that did not answer is left alone."""

Looked = tuple[NotWon | None, Micros | None]
"""The answer, if there is one, and the cache's time; no time when the cache was not asked or did not answer."""
_NOT_LOOKED: Looked = (None, None)


class Clients(Protocol):
    """The clients of the fast store, one per process and per loop."""

    def client(self) -> Executor: ...

    def aclient(self) -> AsyncExecutor: ...

    def close(self) -> None: ...

    async def aclose(self) -> None: ...


class ReadThroughCache:
    """A cache in front of a backend's store. Whatever happens to it, the store decides."""

    def __init__(
        self, cache: Cache, at_most: Micros, clients: Clients, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cache = cache
        self._at_most = at_most
        self._clients = clients
        self._clock = clock
        self._rests_until = 0.0
        self.warnings: list[Finding] = []
        """The warning that the cache did not answer, until it is reported."""

    def look(self, request: ClaimRequest) -> Looked:
        return self._ask(caching.look(self._cache, request)) or _NOT_LOOKED

    async def alook(self, request: ClaimRequest) -> Looked:
        return await self._aask(caching.look(self._cache, request)) or _NOT_LOOKED

    def keep(self, outcome: ClaimResult, looked: Looked) -> None:
        if looked[1] is not None:
            self._ask(caching.keep(self._cache, outcome, looked[1], self._at_most))

    async def akeep(self, outcome: ClaimResult, looked: Looked) -> None:
        if looked[1] is not None:
            await self._aask(caching.keep(self._cache, outcome, looked[1], self._at_most))

    def drop(self, changed: Record) -> None:
        """Forget a record that an operator has changed; raises `StoreUnavailable` when the cache does not answer."""
        run(caching.drop(self._cache, changed, self._at_most), self._clients.client())

    def close(self) -> None:
        self._clients.close()

    async def aclose(self) -> None:
        await self._clients.aclose()

    def _ask(self, program: Program[Any]) -> Any:
        if self._clock() < self._rests_until:
            return None
        try:
            return run(program, self._clients.client())
        except StoreUnavailable as error:
            self._rest(error)
            return None

    async def _aask(self, program: Program[Any]) -> Any:
        if self._clock() < self._rests_until:
            return None
        try:
            return await arun(program, self._clients.aclient())
        except StoreUnavailable as error:
            self._rest(error)
            return None

    def _rest(self, error: StoreUnavailable) -> None:
        self._rests_until = self._clock() + REST
        self.warnings.append(Finding("warn", "cache", f"The fast store does not answer: {error.detail}"))
