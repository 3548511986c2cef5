"""Entering and leaving a claim from an event loop, whichever colour the store of its boundary has.

A store that serves sync code only (a sync engine, sessionmaker, pool or client) is asked in threads, so that sync
handlers can share its transaction.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from weakref import WeakKeyDictionary

from retrysafe.boundary import Boundary
from retrysafe.claims.cancellation import run_to_completion
from retrysafe.claims.claim import Claim
from retrysafe.errors import ConfigurationError

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
