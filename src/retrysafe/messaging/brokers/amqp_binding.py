"""A message of AMQP as an envelope, and the other way round: the attributes of a CloudEvent are in its headers.

The headers are those of AMQP 0-9-1, or the application properties of AMQP 1.0.

Read are the AMQP binding of CloudEvents
(https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/amqp-protocol-binding.md), whose prefixes are
"cloudEvents:" and "cloudEvents_", the RabbitMQ binding
(https://github.com/knative-extensions/eventing-rabbitmq/blob/main/cloudevents-protocol-spec/spec.md), whose prefix is
"ce-", and the structured mode of both.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from retrysafe.messaging.cloudevents import (
    BINDINGS,
    ESCAPED,
    OWN,
    STRUCTURED,
    Mode,
    attributes,
    is_attribute,
    other_headers,
    read_event,
    to_structured,
)
from retrysafe.protocol.messages import Envelope

Binding = Literal["amqp", "rabbitmq"]
"""The binding of CloudEvents in which the headers of a message are written."""
PREFIXES: dict[Binding, str] = {"amqp": "cloudEvents:", "rabbitmq": "ce-"}
_OF_THE_BROKER = ("x-death", "x-first-death-", "x-last-death-", "x-delivery-count", "x-acquired-count")
"""Headers that RabbitMQ adds to a message on its way."""


def headers_of(envelope: Envelope, binding: Binding) -> dict[str, str]:
    """The headers that carry the envelope; its media type is a property of the message.

    A header of the envelope whose name no attribute may have travels under its own name: other implementations refuse
    an event with such an attribute. Raises `ValueError` for one that would be read as an attribute.
    """
    prefix = PREFIXES[binding]
    if forged := next((name for name in envelope.headers if name.lower().startswith(BINDINGS)), None):
        raise ValueError(f"a header {forged!r} would be read as an attribute")
    told = attributes(envelope)
    del told["datacontenttype"]
    return {f"{prefix}{name}" if is_attribute(name) else name: value for name, value in told.items()}


def content_of(envelope: Envelope, binding: Binding, mode: Mode) -> tuple[bytes, str, dict[str, str]]:
    """The body, the media type and the headers of the message that carries an envelope.

    Raises `ValueError` for a header that would be read as an attribute, or as the payload.
    """
    headers = headers_of(envelope, binding)
    if mode == "binary":
        return envelope.payload, envelope.media_type, headers
    return to_structured(envelope), STRUCTURED, other_headers(envelope)


def envelope_from(
    headers: Mapping[str, Any], properties: Mapping[str, str | None], body: bytes, queue: str
) -> Envelope:
    """The envelope of a message from a queue; ``properties`` are attributes that the message's own properties tell."""
    given = {name: value for name, value in properties.items() if value}
    others: dict[str, str] = {}
    prefixes = _prefixes(headers)
    for name, value in headers.items():
        prefix = next((one for one in prefixes if name.lower().startswith(one)), None)
        if prefix is not None and value is not None:  # an attribute without a value is not there
            given[name[len(prefix) :]] = _text(value)
        elif isinstance(value, str | bytes) and _is_header(name):
            others[name] = _text(value)
    return read_event({**others, **given}, body, queue, others)


def _is_header(name: str) -> bool:
    """Tell whether it is neither an attribute, if only of another version, nor from the broker."""
    return name not in OWN and not name.lower().startswith(BINDINGS) and not name.startswith(_OF_THE_BROKER)


def _prefixes(headers: Mapping[str, Any]) -> tuple[str, ...]:
    """The prefix of the attributes, which is that of the version; all of them where there is no version."""
    names = {name.lower() for name in headers}
    return next(((prefix,) for prefix in BINDINGS if f"{prefix}specversion" in names), BINDINGS)


def _text(value: Any) -> str:
    """The value of an attribute, which AMQP may carry in a type of its own, in its canonical string form."""
    if isinstance(value, bytes):
        return value.decode(errors=ESCAPED)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return str(value)
