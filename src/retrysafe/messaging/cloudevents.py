"""An envelope as the attributes of a CloudEvent, which every binding writes in its own place.

CloudEvents 1.0.2 (https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/spec.md) and its JSON format
(https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/formats/json-format.md); ``sequence`` and the trace are its
extensions "Sequence" and "Distributed Tracing", ``partitionkey`` is that of "Partitioning".
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, get_args
from urllib.parse import quote, unquote

from retrysafe.errors import ConfigurationError
from retrysafe.protocol.messages import Envelope
from retrysafe.protocol.ordering import LARGEST_SEQUENCE

Mode = Literal["binary", "structured"]
"""The place of an event's attributes: in headers or properties, or with its data in a JSON text."""
MODES: tuple[Mode, ...] = get_args(Mode)
VERSION = "1.0"
OWN = ("specversion", "id", "source", "type", "subject", "sequence", "topic", "datacontenttype")
BINDINGS = ("cloudevents:", "cloudevents_", "ce-")
"""The beginning of attributes' names in AMQP and HTTP, in lower case; no header's name has it."""
RESERVED = (
    *BINDINGS,
    "ce_",  # Kafka, SQS
    "content-type",  # Kafka, NATS, SQS, Pub/Sub
    "retrysafe-",  # Debezium's router
    "nats-",
    "goog",  # Pub/Sub
    *("aws.", "amazon."),  # SQS, SNS
    *("x-death", "x-first-death-", "x-last-death-", "x-delivery-count", "x-acquired-count"),  # RabbitMQ
)
"""The beginning of names, in lower case, that a binding or a broker reserves: no header's name has it."""
DATA = ("data", "data_base64")
"""The members with the payload (section "Naming Conventions", and the JSON format): no attribute has these names."""
ESCAPED = "backslashreplace"
"""The error handler for octets that are not UTF-8: texts that differ in them alone stay different."""
STRUCTURED = "application/cloudevents+json"
"""The media type of an event that is all in the payload."""
_PRINTABLE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
_PLAIN = re.compile(f"[{re.escape(_PRINTABLE)}]*")
_ATTRIBUTE = re.compile(r"[a-z0-9]+")


def require_mode(mode: str) -> None:
    """Raise `ConfigurationError` for what is no `Mode`."""
    if mode not in MODES:
        raise ConfigurationError(f"mode={mode!r}: write one of {', '.join(MODES)}.")


def attributes(envelope: Envelope) -> dict[str, str]:
    """The attributes by name, without the payload; headers are extensions."""
    found = {
        **envelope.headers,
        "specversion": VERSION,
        "id": envelope.id,
        "source": envelope.source,
        "type": envelope.type,
        "topic": envelope.topic,
        "datacontenttype": envelope.media_type,
    }
    if envelope.key is not None:
        found["subject"] = envelope.key
    if envelope.sequence is not None:
        found["sequence"] = str(envelope.sequence)
    return found


def is_attribute(name: str) -> bool:
    """Tell whether an attribute may have this name: lower-case letters and digits (section "Naming Conventions").

    Other implementations refuse an event with any other name.
    """
    return _ATTRIBUTE.fullmatch(name) is not None


def other_headers(envelope: Envelope) -> dict[str, str]:
    """The headers whose names no attribute may have, which travel beside the event under their own."""
    return {name: value for name, value in envelope.headers.items() if not is_attribute(name)}


def with_prefix(envelope: Envelope, prefix: str) -> dict[str, str]:
    """The attributes with this before their names, the media type as ``content-type``, and the other headers."""
    told = attributes(envelope)
    media_type = told.pop("datacontenttype")
    named = {f"{prefix}{name}" if is_attribute(name) else name: value for name, value in told.items()}
    return {**named, "content-type": media_type}


def is_event(media_type: str) -> bool:
    """Tell whether it says that the payload is an event in its JSON format."""
    return _kind(media_type) == STRUCTURED


def _kind(media_type: str) -> str:
    return media_type.partition(";")[0].strip().lower()


def header_value(text: str) -> str:
    """An attribute as the value of a header of HTTP or NATS: what ASCII cannot say is percent-encoded.

    HTTP and NATS bindings, section 3.1.3.2. Raises `UnicodeEncodeError` for a lone surrogate.
    """
    return text if _PLAIN.fullmatch(text) else quote(text, safe=_PRINTABLE)  # which takes ten times as long


def header_text(value: str) -> str:
    """Decode the text of such a header."""
    return unquote(value, errors=ESCAPED)


def to_structured(envelope: Envelope) -> bytes:
    """The event with its data as JSON; headers whose names no attribute may have are left out.

    A payload that is JSON by its media type stands in it as it is; any other one in base64, and so does JSON that
    `received` would give other octets, as it does to spaces between tokens: each copy of a message has the same ones.
    Raises `ValueError` for a header that would be read as the payload.
    """
    if forged := next((name for name in envelope.headers if name in DATA), None):
        raise ValueError(f"a header {forged!r} would be read as the payload")
    event = {name: value for name, value in attributes(envelope).items() if is_attribute(name)}
    data = _json_text(envelope)
    if data is not None and _data(json.loads(data), envelope.media_type) != envelope.payload:
        data = None
    if data is None:
        event["data_base64"] = base64.b64encode(envelope.payload).decode()
    told = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
    return (told if data is None else f'{told[:-1]},"data":{data}}}').encode()


def _json_text(envelope: Envelope) -> str | None:
    """The payload as the text of a JSON value; None if it is not one."""
    if not _kind(envelope.media_type).endswith(("/json", "+json")):
        return None
    try:
        text = envelope.payload.decode()
        json.loads(text)
    except (ValueError, RecursionError):
        return None
    return text


def read_event(
    given: Mapping[str, str],
    payload: bytes,
    topic: str,
    others: Mapping[str, str] = MappingProxyType({}),
    *,
    may_be_bare: bool = False,
) -> Envelope:
    """The envelope of a broker's message from any publisher, in binary or structured mode.

    others: headers beside the attributes.
    may_be_bare: whether a payload that looks like an event is one without a media type, too.

    What has no ``id``, ``source`` or ``type`` has empty ones, for an inbox to judge; a sequence that is no number is
    none. An event without a subject is ordered by its partition key, if it has one.
    """
    if may_be_bare and "specversion" not in given and b'"specversion"' in payload:
        given = {"datacontenttype": STRUCTURED, **given}
    event = _read_structured(given, payload)
    if event is not None:
        given, payload = event
    known = {"id": "", "source": "", "type": "", "topic": topic, **given}
    if "partitionkey" in known:
        known.setdefault("subject", known["partitionkey"])
    number = known.get("sequence", "0")
    if not re.fullmatch(r"-?\d{1,19}", number, re.ASCII) or abs(int(number)) > LARGEST_SEQUENCE:
        del known["sequence"]
    envelope = envelope_of(known, payload)
    return envelope._replace(headers={**others, **envelope.headers}) if others else envelope


def _read_structured(given: Mapping[str, str], payload: bytes) -> tuple[dict[str, str], bytes] | None:
    """The attributes and the data of an event that is all in the payload; None for any other payload.

    A payload that says it is one, and cannot be read as one, stays as it is: its handler refuses it as unreadable.
    """
    if not is_event(given.get("datacontenttype", "")):
        return None
    try:
        event: Any = json.loads(payload)
        if not isinstance(event, dict):
            return None
        data, encoded = event.pop("data", None), event.pop("data_base64", None)
        told = {name: _text(value) for name, value in event.items() if value is not None}
        told.setdefault("datacontenttype", "application/json")
        if encoded is not None:
            return told, base64.b64decode(encoded, validate=True)
        return told, _data(data, told["datacontenttype"])
    except (ValueError, TypeError, RecursionError):
        return None


def _data(data: Any, media_type: str) -> bytes:
    if isinstance(data, str) and not _kind(media_type).endswith(("/json", "+json")):
        return data.encode()
    return b"" if data is None else json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()


def _text(value: Any) -> str:
    """An attribute's value in its canonical string form."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def envelope_of(given: Mapping[str, str], payload: bytes) -> Envelope:
    """The envelope that these attributes are of.

    Raises `KeyError` without ``id``, ``source`` or ``type``, and `ValueError` for a sequence that is no number.
    """
    sequence = given.get("sequence")
    return Envelope(
        id=given["id"],
        topic=given.get("topic", ""),
        key=given.get("subject"),
        type=given["type"],
        source=given["source"],
        sequence=None if sequence is None else int(sequence),
        headers={name: value for name, value in given.items() if name not in OWN},
        payload=payload,
        media_type=given.get("datacontenttype", "application/octet-stream"),
    )
