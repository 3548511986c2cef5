"""Running the whole of a claim and its work again, when the database wants its transaction again."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from retrysafe import lazy
from retrysafe.claims.claim import Claim
from retrysafe.errors import RetryTransaction


def restarting(make: Callable[[], Claim], attempt: Callable[[Claim], None]) -> Claim:
    """Make a claim and do what ``attempt`` does with it, again with a new claim when the database wants that.

    Returns the last claim. Raises `RetryTransaction` when it may not be run again, or has been often enough: see
    `Claim._restart_pause`.
    """
    restarts = 0
    while True:
        claim = make()
        try:
            attempt(claim)
            return claim
        except RetryTransaction:
            pause = claim._restart_pause(restarts)
            if pause is None:
                raise
        restarts += 1
        time.sleep(pause)


async def arestarting(make: Callable[[], Claim], attempt: Callable[[Claim], Awaitable[None]]) -> Claim:
    """`restarting` for async code."""
    restarts = 0
    while True:
        claim = make()
        try:
            await attempt(claim)
            return claim
        except RetryTransaction:
            pause = claim._restart_pause(restarts)
            if pause is None:
                raise
        restarts += 1
        await lazy.asyncio.sleep(pause)
