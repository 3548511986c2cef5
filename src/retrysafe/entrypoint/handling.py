"""Work that is handed in, inside its claim, and again if its transaction must be: for webhooks and messages alike.

Twins for sync and async functions of the user's. A function that cannot be awaited runs in a thread with its claim.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

from retrysafe.boundary import Boundary
from retrysafe.claims.cancellation import is_cancelled, run_to_completion
from retrysafe.claims.claim import Claim
from retrysafe.claims.codec import JSONCodec
from retrysafe.claims.decorator import is_coroutine_function, is_generator_function
from retrysafe.entrypoint.door import enter, enter_from_threads, leave, refuse_bound_to_threads
from retrysafe.errors import ConfigurationError, RetryTransaction
from retrysafe.protocol.exception_groups import every

R = TypeVar("R")

CODEC = JSONCodec()
"""What stores the results, which are ours: a codec of the boundary's for those of its functions may not know them."""
CANCELLED_WITHIN = "The handler was cancelled by itself, or by something that it waited for."


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
