"""What becomes of a delivery, as pure decisions: how one attempt went, whether there is another, and when."""

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
"""delivered: the endpoint answered 2xx. gone: it answered 410 and wants no more, ever. gave up: every attempt was
refused or did not reach it. unknown: an attempt may have reached it, and nothing came back."""
GONE = 410
LONGEST_WAIT = 86400.0
"""Seconds after which the next attempt is due at the latest, however long an endpoint asks to be left alone."""

_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE = re.compile(r"[\t\x20-\x7e]*")
_OURS = frozenset({"webhook-id", "webhook-timestamp", "webhook-signature"})
_FRAMING = frozenset(
    {"connection", "content-length", "expect", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}
)


@dataclass(frozen=True, slots=True)
class Message:
    """What is delivered: the same id and the same bytes on every attempt.

    Attributes:
        id: the id by which the receiver knows it again; without full stops, which delimit what is signed.
        body: the bytes.
    """

    id: str
    body: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not self.id or not self.id.isascii() or not self.id.isprintable() or set(self.id) & {".", " "}:
            raise ConfigurationError(
                f"id={self.id!r}: a message's id is printable ASCII without spaces and full stops."
            )

    @classmethod
    def of(cls, type: str, data: Any, *, id: str | None = None, at: datetime | None = None) -> Message:
        """A message about an event of ``type``, as the specification recommends its payload.

        ``id`` is kept with the event, such as the id of its row in an outbox: a new one for the same event is another
        message. ``at`` is when the event happened (by default now).
        """
        document = {"type": type, "timestamp": (at or datetime.now(UTC)).isoformat(), "data": data}
        body = json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
        return cls(id or f"msg_{uuid.uuid4().hex}", body)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where messages are delivered to.

    Attributes:
        url: http or https. It is called as it is: where strangers may name URLs, give the sender a client whose
            network reaches nothing internal.
        secrets: the endpoint's secret (``whsec_…``), or several while it is rotated: all of them sign.
        headers: fields that are added to every delivery, or replace its Content-Type and User-Agent. Their names
            have no case. What a delivery is signed and framed by is not among them.

    Raises `ConfigurationError` for what cannot be sent.
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
            raise ConfigurationError("url= of an endpoint is not one of http or https.")
        object.__setattr__(self, "headers", _headers(self.headers))
        object.__setattr__(self, "keys", keys_of(self.secrets))

    def __repr__(self) -> str:
        return f"Endpoint({self.destination!r})"

    @property
    def destination(self) -> str:
        """Where it is, without what may be secret: scheme, host and port."""
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
    """The fields by names in lower case: one that came twice, in two cases, would be sent twice."""
    found: dict[str, str] = {}
    for name, value in given.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigurationError(f"headers= of an endpoint has {name!r}, which is no name of a field.")
        if not isinstance(value, str) or not _VALUE.fullmatch(value):
            raise ConfigurationError(f"headers= of an endpoint has a value of {name} that is no printable ASCII.")
        if name.lower() in found or name.lower() in _OURS | _FRAMING:
            raise ConfigurationError(
                f"headers= of an endpoint has {name}, which is there already: each delivery has one, and is signed and "
                "framed by the sender."
            )
        found[name.lower()] = value
    return found


class Tried(NamedTuple):
    """How one attempt went.

    Attributes:
        status: of the answer; None without one.
        wait: seconds that the answer's Retry-After asks for.
        sent: whether the attempt may have reached the endpoint.
        reason: what went wrong, if there is no answer.
    """

    status: int | None
    wait: float | None = None
    sent: bool = True
    reason: str = ""


class Delivery(NamedTuple):
    """What became of a message, after so many attempts.

    Attributes:
        outcome: see `Outcome`.
        id: the message's.
        attempts: how often it was sent, those before this call included.
        status: of the last answer; None when the last attempt had none.
        reason: what went wrong with the last attempt; empty where there was an answer.
        retry_after: seconds after which another attempt is due, by the back-off and the endpoint's Retry-After (a day
            at most); None when there should be none.
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
    """What has become of a message after one more attempt; ``chance`` is random in [0, 1)."""
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
    """Whether a message needs no further attempt. Raises `ConfigurationError` for what became of another one."""
    if earlier is not None and earlier.id != message.id:
        raise ConfigurationError(f"earlier= is of message {earlier.id!r}, not of {message.id!r}.")
    return earlier is not None and earlier.outcome in ("delivered", "gone")


def is_over(delivery: Delivery, made: int, attempts: int, left: float) -> bool:
    """Whether a call that has ``made`` so many of its ``attempts`` ends, with ``left`` seconds until its deadline.

    A pause that would end after the deadline is not begun.
    """
    return delivery.retry_after is None or made >= attempts or delivery.retry_after > left


def retry_after(value: str | None, date: str | None, now: float) -> float | None:
    """Seconds that a Retry-After asks for: a number, or a date, which the answer's own Date corrects (RFC 9110)."""
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
