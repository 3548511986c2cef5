"""The parts of a delivery: its header fields, its document, and its event."""

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
"""Header fields as frameworks provide them: a mapping, or pairs in their order, of text or bytes."""
JSON = "application/json"
FORM = "application/x-www-form-urlencoded"

T_co = TypeVar("T_co", covariant=True)


class Head:
    """The header fields of a delivery, with case-insensitive names."""

    def __init__(self, lines: HeaderLines) -> None:
        self._values: dict[str, list[str]] = {}
        pairs: Any = lines.items() if isinstance(lines, Mapping) else lines
        for name, value in pairs:
            self._values.setdefault(_text(name).lower(), []).append(_text(value).strip())

    def one(self, name: str) -> str | None:
        """The value of a field, or None. Raises `DeliveryRefused` for a repeated one: only one would be checked."""
        values = self._values.get(name.lower(), [])
        if len(values) > 1:
            raise DeliveryRefused("header-repeated", f"The request has {len(values)} {name} fields.")
        return values[0] if values else None

    def signed(self, name: str) -> str:
        """The value of a field that the verification needs. Raises `DeliveryRefused` when it is absent."""
        value = self.one(name)
        if not value:
            raise DeliveryRefused("signature-missing", f"The request has no {name} field.")
        return value


class Known(NamedTuple):
    """The identity of a verified delivery, which a scheme reads.

    Attributes:
        id: the provider's id of the event, the same on every delivery of it.
        type: the provider's type of the event, such as "invoice.paid".
        key: what identifies the event, if not its id; it must be signed.
        payload: values that must be the same on every delivery of the event; a delivery with others is refused. By
            default the type.
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
        type: the provider's type of the event.
        data: the delivered document, or the value that the handler's ``parse`` returned for it.
        document: the delivered document.
        body: the bytes that were delivered and signed.
        timestamp: when this delivery was signed, in seconds since the Unix epoch; None where the time is not signed.
        key: the idempotency key of the event.
        payload: values that must be the same on every delivery under that key.
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
        """The transaction of a transactional boundary, for the work of the handler. See `Claim.tx`."""
        if self.claim is None:
            raise ConfigurationError("event.tx exists only in the handler of the event.")
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
        """The event that `dump` returned. It is not verified again: read it only from where others cannot write."""
        return WebhookEvent(**{**dumped, "body": dumped["body"].encode("latin-1")})


def document_of(head: Head, body: bytes, media_types: Collection[str] = (JSON,)) -> dict[str, Any]:
    """The document of a verified body of one of the ``media_types``. Raises `DeliveryRefused` for any other.

    It is JSON or a form; for a form with a field ``payload``, as GitHub and Slack send it, it is the JSON in that
    field. The Content-Type is not signed, so a body that begins like a JSON object is never read as a form, and neither
    is one of a provider that sends no forms.
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
        raise DeliveryRefused("payload-invalid", "The body is signed, but it is not a JSON object.")
    return document


def _media_type(head: Head) -> str:
    """The media type of the body; `JSON` for all types that are JSON, and where there is none."""
    found = (head.one("content-type") or JSON).partition(";")[0].strip().lower()
    return JSON if found.endswith("+json") else found


def text_at(document: Mapping[str, Any], name: str) -> str:
    value = document.get(name)
    return value if isinstance(value, str) else ""


def event_of(
    scheme: str, known: Known, document: dict[str, Any], body: bytes, timestamp: int | None
) -> WebhookEvent[Any]:
    """The event of a verified delivery. Raises `DeliveryRefused` without an id, and for invalid text."""
    if not known.id:
        raise DeliveryRefused("id-missing", "Deliveries without an id cannot be told apart.")
    payload = {"type": known.type} if known.payload is None else known.payload
    _check_text(known.type, *payload.values())
    key = key_of(known.id if known.key is None else known.key)
    return WebhookEvent(scheme, known.id, known.type, document, body, timestamp, key, payload)


def _check_text(*texts: str) -> None:
    r"""Refuse half a character (``"\ud800"``): JSON can contain it, but no store, log or queue can keep it."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:
        raise DeliveryRefused("payload-invalid", "The id or type of the event is not Unicode text.") from error


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("latin-1")


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
