"""A record of Kafka as an envelope, and the other way round: the Kafka binding of CloudEvents, in both modes.

https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/kafka-protocol-binding.md
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import NamedTuple

from retrysafe.messaging.cloudevents import (
    ESCAPED,
    OWN,
    STRUCTURED,
    Mode,
    other_headers,
    read_event,
    to_structured,
    with_prefix,
)
from retrysafe.protocol.messages import Envelope

_PREFIX, _MEDIA_TYPE = "ce_", "content-type"
_ROW_HEADERS, _ROW_SEQUENCE = "retrysafe-headers", "retrysafe-sequence"
"""Columns of the outbox that Debezium's router makes headers of: all headers in one, and a sequence, which may be NULL:
other implementations fail on an attribute without a value."""
_READ = (_PREFIX, _MEDIA_TYPE, _ROW_HEADERS, _ROW_SEQUENCE)
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class KafkaRecord(NamedTuple):
    """The arguments of a producer."""

    topic: str
    key: bytes | None
    value: bytes
    headers: list[tuple[str, str | bytes | None]]


def record_of(envelope: Envelope, mode: Mode, prefix: str) -> KafkaRecord:
    """The record that carries an envelope; its key is the envelope's.

    A header of the envelope whose name no attribute may have travels under its own name. Raises `ValueError` for what
    has no place in a record: librdkafka ends the process for a header's name that is not UTF-8.
    """
    topic = f"{prefix}{envelope.topic}"
    if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise ValueError(f"{topic!r} cannot be the name of a topic of Kafka")
    beside = other_headers(envelope)
    if forged := next((name for name in beside if name.lower().startswith(_READ)), None):
        raise ValueError(f"a header {forged!r} would be read as something else")
    if any("\0" in name for name in beside):
        raise ValueError("the name of a header has a NUL in it, where Kafka's client would end it")
    if mode == "structured":
        headers, value = {_MEDIA_TYPE: f"{STRUCTURED}; charset=UTF-8"}, to_structured(envelope)
    else:
        headers, value = with_prefix(envelope, _PREFIX), envelope.payload
    key = None if envelope.key is None else envelope.key.encode()
    encoded = [(name, text.encode()) for name, text in (headers | beside).items()]
    for name in beside:
        name.encode()  # only to raise: the client takes any text
    return KafkaRecord(topic, key, value, [*encoded])


def envelope_from(
    headers: Iterable[tuple[str, bytes | None]], key: bytes | None, value: bytes | None, topic: str
) -> Envelope:
    """The envelope of a record, from any publisher; an event without a subject is ordered by the record's key."""
    given: dict[str, str] = {}
    others: dict[str, str] = {}
    for name, octets in headers:
        text = (octets or b"").decode(errors=ESCAPED)
        if name.lower().startswith(_PREFIX):
            given[name[len(_PREFIX) :].lower()] = text
        elif name.lower() == _MEDIA_TYPE:
            given["datacontenttype"] = text
        elif name == _ROW_HEADERS:
            others |= _row_headers(text)
        elif name == _ROW_SEQUENCE:
            given["sequence"] = text
        elif name not in OWN:
            others[name] = text
    envelope = read_event(given, value or b"", topic, others)
    if envelope.key is None and key is not None:
        envelope = envelope._replace(key=key.decode(errors=ESCAPED))
    return envelope


def _row_headers(text: str) -> dict[str, str]:
    """The headers in the row's column; what is no such column stays one header."""
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, dict) or not all(isinstance(value, str) for value in told.values()):
        return {_ROW_HEADERS: text}
    return {name: value for name, value in told.items() if name not in OWN}
