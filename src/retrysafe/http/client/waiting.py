"""How long to wait before the next attempt. Rules C11 and C12; RFC 9110 section 10.2.3."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from retrysafe.http.client.policy import Policy
from retrysafe.http.client.results import OVERLOADED, Answer, Result
from retrysafe.protocol.backoff import Backoff


def pause(result: Result, retries: int, policy: Policy, chance: float, now: float) -> float:
    """Seconds until the next attempt, after ``retries`` of them; ``now`` is wall time in seconds since 1970.

    Full jitter, and never earlier than a Retry-After says. ``chance`` is random in [0, 1).
    """
    overloaded = isinstance(result, Answer) and result.status in OVERLOADED
    jitter = Backoff(policy.overload_base if overloaded else policy.base, policy.cap).delay(retries, chance)
    return max(jitter, retry_after(result, now) or 0.0) if isinstance(result, Answer) else jitter


def retry_after(answer: Answer, now: float) -> float | None:
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
