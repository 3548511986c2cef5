"""The answers of a receiver: the status tells the provider to stop or to deliver again."""

from __future__ import annotations

import json
import math
from typing import NamedTuple

from retrysafe.errors import (
    InProgress,
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
from retrysafe.http.messages import MARKER, Response
from retrysafe.http.problems import report
from retrysafe.webhooks.errors import DeliveryRefused

DUPLICATE = 200
"""The answer to an event that was handled before: a success, so that the provider stops."""


class ErrorAnswer(NamedTuple):
    """The answer to an error of a claim."""

    status: int
    code: str
    retry_after: int | None = None
    """Seconds after which the provider should deliver the event again."""
    detail: str = "It was not handled by this delivery. Deliver it again."


ANSWERS: tuple[tuple[type[RetrysafeError | Postponed], ErrorAnswer], ...] = (
    (InProgress, ErrorAnswer(503, "in-progress", 1)),
    (LeaseLost, ErrorAnswer(503, "in-progress", 1)),
    (Postponed, ErrorAnswer(503, "postponed")),
    (StoreMisconfigured, ErrorAnswer(503, "store-misconfigured", 60)),
    (StoreUnavailable, ErrorAnswer(503, "store-unavailable", 1)),
    (SchemaOutdated, ErrorAnswer(503, "store-not-migrated", 60)),
    (RetryTransaction, ErrorAnswer(503, "store-unavailable", 1)),
    (OutcomeUnknown, ErrorAnswer(503, "outcome-unknown", 60)),
    (QuotaExceeded, ErrorAnswer(429, "quota-exceeded", 1)),
    (
        KeyReused,
        ErrorAnswer(422, "event-changed", detail="It was not handled: another event came under its id before."),
    ),
    (
        KeyExpired,
        ErrorAnswer(409, "key-expired", detail="It was not handled now. It came before; its end is forgotten."),
    ),
    (StoredFailure, ErrorAnswer(DUPLICATE, "failed-before")),
    (ResultNotEncodable, ErrorAnswer(DUPLICATE, "handled-before")),
    (ResultUnreadable, ErrorAnswer(DUPLICATE, "handled-before")),
)
"""The answer to each error of a claim; any other error is a mistake in the application, and is raised."""


def answer_of(error: RetrysafeError | Postponed, concurrent_status: int) -> Response | None:
    """The answer to an error of a claim; None for an error that is to be raised."""
    for kind, (status, code, retry_after, detail) in ANSWERS:
        if isinstance(error, kind):
            if status == DUPLICATE:
                return acknowledge(replayed=True)
            if isinstance(error, InProgress):
                status = concurrent_status
            report(code, error)
            pause = getattr(error, "retry_after", retry_after)
            return problem(status, code, detail, pause)
    return None


def refuse(refusal: DeliveryRefused) -> Response:
    more = [(b"accept-encoding", b"identity")] if refusal.reason == "encoding-unsupported" else []
    made = problem(refusal.status, refusal.reason, "Nothing was done.")
    return made._replace(headers=(*made.headers, *more))


def acknowledge(*, replayed: bool = False) -> Response:
    """The success that makes a provider stop: empty, as Slack requires; marked if the event was handled before."""
    marked = [(MARKER, b"true")] if replayed else []
    return _response(200, b"", marked)


def text(content: str) -> Response:
    return _response(200, content.encode("utf-8", "replace"), [(b"content-type", b"text/plain; charset=utf-8")])


def method_not_allowed() -> Response:
    made = problem(405, "method-not-allowed", "Webhooks are delivered by POST.")
    return made._replace(headers=(*made.headers, (b"allow", b"POST")))


def problem(status: int, code: str, detail: str, retry_after: float | None = None) -> Response:
    body = json.dumps({"status": status, "code": code, "detail": detail}).encode()
    headers = [(b"content-type", b"application/problem+json")]
    if retry_after is not None:
        headers.append((b"retry-after", str(max(1, math.ceil(retry_after))).encode()))
    return _response(status, body, headers)


def _response(status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> Response:
    common = [(b"content-length", str(len(body)).encode()), (b"cache-control", b"no-store")]
    return Response(status, (*headers, *common), body)
