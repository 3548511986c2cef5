"""What arrives: the head of a delivery, its document, and the event that it turns out to be."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar
from urllib.parse import parse_qsl

from retrysafe.claims.claim import Claim
from retrysafe.errors import ConfigurationError
from retrysafe.protocol.keys import key_of
from retrysafe.webhooks.errors import DeliveryRefused

HeaderLines = Mapping[str, str] | Iterable[tuple[str | bytes, str | bytes]]
"""Header fields as frameworks have them: a mapping, or lines in their order, also of bytes."""
JSON = "application/json"
FORM = "application/x-www-form-urlencoded"

T_co = TypeVar("T_co", covariant=True)


class Head:
    """The header fields of a delivery, found by name whatever its case."""

    def __init__(self, lines: HeaderLines) -> None:
        self._values: dict[str, list[str]] = {}
        pairs: Any = lines.items() if isinstance(lines, Mapping) else lines
        for name, value in pairs:
            self._values.setdefault(_text(name).lower(), []).append(_text(value).strip())

    def one(self, name: str) -> str | None:
        """The value of a field, or None; raises `DeliveryRefused` when it came twice: only one would be checked."""
        values = self._values.get(name.lower(), [])
        if len(values) > 1:
            raise DeliveryRefused("header-repeated", f"{name} came {len(values)} times.")
        return values[0] if values else None

    def signed(self, name: str) -> str:
        """The value of a field without which nothing can be verified; raises `DeliveryRefused` when it is absent."""
        value = self.one(name)
        if not value:
            raise DeliveryRefused("signature-missing", f"There is no {name}.")
        return value


class Known(NamedTuple):
    """The identity of a verified delivery, as a scheme read it.

    Attributes:
        id: the provider's id of the event, the same on every delivery of it.
        type: what happened, in the provider's words, such as "invoice.paid".
        key: what identifies the event, if that is not its id: only what is signed may.
        payload: what must be the same on every delivery of it; another one is refused. By default the type.
    """

    id: str
    type: str
    key: str | None = None
    payload: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class WebhookEvent(Generic[T_co]):
    """One verified event.

    Attributes:
        scheme: the name of the scheme that verified it.
        id: the provider's id of the event.
        type: what happened, in the provider's words.
        data: the document that was delivered, or what ``parse`` of its handler made of it.
        document: the document that was delivered.
        body: the bytes that were delivered and signed.
        timestamp: when this delivery was signed, in seconds since the Unix epoch; None where that is not signed.
        key: the idempotency key under which it is handled.
        payload: what counts as the same under that key.
        claim: the claim around its handler; None elsewhere.
    """

    scheme: str
    id: str
    type: str
    data: T_co = field(repr=False)
    body: bytes = field(repr=False)
    timestamp: int | None
    key: str
    payload: Mapping[str, str]
    claim: Claim | None = field(default=None, repr=False, compare=False)
    document: Any = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.document is None:
            object.__setattr__(self, "document", self.data)

    @property
    def tx(self) -> Any:
        """The transaction of a transactional boundary, in which the handler works. See `Claim.tx`."""
        if self.claim is None:
            raise ConfigurationError("event.tx exists in the event's handler only.")
        return self.claim.tx

    def dump(self) -> dict[str, Any]:
        """The event as JSON types, for a queue that hands it to `Receiver.handle` later; `load` reads it."""
        return {
            "scheme": self.scheme,
            "id": self.id,
            "type": self.type,
            "data": self.document,
            "body": self.body.decode("latin-1"),
            "timestamp": self.timestamp,
            "key": self.key,
            "payload": dict(self.payload),
        }

    @classmethod
    def load(cls, dumped: Mapping[str, Any]) -> WebhookEvent[Any]:
        """The event that `dump` wrote. It is not verified again: read it from where nobody else writes."""
        return WebhookEvent(**{**dumped, "body": dumped["body"].encode("latin-1")})


def document_of(head: Head, body: bytes, media_types: Collection[str] = (JSON,)) -> dict[str, Any]:
    """The document of a verified body of one of the ``media_types``; raises `DeliveryRefused` for any other.

    JSON, or a form: of a form with a field ``payload``, as GitHub and Slack send them, the JSON in that field. The
    Content-Type is not signed, so it cannot make a form of what begins like a JSON object, nor of what a provider sends
    that has no forms.
    """
    text: str | bytes = body
    media_type = _media_type(head)
    if media_type not in media_types:
        raise DeliveryRefused("media-type-unsupported", f"The provider sends {' or '.join(media_types)}.")
    try:
        if media_type == FORM and not body.lstrip().startswith(b"{"):
            fields = dict(parse_qsl(body.decode(), keep_blank_values=True))
            if "payload" not in fields:
                return fields
            text = fields["payload"]
        document = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise DeliveryRefused("payload-invalid", "The body is signed, but cannot be read as JSON.") from error
    if not isinstance(document, dict):
        raise DeliveryRefused("payload-invalid", "The body is signed, but it is no JSON object.")
    return document


def _media_type(head: Head) -> str:
    """What the body is said to be; `JSON` stands for all types that are JSON, and where nothing is said."""
    found = (head.one("content-type") or JSON).partition(";")[0].strip().lower()
    return JSON if found.endswith("+json") else found


def text_at(document: Mapping[str, Any], name: str) -> str:
    """A member that is text; else empty."""
    value = document.get(name)
    return value if isinstance(value, str) else ""


def event_of(
    scheme: str, known: Known, document: dict[str, Any], body: bytes, timestamp: int | None
) -> WebhookEvent[Any]:
    """The event of a verified delivery; raises `DeliveryRefused` when it has no id, or what names it is no text."""
    if not known.id:
        raise DeliveryRefused("id-missing", "Deliveries without an id cannot be told apart.")
    payload = {"type": known.type} if known.payload is None else known.payload
    _check_text(known.type, *payload.values())
    key = key_of(known.id if known.key is None else known.key)
    return WebhookEvent(scheme, known.id, known.type, document, body, timestamp, key, payload)


def _check_text(*texts: str) -> None:
    r"""JSON can write half a character (``"\ud800"``), which no store, log or queue could keep."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:
        raise DeliveryRefused("payload-invalid", "What names the event is no Unicode text.") from error


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("latin-1")


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
