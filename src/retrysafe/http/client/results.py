"""The result of an attempt, and the reaction to it. Pure: no client library is known here.

Rules C4 to C10 and C16 of the HTTP contract. Sources: RFC 9110 sections 9.2.2 (which methods may be repeated), 10.2.3
(Retry-After) and 15 (statuses); RFC 8470 (425); Stripe's API reference for its header.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple

from retrysafe.http.client.hosts import Host


def certificate_refused(error: BaseException) -> bool:
    """Tell whether a certificate was refused, as far down as client libraries have wrapped it."""
    waiting: list[object] = [error]
    seen: set[int] = set()
    while waiting:
        one = waiting.pop()
        if not isinstance(one, BaseException) or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, ssl.SSLCertVerificationError) or type(one).__name__ == "CertificateError":
            return True
        waiting += [one.__cause__, one.__context__, getattr(one, "reason", None), *one.args]
    return False


class Kind(Enum):
    """The progress of a request that got no answer."""

    UNSENT = "unsent"
    """Certainly not sent: no name, no connection, no free place in the pool."""
    AMBIGUOUS = "ambiguous"
    """It may have arrived, and may have had its effect."""
    HOPELESS = "hopeless"
    """Not sent, and a retry would fare no better: the certificate is wrong, the URL or a header is none."""


class Failure(NamedTuple):
    """There was no whole response. ``error`` is the client library's own."""

    kind: Kind
    error: Exception

    @property
    def outcome(self) -> str:
        """Its name in events."""
        return type(self.error).__name__


class ServerAnswer(NamedTuple):
    """A response. ``headers`` finds names in any case; ``code`` is that of its problem document; ``raw`` is opaque."""

    status: int
    headers: Mapping[str, str]
    code: str
    raw: Any

    @property
    def outcome(self) -> str:
        """Its name in events."""
        return str(self.status)

    @property
    def is_replay(self) -> bool:
        """True if the server says that this is the stored response of an earlier attempt."""
        return self.headers.get("idempotent-replayed", "").strip().lower() == "true"


Result = ServerAnswer | Failure


class RetryVerdict(Enum):
    """The reaction to a result."""

    FINAL = "final"
    RETRY = "retry"
    REDIRECT = "redirect"
    REFRESH = "refresh"


RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
OVERLOADED = frozenset({429, 503})
"""Statuses after which a client waits longer."""
REDIRECTS = frozenset({301, 302, 303, 307, 308})
_ABOUT_THE_KEY = frozenset({"key-reused", "key-expired", "result-unavailable"})
"""Codes by which a server says that it knows the key, and that no attempt with it is running."""
_BEFORE_THE_KEY = frozenset({401, 403, 407, 413, 421, 425, 429, 431})
"""Refusals that come from in front of the layer that knows keys: they say nothing of an earlier attempt."""


def judge(result: Result, host: Host | None) -> RetryVerdict:
    """Judge a result, as if everything were repeatable; ``host`` is the declaration of the answering host."""
    if isinstance(result, Failure):
        return RetryVerdict.FINAL if result.kind is Kind.HOPELESS else RetryVerdict.RETRY
    if result.status in REDIRECTS and result.headers.get("location"):
        return RetryVerdict.REDIRECT
    if result.is_replay:
        return RetryVerdict.FINAL
    told = _find_hint(result, host)
    if told in ("true", "false"):
        return RetryVerdict.RETRY if told == "true" else RetryVerdict.FINAL
    if result.status == 401:
        return RetryVerdict.REFRESH
    return RetryVerdict.RETRY if result.status in RETRIED or is_running(result) else RetryVerdict.FINAL


def may_repeat(result: Result, *, repeatable: bool) -> bool:
    """Tell whether another attempt is safe: nothing was sent, or the server sees to it that the effect happens once."""
    return repeatable or (isinstance(result, Failure) and result.kind is Kind.UNSENT)


def _find_hint(answer: ServerAnswer, host: Host | None) -> str:
    """Return the value of the host's own header about retries, if it has one."""
    return answer.headers.get(host.should_retry, "").strip().lower() if host and host.should_retry else ""


def in_doubt(before: bool, result: Result, host: Host | None = None) -> bool:
    """Tell whether the operation may have had an effect that its caller was not told of, after one more result."""
    if isinstance(result, Failure):
        return before or result.kind is Kind.AMBIGUOUS
    if result.is_replay:
        return False
    if result.status >= 500 or result.status == 408 or is_running(result) or result.code == "outcome-unknown":
        return True
    if result.status == 409:
        return _find_hint(result, host) == "true" or (before and result.code not in _ABOUT_THE_KEY)
    return before and result.status in _BEFORE_THE_KEY | REDIRECTS


def is_running(result: Result) -> bool:
    """Tell whether the server says that another attempt is running right now."""
    if isinstance(result, Failure):
        return False
    if result.code:  # with any of the statuses that a server may choose (concurrent_status=)
        return result.code == "in-progress"
    return result.status == 409 and "retry-after" in result.headers
