"""The layer's own answers, as problem details (RFC 9457): one table of every code, and which error gives which."""

from __future__ import annotations

import json
import math
from typing import NamedTuple

from retrysafe.backends.commands import PROGRAM, Commands
from retrysafe.claims.codec import BY_A_PERSON
from retrysafe.claims.observers import logger
from retrysafe.claims.waiting import RETRY_AFTER
from retrysafe.errors import (
    InProgress,
    InvalidKey,
    KeyExpired,
    KeyReused,
    LeaseLost,
    OutcomeUnknown,
    Postponed,
    QuotaExceeded,
    ResultNotEncodable,
    ResultUnreadable,
    RetrysafeError,
    RetryTransaction,
    SchemaOutdated,
    StoredFailure,
    StoreMisconfigured,
    StoreUnavailable,
)
from retrysafe.http.messages import Response

BASE = "https://retrysafe.readthedocs.io/en/latest/reference/problems/"
"""The address of the pages of all codes: ``type`` is this and the code."""


class Problem(NamedTuple):
    """One kind of answer, and what a client may do after it."""

    status: int
    title: str
    detail: str
    safe_new_key: bool
    """True if the client may start over with a new key without the risk of a second effect."""
    retry_after: float | None = None
    """Seconds after which the same key may be tried again, where that helps."""


_NOT_BEGUN = "Nothing was done."
PROBLEMS: dict[str, Problem] = {
    "key-missing": Problem(400, "The request needs an Idempotency-Key", _NOT_BEGUN, safe_new_key=True),
    "key-invalid": Problem(400, "The Idempotency-Key cannot be used", _NOT_BEGUN, safe_new_key=True),
    "key-reused": Problem(
        422,
        "The Idempotency-Key was used for another request",
        "Nothing was done. Use a new key for a new request, or send the first one again.",
        safe_new_key=True,
    ),
    "key-expired": Problem(
        409,
        "The Idempotency-Key was used before, and its response is no longer kept",
        "Nothing was done now. The first request was carried out, unless it failed: look where its result would be.",
        safe_new_key=False,
    ),
    "principal-missing": Problem(403, "The request does not say whose it is", _NOT_BEGUN, safe_new_key=True),
    "in-progress": Problem(
        409,
        "A request with this Idempotency-Key is in progress",
        "Ask again with the same key: you will get its response. A new key could do the work twice.",
        safe_new_key=False,
        retry_after=RETRY_AFTER,
    ),
    "result-unavailable": Problem(
        409,
        "The first request has ended, but its response cannot be shown",
        "It was not run again. Look its result up where it was made.",
        safe_new_key=False,
    ),
    "outcome-unknown": Problem(
        409,
        "Whether the first request had its effect is not known",
        "It was not run again. Somebody must find out and settle the key; a new key could do the work twice.",
        safe_new_key=False,
    ),
    "response-unsupported": Problem(
        501,
        "The response is of a kind that cannot be kept for a retry",
        "It was too large, or a stream: what was done was rolled back, where that could be.",
        safe_new_key=False,
    ),
    "request-invalid": Problem(400, "The request cannot be read", _NOT_BEGUN, safe_new_key=True),
    "request-too-large": Problem(413, "The request is too large to be guarded", _NOT_BEGUN, safe_new_key=True),
    "store-unavailable": Problem(
        503,
        "The store of idempotency keys does not answer",
        "If the request was carried out, a retry with the same key gets its response; if not, it runs then.",
        safe_new_key=False,
        retry_after=1,
    ),
    "store-not-migrated": Problem(
        503,
        "The store of idempotency keys has no tables, or old ones",
        "Nothing was done. The service's operator has to migrate the store; then ask again with the same key.",
        safe_new_key=False,
        retry_after=60,
    ),
    "store-misconfigured": Problem(
        503,
        "The store of idempotency keys refuses this service",
        "The service's operator has to correct its configuration. If the request was carried out, a retry with the "
        "same key gets its response then; if not, it runs then.",
        safe_new_key=False,
        retry_after=60,
    ),
    "quota-exceeded": Problem(
        429,
        "Too many idempotency keys",
        "Nothing was done. Ask again later, with the same key.",
        safe_new_key=False,
        retry_after=1,
    ),
    "postponed": Problem(
        503,
        "The work waits",
        "It has begun, and goes on when its time or its signal has come. Ask again later, with the same key.",
        safe_new_key=False,
        retry_after=1,
    ),
    "identity-unavailable": Problem(
        503,
        "Whose request it is could not be found out",
        "Nothing was done. Ask again later, with the same key.",
        safe_new_key=False,
        retry_after=1,
    ),
    "upgrade-unsupported": Problem(
        501, "The gateway speaks HTTP only, and opens no tunnels", _NOT_BEGUN, safe_new_key=True
    ),
    "upstream-unavailable": Problem(
        502,
        "The service behind the gateway could not be reached",
        "The request was not sent, so this attempt did nothing. Ask again later, with the same key.",
        safe_new_key=False,
        retry_after=1,
    ),
    "upstream-lost": Problem(
        502,
        "The service behind the gateway did not answer to its end",
        "The request was sent, and may have been carried out. A new key could do the work twice.",
        safe_new_key=False,
    ),
    "upstream-timeout": Problem(
        504,
        "The service behind the gateway did not answer in time",
        "The request was sent, and may have been carried out. A new key could do the work twice.",
        safe_new_key=False,
    ),
}
"""Every answer that the layer gives by itself, by its stable code."""

_CODES: tuple[tuple[type[RetrysafeError | Postponed], str], ...] = (
    (InvalidKey, "key-invalid"),
    (KeyReused, "key-reused"),
    (KeyExpired, "key-expired"),
    (InProgress, "in-progress"),
    (LeaseLost, "in-progress"),
    (OutcomeUnknown, "outcome-unknown"),
    (StoredFailure, "result-unavailable"),
    (ResultNotEncodable, "result-unavailable"),
    (ResultUnreadable, "result-unavailable"),
    (QuotaExceeded, "quota-exceeded"),
    (Postponed, "postponed"),
    (StoreMisconfigured, "store-misconfigured"),
    (StoreUnavailable, "store-unavailable"),
    (SchemaOutdated, "store-not-migrated"),
    (RetryTransaction, "store-unavailable"),
)

_CONFIGURATION = frozenset({"store-not-migrated", "store-misconfigured"})
"""Refusals that do not end before the operator does something."""
_OF_A_KEY = frozenset(
    {
        "key-reused",
        "key-expired",
        "in-progress",
        "result-unavailable",
        "outcome-unknown",
        "store-unavailable",
        "store-misconfigured",
    }
)
"""Refusals of a key that the store may have: they tell by which digits the operator finds it."""
_SERVERS = frozenset({"store-unavailable", "outcome-unknown", "result-unavailable"})
"""Other refusals whose cause is on the server."""


_OF_THE_PLACE = frozenset({"path", "query"})
"""Parts of a fingerprint that a redirect changes."""
_REDIRECTED = (
    "Nothing was done now. It may be the same request before a redirect, which was followed and carried out: then a "
    "new key would do it twice. Use a new key only for a new request."
)
_EXHAUSTED = "All connections of the service's pool were in use. Its operator can have more: {}."


class Refusal(Exception):
    """A request that the layer answers by itself: with which code, and why."""

    def __init__(
        self,
        code: str,
        detail: str = "",
        retry_after: float | None = None,
        key: str = "",
        *,
        redirected: bool = False,
    ) -> None:
        super().__init__(code)
        self.code = code
        self.key = key if code in _OF_A_KEY else ""
        """The first digits of the key's hash, as in the log. No more of it: without a secret, the keys that
        are derived can be computed from a whole hash."""
        self.detail = detail or PROBLEMS[code].detail
        self.retry_after = retry_after
        self.safe_new_key = PROBLEMS[code].safe_new_key and not redirected
        """As that of the problem, but not if it may be the same request before a redirect that was followed."""


def refusal_of(error: RetrysafeError | Postponed) -> Refusal | None:
    """Turn an error of a claim into the layer's answer; None for one that only a developer can mend.

    What an error says of the server's insides stays there: only what a client sent is named to it, a pool's option,
    and what a person has declared for it.
    """
    for kind, code in _CODES:
        if isinstance(error, kind):
            detail = f"{error.detail} {PROBLEMS[code].detail}" if isinstance(error, InvalidKey | KeyReused) else ""
            if isinstance(error, StoredFailure) and error.data == BY_A_PERSON:
                detail = f"{error.detail}. {PROBLEMS[code].detail}"
            if isinstance(error, StoreUnavailable) and error.more_connections:
                detail = f"{PROBLEMS[code].detail} {_EXHAUSTED.format(error.more_connections)}"
            differing = {*error.differing} if isinstance(error, KeyReused) else set()
            redirected = bool(differing) and differing <= _OF_THE_PLACE
            if redirected:
                detail = f"{error.detail} {_REDIRECTED}"
            key = getattr(error, "key", "")
            return Refusal(code, detail, getattr(error, "retry_after", None), key, redirected=redirected)
    return None


def report(code: str, error: RetrysafeError | Postponed) -> None:
    """Log a refusal whose cause is on the server: the response does not tell it."""
    if code in _CONFIGURATION:
        logger().error("A request was refused as %s: %s", code, error)
    elif code in _SERVERS:
        logger().warning("A request was refused as %s: %s", code, error)


def render(refusal: Refusal, status: int | None = None, base: str = BASE, program: str = PROGRAM) -> Response:
    """The response to a refusal. It is never stored. ``program``: how the operator's commands begin."""
    problem = PROBLEMS[refusal.code]
    page = f"{base}{refusal.code}/"
    code = status or problem.status
    body = {
        "type": page,
        "title": problem.title,
        "status": code,
        "detail": refusal.detail,
        "code": refusal.code,
        "safe_new_key": refusal.safe_new_key,
    }
    if refusal.key:
        command = Commands(program).line("keys show", [("hash", refusal.key)])
        body |= {"key_hash": refusal.key, "operator_command": command}
    text = json.dumps(body, ensure_ascii=False).encode()
    headers = [
        (b"content-type", b"application/problem+json"),
        (b"content-length", str(len(text)).encode()),
        (b"cache-control", b"no-store"),
        (b"link", f'<{page}>; rel="describedby"'.encode()),
    ]
    wait = problem.retry_after if refusal.retry_after is None else refusal.retry_after
    if wait is not None:
        headers.append((b"retry-after", str(max(1, math.ceil(wait))).encode()))
    return Response(code, tuple(headers), text)
