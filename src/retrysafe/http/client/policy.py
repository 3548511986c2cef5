"""The number, duration and pauses of retries: the caller's choices, checked once.

Rules C11 and C12; RFC 9110 section 10.2.3. `Environment` holds what the client takes from outside: clocks, randomness,
sleep and new keys, so that tests can give their own.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import NamedTuple
from uuid import uuid4

from retrysafe import lazy
from retrysafe.errors import ConfigurationError
from retrysafe.http.client.results import OVERLOADED, Result, ServerAnswer
from retrysafe.protocol import durations
from retrysafe.protocol.backoff import Backoff
from retrysafe.protocol.records import Duration


async def _asleep(seconds: float) -> None:
    await lazy.anyio.sleep(seconds)


class Environment(NamedTuple):
    """``clock`` is monotonic, ``wall`` is since 1970, both in seconds; ``chance`` is random in [0, 1)."""

    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    chance: Callable[[], float] = random.random
    sleep: Callable[[float], None] = time.sleep
    asleep: Callable[[float], Awaitable[None]] = _asleep
    new_key: Callable[[], str] = lambda: str(uuid4())


class Policy(NamedTuple):
    """Times are seconds, sizes are bytes."""

    max_attempts: int
    deadline: float
    base: float
    overload_base: float
    cap: float
    redirects: int
    hedge_after: float | None
    body_limit: int
    response_limit: int


def policy_of(
    *,
    max_attempts: int,
    deadline: Duration,
    base: Duration,
    overload_base: Duration,
    cap: Duration,
    redirects: int,
    hedge_after: Duration | None,
    body_limit: int,
    response_limit: int,
) -> Policy:
    """The checked choices; raises `ConfigurationError`, naming the argument to change."""
    for name, count, least in (
        ("max_attempts", max_attempts, 1),
        ("redirects", redirects, 0),
        ("body_limit", body_limit, 0),
        ("response_limit", response_limit, 0),
    ):
        if type(count) is not int or count < least:
            raise ConfigurationError(f"{name}={count!r} must be a whole number from {least}.")
    return Policy(
        max_attempts=max_attempts,
        deadline=durations.seconds(deadline, "deadline"),
        base=durations.seconds(base, "base"),
        overload_base=durations.seconds(overload_base, "overload_base"),
        cap=durations.seconds(cap, "cap"),
        redirects=redirects,
        hedge_after=None if hedge_after is None else durations.seconds(hedge_after, "hedge_after"),
        body_limit=body_limit,
        response_limit=response_limit,
    )


def pause(result: Result, retries: int, policy: Policy, chance: float, now: float) -> float:
    """Seconds until the next attempt, after ``retries`` of them; ``now`` is wall time in seconds since 1970.

    Full jitter, and never earlier than a Retry-After says. ``chance`` is random in [0, 1).
    """
    overloaded = isinstance(result, ServerAnswer) and result.status in OVERLOADED
    jitter = Backoff(policy.overload_base if overloaded else policy.base, policy.cap).delay(retries, chance)
    return max(jitter, retry_after(result, now) or 0.0) if isinstance(result, ServerAnswer) else jitter


def retry_after(answer: ServerAnswer, now: float) -> float | None:
    """The seconds that a response asks for; None if it asks for nothing, or for nothing that can be read.

    A date is compared with the server's own clock where the response shows it by its Date.
    """
    value = answer.headers.get("retry-after", "").strip()
    if value.isascii() and value.isdigit():
        return float(value[:12])
    until = _date(value)
    if until is None:
        return None
    served = _date(answer.headers.get("date", ""))
    return max(0.0, until - (now if served is None else served))


def _date(text: str) -> float | None:
    """An HTTP date in seconds since 1970."""
    try:
        moment: datetime = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
