"""The two drivers of programs. Code around the code of a user has small twins of its own.

A program that also rests, or asks in transactions of its own, is driven on a performer around its client.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from retrysafe import lazy
from retrysafe.errors import RetryTransaction, StoreUnavailable
from retrysafe.protocol.backoff import REFUSED, RESTART, Backoff, RetrySchedule
from retrysafe.protocol.requests import Ask, Program, as_it_is, ask

if TYPE_CHECKING:
    from retrysafe.protocol.client import AsyncClient, AsyncExecutor, Client, Executor

R = TypeVar("R")

PATIENCE = 2.0
"""Seconds for which a request is put again that the store refuses for the moment, having done nothing."""


class _Retries:
    """Schedules the next try of a request that was refused for the moment; every request has the same patience."""

    def __init__(self, backoff: Backoff, patience: float) -> None:
        self._backoff = backoff
        self._patience = patience
        self._request: object = None
        self._schedule = RetrySchedule(backoff, 0)

    def pause(self, request: object, error: Exception) -> float | None:
        """Seconds until it is put again; None: not at all."""
        if not (isinstance(error, RetryTransaction) or (isinstance(error, StoreUnavailable) and error.transient)):
            return None
        now = time.monotonic()
        if self._request is not request:
            self._request, self._schedule = request, RetrySchedule(self._backoff, now + self._patience)
        schedule, self._schedule = self._schedule, self._schedule.after_try()
        return schedule.next_pause(now, lazy.random.random())


def put(request: Ask[R], execute: Executor, *, again: bool = False) -> R:
    """Put one request as `protocol.requests.ask` does; a program is started only if it is to be put again."""
    try:
        return request.parse(execute(request.request))
    except StoreUnavailable as error:
        return run(ask(request, again=again), execute, failed=error)


async def aput(request: Ask[R], execute: AsyncExecutor, *, again: bool = False) -> R:
    try:
        return request.parse(await execute(request.request))
    except StoreUnavailable as error:
        return await arun(ask(request, again=again), execute, failed=error)


def run(
    program: Program[R], execute: Executor, patience: float = PATIENCE, *, failed: StoreUnavailable | None = None
) -> R:
    """Drive a program on a sync executor; ``failed`` is how its first request has failed, if that was put already."""
    retries: _Retries | None = None
    try:
        asked = next(program)
        while True:
            try:
                if failed is not None:
                    first, failed = failed, None
                    raise first
                answer = asked.parse(execute(asked.request))
            except StoreUnavailable as error:
                retries = retries or _Retries(REFUSED, patience)
                pause = retries.pause(asked, error)
                if pause is None:
                    asked = program.throw(error)
                else:
                    time.sleep(pause)
            except Exception as error:  # noqa: BLE001 - the program decides
                asked = program.throw(error)
            else:
                asked = program.send(answer)
    except StopIteration as stop:
        outcome: R = stop.value
        return outcome
    finally:
        program.close()


async def arun(
    program: Program[R], execute: AsyncExecutor, patience: float = PATIENCE, *, failed: StoreUnavailable | None = None
) -> R:
    retries: _Retries | None = None
    try:
        asked = next(program)
        while True:
            try:
                if failed is not None:
                    first, failed = failed, None
                    raise first
                answer = asked.parse(await execute(asked.request))
            except StoreUnavailable as error:
                retries = retries or _Retries(REFUSED, patience)
                pause = retries.pause(asked, error)
                if pause is None:
                    asked = program.throw(error)
                else:
                    await lazy.asyncio.sleep(pause)
            except Exception as error:  # noqa: BLE001 - the program decides
                asked = program.throw(error)
            else:
                asked = program.send(answer)
    except StopIteration as stop:
        outcome: R = stop.value
        return outcome
    finally:
        program.close()


def run_transaction(transact: Callable[[], R]) -> R:
    """Run a transaction of ours, which contains nothing of a handler's, again while the database asks for that."""
    retries: _Retries | None = None
    while True:
        try:
            return transact()
        except RetryTransaction as error:
            retries = retries or _Retries(RESTART, PATIENCE)
            pause = retries.pause(transact, error)
            if pause is None:
                raise
        time.sleep(pause)


async def arun_transaction(transact: Callable[[], Awaitable[R]]) -> R:
    retries: _Retries | None = None
    while True:
        try:
            return await transact()
        except RetryTransaction as error:
            retries = retries or _Retries(RESTART, PATIENCE)
            pause = retries.pause(transact, error)
            if pause is None:
                raise
        await lazy.asyncio.sleep(pause)


# ---------------------------------------------------------------- performers


class Work(NamedTuple):
    """A request to the performer itself, which calls the function of its colour."""

    sync: Callable[[Performer], object]
    asynchronous: Callable[[AsyncPerformer], Awaitable[object]]


class Performer(NamedTuple):
    """Performs requests on a client; ``pause`` is called with the seconds to rest."""

    client: Client
    pause: Callable[[float], object] = time.sleep

    def __call__(self, request: Any, /) -> Any:
        return request.sync(self) if isinstance(request, Work) else self.client(request)


class AsyncPerformer(NamedTuple):
    """`Performer` for async code."""

    client: AsyncClient
    pause: Callable[[float], Awaitable[object]] = lambda seconds: lazy.asyncio.sleep(seconds)

    async def __call__(self, request: Any, /) -> Any:
        return await (request.asynchronous(self) if isinstance(request, Work) else self.client(request))


def work(
    sync: Callable[[Performer], object], asynchronous: Callable[[AsyncPerformer], Awaitable[object]]
) -> Program[Any]:
    """Do what only the performer can."""
    return (yield from ask(Ask(Work(sync, asynchronous), as_it_is)))


def rest(seconds: float) -> Program[None]:
    yield from work(lambda performer: performer.pause(seconds), lambda performer: performer.pause(seconds))


def transact(begin: Callable[[], Program[R]]) -> Program[R]:
    """Drive a program in a transaction of its own; what it leaves open is rolled back."""

    def sync(performer: Performer) -> R:
        with performer.client.transaction() as opened:
            return run(begin(), opened.execute)

    async def asynchronous(performer: AsyncPerformer) -> R:
        async with performer.client.transaction() as opened:
            return await arun(begin(), opened.execute)

    outcome: R = yield from work(sync, asynchronous)
    return outcome
