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
from retrysafe.claim import Claim
from retrysafe.errors import ConfigurationError
from retrysafe.finish import finish

_MOST_ENTERING = 40
_entering: WeakKeyDictionary[asyncio.AbstractEventLoop, ThreadPoolExecutor] = WeakKeyDictionary()
"""Threads for claims alone: those that wait for another attempt must not keep it from ending."""


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
    loop = asyncio.get_running_loop()
    threads = _entering.get(loop)
    if threads is None:
        threads = _entering[loop] = ThreadPoolExecutor(_MOST_ENTERING, thread_name_prefix="retrysafe-claim")
    _, cancelled = await finish(_in(threads, claim.__enter__))
    if cancelled is not None:
        claim.not_executed()
        await leave(claim, cancelled, boundary)
        raise cancelled
    claim.adopt()


async def leave(claim: Claim, error: BaseException | None, boundary: Boundary) -> None:
    """Leave the claim, with what the work raised, to the end even if the caller is cancelled."""
    kind, trace = (None, None) if error is None else (type(error), error.__traceback__)
    if boundary.serves_async:
        await claim.__aexit__(kind, error, trace)
        return
    _, cancelled = await finish(_in(None, claim.__exit__, kind, error, trace))
    if cancelled is not None:
        raise cancelled


async def _in(threads: ThreadPoolExecutor | None, function: Callable[..., Any], *args: Any) -> None:
    context = contextvars.copy_context()
    work = functools.partial(context.run, function, *args)
    await asyncio.get_running_loop().run_in_executor(threads, work)
