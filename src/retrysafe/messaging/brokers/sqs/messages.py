"""A message of SQS or SNS as an envelope, and the other way round.

CloudEvents has no binding for them: the whole event is the body, in its JSON format ("structured mode"). A body is text,
so a payload that is not exactly what JSON makes of it is in base64.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from retrysafe.messaging.cloudevents import DATA, STRUCTURED, is_attribute, received, structured
from retrysafe.protocol.messages import Envelope
from retrysafe.protocol.ordering import lane

CONTENT_TYPE = "content-type"
_MOST_ATTRIBUTES = 10
_NAME = re.compile(r"(?!AWS\.|Amazon\.)[A-Za-z0-9_-][A-Za-z0-9_.-]*", re.IGNORECASE)


def name_of(prefix: str, topic: str, *, ordered: bool) -> str:
    """The name of the queue or topic for a topic: what is no letter, digit or hyphen is escaped.

    Raises `ValueError` for one that is too long.
    """
    plain = "".join(
        char if char.isascii() and (char.isalnum() or char == "-") else f"_{ord(char):x}_" for char in prefix + topic
    )
    name = f"{plain}.fifo" if ordered else plain
    if not topic or len(name) > 80:
        raise ValueError(f"{name!r} is no name of a queue: it has more than 80 characters, or none")
    return name


def entry_of(envelope: Envelope) -> tuple[str, dict[str, dict[str, str]]]:
    """The body and the attributes of a message.

    A header of the envelope whose name no attribute of an event may have is an attribute of the message. Raises
    `ValueError` for more of them than a message has, and for a name that none may have.
    """
    others = {name: value for name, value in envelope.headers.items() if not is_attribute(name)}
    if any(not _NAME.fullmatch(name) or name.lower() == CONTENT_TYPE or not value for name, value in others.items()):
        raise ValueError(f"a header of {sorted(others)} cannot be an attribute of a message of SQS")
    if forged := next((name for name in envelope.headers if name in DATA), None):
        raise ValueError(f"a header {forged!r} would be read as the payload")
    if len(others) >= _MOST_ATTRIBUTES:
        raise ValueError(f"{len(others)} headers cannot be attributes of a message of SQS")
    own = {name: value for name, value in envelope.headers.items() if name not in others}
    told = {CONTENT_TYPE: STRUCTURED, **others}
    attributes = {name: {"DataType": "String", "StringValue": value} for name, value in told.items()}
    return structured(envelope._replace(headers=own)), attributes


def order_of(envelope: Envelope) -> dict[str, str]:
    """The group in which a message keeps its order, and what it is recognised by when it comes again."""
    known = f"{len(envelope.source)}:{envelope.source}{envelope.id}".encode("utf-8", "surrogatepass")
    return {
        "MessageGroupId": f"{lane(envelope.topic, envelope.key, envelope.id) & (1 << 64) - 1:016x}",
        "MessageDeduplicationId": hashlib.sha256(known).hexdigest(),
    }


def envelope_from(message: Mapping[str, Any], queue: str) -> Envelope:
    """The envelope of a message from a queue, whoever published it there."""
    given: dict[str, str] = {}
    for name, value in message.get("MessageAttributes", {}).items():
        if "StringValue" in value and name.lower() != CONTENT_TYPE:
            given[name] = value["StringValue"]
    body = message.get("Body", "")
    if '"specversion"' not in body:
        return received(given, body.encode("utf-8", "surrogatepass"), queue)
    envelope = received({"datacontenttype": STRUCTURED}, body.encode("utf-8", "surrogatepass"), queue)
    return envelope._replace(headers={**envelope.headers, **given})
