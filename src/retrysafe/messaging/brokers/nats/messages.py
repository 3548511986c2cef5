"""A message of NATS as an envelope, and the other way round: the attributes of a CloudEvent are in its headers.

Written and read are the binary mode of the NATS binding of CloudEvents
(https://github.com/cloudevents/spec/blob/main/cloudevents/bindings/nats-protocol-binding.md), with "ce-" before each
attribute, and its structured mode; read also without the header that says so: CloudEvents 1.0.2 knew no headers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from retrysafe.messaging.cloudevents import (
    OWN,
    STRUCTURED,
    Mode,
    attributes,
    header_text,
    header_value,
    is_attribute,
    read_event,
    to_structured,
)
from retrysafe.protocol.messages import Envelope

PREFIX = "ce-"
MESSAGE_ID = "Nats-Msg-Id"
"""The header by which a stream recognises a message that comes again."""
_OF_THE_SERVER = "nats-"
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_SUBJECT = re.compile(r"[^\s.*>\x00-\x1f\x7f]+(\.[^\s.*>\x00-\x1f\x7f]+)*")


def subject_of(prefix: str, place: str) -> str:
    """The subject of a topic or partition. Raises `ValueError` for a name that no subject has."""
    subject = f"{prefix}{place}"
    if not _SUBJECT.fullmatch(subject) or subject.startswith("$"):
        raise ValueError(f"{subject!r} is not a subject of NATS: words without spaces, * and >, with dots between them")
    return subject


def headers_of(envelope: Envelope) -> dict[str, str]:
    """The headers that carry the envelope.

    Headers of the envelope that cannot be attributes keep their names. Raises `ValueError` for one
    that would be read as an attribute, or as an order to the server.
    """
    headers = {MESSAGE_ID: header_value(f"{len(envelope.source)}:{envelope.source}{envelope.id}")}
    for name, value in attributes(envelope).items():
        if is_attribute(name):
            headers[f"{PREFIX}{name}"] = header_value(value)
        elif _NAME.fullmatch(name) and not name.lower().startswith((PREFIX, _OF_THE_SERVER)):
            headers[name] = header_value(value)
        else:
            raise ValueError(f"a header {name!r} cannot be sent with NATS, or would be read as something else")
    return headers


def content_of(envelope: Envelope, mode: Mode) -> tuple[bytes, dict[str, str]]:
    """The payload and the headers of the message that carries an envelope.

    Raises `ValueError` for a header that would be read as an attribute, as the payload, or as an order to the server.
    """
    headers = headers_of(envelope)
    if mode == "binary":
        return envelope.payload, headers
    others = {name: value for name, value in headers.items() if not name.startswith(PREFIX)}
    return to_structured(envelope), {**others, "content-type": STRUCTURED}


def size_of(headers: Mapping[str, str], payload: bytes) -> int:
    """Return the size of a message in bytes, as the server counts it."""
    return len("NATS/1.0\r\n\r\n") + sum(len(name) + len(value) + 4 for name, value in headers.items()) + len(payload)


def envelope_from(headers: Mapping[str, str] | None, payload: bytes, place: str) -> Envelope:
    given: dict[str, str] = {}
    others: dict[str, str] = {}
    for name, value in (headers or {}).items():
        lower = name.lower()
        if lower.startswith(PREFIX):
            given[lower.removeprefix(PREFIX)] = header_text(value)
        elif lower == "content-type":
            given.setdefault("datacontenttype", value)
        elif name not in OWN and not lower.startswith(_OF_THE_SERVER):
            others[name] = header_text(value)
    return read_event({**others, **given}, payload, place, others, may_be_bare=True)
