"""A message of SQS or SNS as an envelope, and the other way round: an event of CloudEvents, which has no such binding.

In binary mode each attribute of the event is an attribute of the message, with "ce-" before its name, and the payload
is the body. A message has ten attributes at most, and its body is text: an event that does not fit is all in the body,
in its JSON format ("structured mode"). Both are read.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from retrysafe.messaging.cloudevents import (
    OWN,
    STRUCTURED,
    Mode,
    is_event,
    other_headers,
    read_event,
    to_structured,
    with_prefix,
)
from retrysafe.protocol.messages import Envelope
from retrysafe.protocol.ordering import lane

Attributes = dict[str, dict[str, str]]
_PREFIX, _MEDIA_TYPE = "ce-", "content-type"
_PREFIXES = (_PREFIX, "ce_", "cloudevents_")
"""The beginning of foreign attributes' names."""
_MOST_ATTRIBUTES = 10
_LONGEST_NAME = 80
_NAME = re.compile(r"(?!aws\.|amazon\.)[a-z0-9_-]+(\.[a-z0-9_-]+)*", re.IGNORECASE | re.ASCII)
_NO_TEXT = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""A character that no message has."""


def name_of(prefix: str, topic: str, *, ordered: bool) -> str:
    """The name of the queue or topic for a topic: what is no letter, digit or hyphen is escaped.

    One that is too long is cut, and told apart by a digest. Raises `ValueError` for a topic without a name.
    """
    if not topic:
        raise ValueError("a topic without a name has no queue")
    plain = "".join(
        char if char.isascii() and (char.isalnum() or char == "-") else f"_{ord(char):x}_" for char in prefix + topic
    )
    kind = ".fifo" if ordered else ""
    if len(plain) + len(kind) > _LONGEST_NAME:
        digest = hashlib.sha256(plain.encode()).hexdigest()[:16]
        plain = f"{plain[: _LONGEST_NAME - len(kind) - len(digest) - 1]}-{digest}"
    return f"{plain}{kind}"


def content_of(envelope: Envelope, mode: Mode) -> tuple[str, Attributes]:
    """The body and the attributes of a message.

    A header of the envelope whose name no attribute of an event may have is an attribute of the message under its own
    name. Raises `ValueError` for what has no place in a message.
    """
    others = other_headers(envelope)
    for name, value in others.items():
        if not _is_name(name) or not _is_text(value):
            raise ValueError(f"a header {name!r} cannot be an attribute of a message of SQS: its name or its value")
    if mode == "structured" or (content := _binary(envelope)) is None:
        content = _structure(envelope, others)
    body, told = content
    return body, {name: {"DataType": "String", "StringValue": value} for name, value in told.items()}


def _binary(envelope: Envelope) -> tuple[str, dict[str, str]] | None:
    """None for what does not fit."""
    told = with_prefix(envelope, _PREFIX)
    if len(told) > _MOST_ATTRIBUTES or not all(map(_is_text, told.values())) or is_event(envelope.media_type):
        return None
    try:
        body = envelope.payload.decode()
    except UnicodeDecodeError:
        return None
    return (body, told) if _is_text(body) else None


def _structure(envelope: Envelope, others: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    if len(others) >= _MOST_ATTRIBUTES:
        raise ValueError(f"{len(others)} headers cannot be attributes of a message of SQS, which has 10 at most")
    body = to_structured(envelope).decode()
    if not _is_text(body):
        body = json.dumps(json.loads(body))
    return body, {_MEDIA_TYPE: STRUCTURED, **others}


def _is_name(name: str) -> bool:
    lower = name.lower()
    return bool(_NAME.fullmatch(name)) and not lower.startswith(_PREFIXES) and lower != _MEDIA_TYPE and len(name) <= 256


def _is_text(value: str) -> bool:
    return bool(value) and not _NO_TEXT.search(value)


def order_of(envelope: Envelope) -> dict[str, str]:
    """The group in which a message keeps its order, and what it is recognised by when it comes again."""
    known = f"{len(envelope.source)}:{envelope.source}{envelope.id}".encode("utf-8", "surrogatepass")
    return {
        "MessageGroupId": f"{lane(envelope.topic, envelope.key, envelope.id) & (1 << 64) - 1:016x}",
        "MessageDeduplicationId": hashlib.sha256(known).hexdigest(),
    }


def envelope_from(message: Mapping[str, Any], topic: str) -> Envelope:
    """The envelope of a message from the queue of a topic, from any publisher.

    An event of another publisher, without a subject, is ordered by its message group.
    """
    given: dict[str, str] = {}
    others: dict[str, str] = {}
    for name, attribute in message.get("MessageAttributes", {}).items():
        lower, text = name.lower(), attribute.get("StringValue")
        prefix = next((one for one in _PREFIXES if lower.startswith(one)), None)
        if text is None:
            continue
        if prefix is not None:
            given[lower.removeprefix(prefix)] = text
        elif lower == _MEDIA_TYPE:
            given["datacontenttype"] = text
        elif name not in OWN:
            others[name] = text
    body = message.get("Body", "").encode("utf-8", "surrogatepass")
    envelope = read_event(given, body, topic, others, may_be_bare=True)
    group = message.get("Attributes", {}).get("MessageGroupId")
    if envelope.key is None and group not in (None, order_of(envelope)["MessageGroupId"]):
        envelope = envelope._replace(key=group)
    return envelope
