"""Pure decisions about a delivery: the result of one attempt, whether there is another attempt, and when."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from retrysafe.errors import ConfigurationError
from retrysafe.protocol.backoff import Backoff
from retrysafe.webhooks.signatures import Secrets
from retrysafe.webhooks.standard import keys_of, signatures

Outcome = Literal["delivered", "gone", "gave up", "unknown"]
"""delivered: the endpoint answered 2xx. gone: it answered 410, and wants no further attempt. gave up: every attempt was
refused or did not reach it. unknown: an attempt may have reached it, but there was no answer."""
GONE = 410
LONGEST_WAIT = 86400.0
"""Longest pause in seconds, even when the Retry-After of an endpoint asks for more."""

_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE = re.compile(r"[\t\x20-\x7e]*")
_OURS = frozenset({"webhook-id", "webhook-timestamp", "webhook-signature"})
_FRAMING = frozenset(
    {"connection", "content-length", "expect", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}
)


@dataclass(frozen=True, slots=True)
class Message:
    """A message to deliver, with the same id and the same bytes on every attempt.

    Attributes:
        id: the id by which the receiver recognises the message; without full stops, which separate the signed fields.
        body: the bytes of the body.
    """

    id: str
    body: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not self.id or not self.id.isascii() or not self.id.isprintable() or set(self.id) & {".", " "}:
            raise ConfigurationError(
                f"id={self.id!r}: the id of a message must be printable ASCII without spaces and full stops."
            )

    @classmethod
    def of(cls, type: str, data: Any, *, id: str | None = None, at: datetime | None = None) -> Message:
        """A message about an event of ``type``, with the payload that the specification recommends.

        Store ``id`` with the event, such as the id of its row in an outbox: with a new id, the same event is another
        message. ``at`` is the time of the event (by default now).
        """
        document = {"type": type, "timestamp": (at or datetime.now(UTC)).isoformat(), "data": data}
        body = json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
        return cls(id or f"msg_{uuid.uuid4().hex}", body)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An endpoint that receives messages.

    Attributes:
        url: an http or https URL. It is not restricted: if users may configure URLs, give the sender a client that
            cannot reach your internal network.
        secrets: the endpoint's secret (``whsec_…``), or several during a rotation: each message is signed with all.
        headers: header fields that are added to every delivery, or replace its Content-Type and User-Agent. Their names
            are case-insensitive. Fields of the signature and of the framing are not allowed.

    Raises `ConfigurationError` for invalid values.
    """

    url: str
    secrets: Secrets = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    keys: tuple[bytes, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            called = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            called = False
        if not called:
            raise ConfigurationError("url= of an endpoint is not an http or https URL.")
        object.__setattr__(self, "headers", _headers(self.headers))
        object.__setattr__(self, "keys", keys_of(self.secrets))

    def __repr__(self) -> str:
        return f"Endpoint({self.destination!r})"

    @property
    def destination(self) -> str:
        """Scheme, host and port of the URL: the parts that are not secret."""
        parts = urlsplit(self.url)
        port = "" if parts.port is None else f":{parts.port}"
        return f"{parts.scheme}://{parts.hostname}{port}"

    def signed(self, message: Message, now: float) -> dict[str, str]:
        """The header fields of one attempt at ``now``, in seconds since the Unix epoch."""
        timestamp = str(int(now))
        made = signatures(self.keys, message.id, timestamp, message.body)
        return {
            "content-type": "application/json",
            "user-agent": "retrysafe-webhooks",
            **self.headers,
            "webhook-id": message.id,
            "webhook-timestamp": timestamp,
            "webhook-signature": " ".join(f"v1,{signature}" for signature in made),
        }


def _headers(given: Mapping[Any, Any]) -> dict[str, str]:
    """The fields by their names in lower case, so that no field is sent twice."""
    found: dict[str, str] = {}
    for name, value in given.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigurationError(f"headers= of an endpoint has {name!r}, which is not a valid field name.")
        if not isinstance(value, str) or not _VALUE.fullmatch(value):
            raise ConfigurationError(f"headers= of an endpoint has a value of {name} that is not printable ASCII.")
        if name.lower() in found or name.lower() in _OURS | _FRAMING:
            raise ConfigurationError(
                f"headers= of an endpoint has {name} twice, or it is a field of the signature or of the framing, which "
                "the sender sets."
            )
        found[name.lower()] = value
    return found


class Tried(NamedTuple):
    """The result of one attempt.

    Attributes:
        status: the status of the answer; None without an answer.
        wait: the Retry-After of the answer in seconds.
        sent: whether the attempt may have reached the endpoint.
        reason: the error, if there is no answer.
    """

    status: int | None
    wait: float | None = None
    sent: bool = True
    reason: str = ""


class Delivery(NamedTuple):
    """The outcome of a message after one or more attempts.

    Attributes:
        outcome: see `Outcome`.
        id: the id of the message.
        attempts: how many attempts were made, with those before this call.
        status: the status of the last attempt's answer; None when it had no answer.
        reason: the error of the last attempt; empty when it had an answer.
        retry_after: seconds until the next attempt, from the back-off and the endpoint's Retry-After (a day at most);
            None when there should be no further attempt.
        doubtful: whether an attempt may have reached the endpoint without an answer.
    """

    outcome: Outcome
    id: str
    attempts: int
    status: int | None = None
    reason: str = ""
    retry_after: float | None = None
    doubtful: bool = False


BACKOFF = Backoff(base=1.0, cap=60.0)


def judge(tried: Tried, message: Message, earlier: Delivery | None, backoff: Backoff, chance: float) -> Delivery:
    """The outcome of a message after one more attempt; ``chance`` is random in [0, 1)."""
    before, doubtful = (0, False) if earlier is None else (earlier.attempts, earlier.doubtful)
    doubtful |= tried.status is None and tried.sent
    made = Delivery("gave up", message.id, before + 1, tried.status, tried.reason, doubtful=doubtful)
    if tried.status is not None and 200 <= tried.status < 300:
        return made._replace(outcome="delivered", doubtful=False)
    if tried.status == GONE:
        return made._replace(outcome="gone")
    pause = max(backoff.delay(before, chance), min(tried.wait or 0.0, LONGEST_WAIT))
    return made._replace(outcome="unknown" if doubtful else "gave up", retry_after=pause)


def is_final(earlier: Delivery | None, message: Message) -> bool:
    """Tell whether a message needs no more attempts. Raises `ConfigurationError` for the outcome of another message."""
    if earlier is not None and earlier.id != message.id:
        raise ConfigurationError(f"earlier= is the outcome of message {earlier.id!r}, not of {message.id!r}.")
    return earlier is not None and earlier.outcome in ("delivered", "gone")


def is_over(delivery: Delivery, made: int, attempts: int, left: float) -> bool:
    """Tell whether a call ends after ``made`` of its ``attempts``, with ``left`` seconds until its deadline.

    A pause that would end after the deadline is not begun.
    """
    return delivery.retry_after is None or made >= attempts or delivery.retry_after > left


def retry_after(value: str | None, date: str | None, now: float) -> float | None:
    """The seconds of a Retry-After: a number, or a date that is compared with the Date of the answer (RFC 9110)."""
    if value is None:
        return None
    if value.strip().isascii() and value.strip().isdigit():
        return float(value.strip()[:10])
    until, server = _instant(value), _instant(date)
    if until is None:
        return None
    return max(0.0, until - (now if server is None else server))


def _instant(value: str | None) -> float | None:
    try:
        return None if value is None else parsedate_to_datetime(value).timestamp()
    except (ValueError, OverflowError):
        return None
