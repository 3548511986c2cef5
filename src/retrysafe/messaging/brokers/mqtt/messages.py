"""A message of MQTT as an envelope, and the other way round: the MQTT binding of CloudEvents 1.0.2.

https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/mqtt-protocol-binding.md: in binary mode each
attribute is a user property of its own name, and the media type is the content type; in structured mode the event is
all in the payload. A user property is at most 65,535 bytes of text without control characters, which brokers would hang
up on: an event that does not fit is written in structured mode.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from retrysafe.messaging.brokers.mqtt.connecting import properties
from retrysafe.messaging.cloudevents import (
    OWN,
    STRUCTURED,
    Mode,
    attributes,
    is_event,
    other_headers,
    read_event,
    to_structured,
)
from retrysafe.protocol.messages import Envelope

_LONGEST = 0xFFFF
_NO_TEXT = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufeff\ufffe\uffff]")
"""A character that MQTT forbids in a text, or lets brokers refuse (section 1.5.4)."""
LARGEST = 1 << 28
"""The largest packet in bytes, whatever the broker takes."""
_FIXED = 5
"""Bytes of a packet before everything else, at most."""


class Packet(NamedTuple):
    payload: bytes
    properties: Properties


def topic_of(prefix: str, place: str) -> str:
    """The MQTT topic of a topic or partition. Raises `ValueError` for a name that none has, such as with a wildcard."""
    name = f"{prefix}{place}"
    if not place or not _is_text(name) or "+" in name or "#" in name or name.startswith("$"):
        raise ValueError(f"{name!r} is not a topic of MQTT to publish to: no +, #, control characters, or $ at first")
    return name


def content_of(envelope: Envelope, mode: Mode) -> Packet:
    """The payload and the properties of a message.

    A header of the envelope whose name no attribute may have is a user property under its own name. Raises `ValueError`
    for what has no place in a message.
    """
    others = other_headers(envelope)
    if wrong := next((name for name, value in others.items() if not name or not _are_texts((name, value))), None):
        raise ValueError(f"a header {wrong!r} cannot be a user property of MQTT: its name or its value")
    told = attributes(envelope)
    media_type = told.pop("datacontenttype")
    if mode == "binary" and _are_texts((media_type, *told, *told.values())) and not is_event(media_type):
        return _content(envelope.payload, media_type, told)
    return _content(to_structured(envelope), STRUCTURED, others)


def _content(payload: bytes, media_type: str, told: Mapping[str, str]) -> Packet:
    return Packet(payload, properties(PacketTypes.PUBLISH, ContentType=media_type, UserProperty=list(told.items())))


def size_of(topic: str, content: Packet) -> int:
    """Return the largest size of a packet in bytes."""
    told = content.properties.pack()  # type: ignore[no-untyped-call]
    return _FIXED + 2 + len(topic.encode()) + 2 + len(told) + len(content.payload)


def envelope_from(content: Packet, place: str) -> Envelope:
    """The envelope of a message of a topic or partition, from any publisher.

    Of a user property that is there twice, the first one counts.
    """
    given: dict[str, str] = {}
    for name, value in getattr(content.properties, "UserProperty", ()):
        given.setdefault(name, value)
    media_type = getattr(content.properties, "ContentType", None)
    if media_type is not None:
        given["datacontenttype"] = media_type
    others = {name: value for name, value in given.items() if name not in OWN}
    return read_event(given, content.payload, place, others, may_be_bare=True)


def _are_texts(texts: Iterable[str]) -> bool:
    return all(map(_is_text, texts))


def _is_text(text: str) -> bool:
    return not _NO_TEXT.search(text) and len(text.encode()) <= _LONGEST
