"""Our own executors made to tell of their requests, and leases made to lapse before the first after a crash."""

from __future__ import annotations

import functools
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from retrysafe.backends.backend import Backend
from retrysafe.backends.driver import arun, run
from retrysafe.testing.crashing.instruments import steady
from retrysafe.testing.crashing.points import Call
from retrysafe.testing.crashing.tracing import Tracer
from retrysafe.testing.time_travel import lapse

_TABLE = re.compile(r"retrysafe_[a-z]+\b")


def instrument_executors(tracer: Tracer) -> None:
    def wrap(name: str, kind: type[_Traced]) -> None:
        real = getattr(Backend, name)

        @functools.wraps(real)
        def open_traced(backend: Backend) -> Any:
            if backend.kind == "memory":
                tracer.tell("in memory", "store='memory://'")
            return kind(real(backend), tracer, backend)

        setattr(Backend, name, open_traced)

    wrap("_open", _Client)
    wrap("_aopen", _AsyncClient)


class _Traced:
    """A client in front of another one."""

    def __init__(self, inner: Any, tracer: Tracer, backend: Backend) -> None:
        self._inner, self._tracer, self._backend = inner, tracer, backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _must_age(self) -> bool:
        """Tell whether a retry is about to ask this store for the first time since the crash.

        What a boundary asks while it is built, such as whether the tables are there, comes before its name is known.
        """
        known = self._backend.boundaries and self._backend not in self._tracer.aged
        return bool(known) and self._tracer.lapsed and self._tracer.counts()

    def _trace(self, request: Any) -> Any:
        return self._tracer.call(lambda: Call(f"store: {describe(request)}"))


class _Client(_Traced):
    def __call__(self, request: Any, /) -> Any:
        if self._must_age():
            self._tracer.aged.add(self._backend)
            with self._tracer.pause():
                run(lapse(self._backend.store, self._backend.boundaries), self._inner)
        with self._trace(request):
            return self._inner(request)

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        with self._inner.transaction() as opened:
            yield _Opened(opened, self._trace)


class _AsyncClient(_Traced):
    async def __call__(self, request: Any, /) -> Any:
        if self._must_age():
            self._tracer.aged.add(self._backend)
            with self._tracer.pause():
                await arun(lapse(self._backend.store, self._backend.boundaries), self._inner)
        with self._trace(request):
            return await self._inner(request)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with self._inner.transaction() as opened:
            yield _AsyncOpened(opened, self._trace)


class _Opened:
    """An open transaction whose requests are boundaries."""

    def __init__(self, inner: Any, trace: Any) -> None:
        self._inner, self._trace = inner, trace

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def execute(self, request: Any) -> Any:
        with self._trace(request):
            return self._inner.execute(request)


class _AsyncOpened(_Opened):
    async def execute(self, request: Any) -> Any:
        with self._trace(request):
            return await self._inner.execute(request)


def describe(request: Any) -> str:
    """A request in words that do not change from run to run."""
    control = getattr(request, "control", None)
    if control:
        return str(control)
    sql = getattr(request, "sql", None)
    if sql is not None:
        verbs, table = sql.split(None, 1)[0], _TABLE.search(sql)
        while (request := getattr(request, "otherwise", None)) is not None:
            verbs += f"/{request.sql.split(None, 1)[0]}"
        return verbs if table is None else f"{verbs} {table[0]}"
    return steady(getattr(request, "operation", None) or getattr(request, "name", None) or type(request).__name__)
