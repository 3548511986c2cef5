"""What every way in needs of a boundary: HTTP, webhooks and messages enter and leave their claims by this module.

A claim is entered and left from an event loop, whichever colour the store of its boundary has: a store that serves sync
code only (a sync engine, sessionmaker, pool or client) is asked in threads, so that sync handlers can share its
transaction. Handlers of the user's, sync or async, run inside their claim, and again if its transaction must be; one
that cannot be awaited runs in a thread with its claim.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from retrysafe.boundary import Boundary
from retrysafe.claims.cancellation import is_cancelled, run_to_completion
from retrysafe.claims.claim import Claim
from retrysafe.claims.codec import JSONCodec
from retrysafe.claims.decorator import is_coroutine_function, is_generator_function
from retrysafe.errors import ConfigurationError, RetryTransaction
from retrysafe.protocol.exception_groups import every

R = TypeVar("R")

CODEC = JSONCodec()
"""What stores the results, which are ours: a codec of the boundary's for those of its functions may not know them."""
CANCELLED_WITHIN = "The handler was cancelled by itself, or by something that it waited for."
_MOST = 40
_Threads = WeakKeyDictionary[asyncio.AbstractEventLoop, ThreadPoolExecutor]
_entering: _Threads = WeakKeyDictionary()
"""Threads for statements of claims: none is held while a claim waits for another attempt."""
_leaving: _Threads = WeakKeyDictionary()
"""Threads to settle in, apart from those of claims and of handlers, so that no number of either can delay an end."""


def refuse_bound_to_threads(boundary: Boundary) -> None:
    """Raise `ConfigurationError` for a transaction that belongs to one thread, which a loop cannot keep to."""
    if boundary.alias is not None and boundary.effects == "transactional":
        raise ConfigurationError(
            f"Boundary {boundary.name!r} opens its transactions on connections of Django's, each of which belongs to "
            "one thread; an ASGI middleware runs in none. Use retrysafe.http.django."
        )


async def enter(claim: Claim, boundary: Boundary) -> None:
    """Enter the claim; one that a cancelled caller has won is given back."""
    if boundary.serves_async:
        await claim.__aenter__()
        return
    await claim.enter_by(_in_entering)


async def enter_from_threads(claim: Claim) -> None:
    """Enter the claim by sync code, for sync work that a thread will do: no thread is held while the claim waits."""
    await claim.enter_by(_in_entering)


async def leave(claim: Claim, error: BaseException | None, boundary: Boundary) -> None:
    """Leave the claim, with what the work raised, to the end even if the caller is cancelled."""
    kind, trace = (None, None) if error is None else (type(error), error.__traceback__)
    if boundary.serves_async:
        await claim.__aexit__(kind, error, trace)
        return
    await _in(_leaving, functools.partial(claim.__exit__, kind, error, trace))


async def _in_entering(function: Callable[[], Any]) -> Any:
    return await _in(_entering, function)


async def _in(pools: _Threads, function: Callable[[], Any]) -> Any:
    """Run a function in a thread, to its end even if the caller is cancelled."""
    loop = asyncio.get_running_loop()
    threads = pools.get(loop)
    if threads is None:
        threads = pools[loop] = ThreadPoolExecutor(_MOST, thread_name_prefix="retrysafe-claim")

    async def running() -> Any:
        return await loop.run_in_executor(threads, contextvars.copy_context().run, function)

    done, cancelled = await run_to_completion(running())
    if cancelled is not None:
        raise cancelled
    return done


# ---------------------------------------------------------------- handlers inside their claim


class Function(NamedTuple):
    """A function of the user's, and what makes of what was delivered what it takes."""

    function: Callable[..., Any]
    parse: Callable[[Any], Any] | None
    is_async: bool

    def call(self, given: Any) -> Any:
        """Call a plain function; raises what it raises, but see `acall`."""
        try:
            return self.function(given)
        except (asyncio.CancelledError, BaseExceptionGroup) as error:
            if not _is_cancellation(error):
                raise
            raise RuntimeError(CANCELLED_WITHIN) from error

    async def acall(self, given: Any) -> Any:
        """The same for a coroutine function.

        A cancellation that did not come from outside is an error of the function's, as any other: it must not end
        who waits for it.
        """
        try:
            return await self.function(given)
        except (asyncio.CancelledError, BaseExceptionGroup) as error:
            if is_cancelled() or not _is_cancellation(error):
                raise
            raise RuntimeError(CANCELLED_WITHIN) from error


def _is_cancellation(error: BaseException) -> bool:
    """Whether it is one, or a group of such and perhaps of errors, but of nothing that ends a process."""
    return every(error, (asyncio.CancelledError, Exception)) and not every(error, Exception)


def function_of(function: Callable[..., Any], parse: Callable[[Any], Any] | None) -> Function:
    """What is to be known of it; raises `ConfigurationError` for a generator function, which would never run."""
    if is_generator_function(function):
        raise ConfigurationError("A handler is a function or a coroutine function; to call a generator runs nothing.")
    return Function(function, parse, is_coroutine_function(function))


def run_claimed(make: Callable[[], Claim], work: Callable[[Claim], None]) -> Claim:
    """Enter a claim, do the work unless it is a replay, and leave it; all of it again if the database wants that."""
    restarts = 0
    while True:
        claim = make()
        try:
            with claim:
                if not claim.replayed:
                    work(claim)
            return claim
        except RetryTransaction:
            pause = claim.restart_pause(restarts)
            if pause is None:
                raise
        restarts += 1
        time.sleep(pause)


async def arun_claimed(
    make: Callable[[], Claim], boundary: Boundary, work: Callable[[Claim], Awaitable[None]]
) -> Claim:
    """`run_claimed` on an event loop, whichever colour the store has."""
    refuse_bound_to_threads(boundary)
    restarts = 0
    while True:
        claim = make()
        try:
            await enter(claim, boundary)
            await _work_and_leave(claim, boundary, work)
            return claim
        except RetryTransaction:
            pause = claim.restart_pause(restarts)
            if pause is None:
                raise
        restarts += 1
        await asyncio.sleep(pause)


async def run_claimed_in_threads(make: Callable[[], Claim], boundary: Boundary, work: Callable[[Claim], None]) -> Claim:
    """`run_claimed` for an event loop: the work is done in a thread, and none is held while its claim waits.

    Connections of Django belong to one thread: with these, the key is waited for in the thread of the work.
    """
    if boundary.alias is not None:
        return await in_thread(lambda: run_claimed(make, work))
    restarts = 0
    while True:
        claim = make()
        try:
            await enter_from_threads(claim)
            await in_thread(functools.partial(_work_entered, claim, work))
            return claim
        except RetryTransaction:
            pause = claim.restart_pause(restarts)
            if pause is None:
                raise
        restarts += 1
        await asyncio.sleep(pause)


def _work_entered(claim: Claim, work: Callable[[Claim], None]) -> None:
    try:
        if not claim.replayed:
            work(claim)
    except BaseException as error:
        claim.__exit__(type(error), error, error.__traceback__)
        raise
    claim.__exit__(None, None, None)


async def _work_and_leave(claim: Claim, boundary: Boundary, work: Callable[[Claim], Awaitable[None]]) -> None:
    try:
        if not claim.replayed:
            await work(claim)
    except BaseException as error:
        await leave(claim, error, boundary)
        raise
    await leave(claim, None, boundary)


async def in_thread(work: Callable[[], R]) -> R:
    """Do sync work, with its claim, in a thread, and to its end even if the caller is cancelled."""
    done, cancelled = await run_to_completion(asyncio.to_thread(work))
    if cancelled is not None:
        raise cancelled
    return done
