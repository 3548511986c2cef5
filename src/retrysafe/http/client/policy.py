"""How often, how long and with what patience requests are retried: the choices of a caller, checked once."""

from __future__ import annotations

from typing import NamedTuple

from retrysafe.errors import ConfigurationError
from retrysafe.protocol import durations
from retrysafe.protocol.records import Duration


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
