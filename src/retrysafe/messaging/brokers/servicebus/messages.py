"""A message of Service Bus as an envelope, and the other way round, and the names of what messages are in.

The attributes of a CloudEvent are application properties, by the AMQP binding, in binary or in structured mode.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage

from retrysafe.messaging.brokers.amqp_binding import content_of
from retrysafe.messaging.brokers.amqp_binding import envelope_from as envelope_of
from retrysafe.messaging.cloudevents import ESCAPED, STRUCTURED, Mode, is_event
from retrysafe.protocol.messages import Envelope
from retrysafe.protocol.ordering import lane, partition

_LONGEST_ID = 128
"""Characters of a message's id, and of a session's."""
_OURS = "lane "
"""The beginning of the ids of sessions that are not keys."""
_SHARED = 16
"""Over how many sessions messages without a key are spread."""
_TIME = re.compile(r"cloudevents[:_]time", re.IGNORECASE)
"""The attribute that is an instant, which the client library hands out as milliseconds."""
_PATH = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,258}[A-Za-z0-9])?")
_GROUP = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,48}[A-Za-z0-9])?")


class EntitySource(NamedTuple):
    """The source of a consumer: the queue of a topic, or a group's subscription to it."""

    topic: str
    name: str
    group: str | None

    @property
    def path(self) -> str:
        return self.name if self.group is None else f"{self.name}/Subscriptions/{self.group}"


def name_of(prefix: str, topic: str) -> str:
    """The queue or topic of Service Bus for a topic. Raises `ValueError` for a name that none has."""
    name = f"{prefix}{topic}"
    if not _PATH.fullmatch(name):
        raise ValueError(
            f"{name!r} is not a name of Service Bus: up to 260 letters, digits, dots, hyphens, underscores"
        )
    return name


def source_of(prefix: str, topic: str, group: str | None) -> EntitySource:
    """Return the source from which a group receives a topic. Raises `ValueError` for a name that nothing has."""
    if group is not None and not _GROUP.fullmatch(group):
        raise ValueError(f"{group!r} is not a name of a subscription: up to 50 letters, digits, dots, hyphens")
    return EntitySource(topic, name_of(prefix, topic), group)


def session_of(envelope: Envelope, partitions: int | None) -> str:
    """The session in which a message keeps its order: its key, its partition, or one of those without a key.

    A key that is no id of a session has that of its lane.
    """
    if partitions is not None:
        return _OURS + partition(envelope.topic, envelope.key, envelope.id, partitions)
    number = lane(envelope.topic, envelope.key, envelope.id)
    if envelope.key is None:
        return f"{_OURS}without a key {number % _SHARED}"
    fits = 0 < len(envelope.key.encode("utf-16-le", "surrogatepass")) // 2 <= _LONGEST_ID
    return envelope.key if fits and not envelope.key.startswith(_OURS) else f"{_OURS}{number & (1 << 64) - 1:016x}"


def id_of(envelope: Envelope) -> str:
    """Return the id by which the service recognises a repeated message: its source and its id."""
    known = f"{len(envelope.source)}:{envelope.source}{envelope.id}"
    if known.isascii() and known.isprintable() and len(known) <= _LONGEST_ID:
        return known
    return hashlib.sha256(known.encode("utf-8", "surrogatepass")).hexdigest()


def message_of(envelope: Envelope, mode: Mode, session: str | None) -> ServiceBusMessage:
    """The message for an envelope. Raises `ValueError` for what has no place in one."""
    body, media_type, headers = content_of(envelope, "amqp", "structured" if is_event(envelope.media_type) else mode)
    properties = dict[str | bytes, Any](headers.items())
    for text in (*properties, *properties.values(), media_type, session or ""):
        str(text).encode()  # halves of characters have no place in UTF-8
    return ServiceBusMessage(
        body,
        application_properties=properties,
        content_type=media_type,
        message_id=id_of(envelope),
        session_id=session,
    )


def envelope_from(message: ServiceBusReceivedMessage, topic: str) -> Envelope:
    """The envelope of a message from a topic, from any publisher.

    An event of another publisher, without a subject, is ordered by its session.
    """
    told: dict[str, Any] = {_text(name): value for name, value in (message.application_properties or {}).items()}
    told |= {name: _instant(value) for name, value in told.items() if _TIME.fullmatch(name) and type(value) is int}
    body = _body(message)
    media_type = message.content_type
    if media_type is None and not told and b'"specversion"' in body:
        media_type = STRUCTURED
    envelope = envelope_of(told, {"datacontenttype": media_type}, body, topic)
    session = message.session_id
    if envelope.key is None and session and not session.startswith(_OURS):
        envelope = envelope._replace(key=session)
    return envelope


def _instant(milliseconds: int) -> datetime | int:
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return milliseconds


def _body(message: ServiceBusReceivedMessage) -> bytes:
    """Its octets; the octets of its text, or of its JSON, if it was sent as a value or as a sequence of them."""
    body: Any = message.body
    if isinstance(body, Iterator):  # its sections
        parts: list[Any] = list(body)
        if all(isinstance(part, bytes | bytearray | memoryview) for part in parts):
            return b"".join(parts)
        body = [item for part in parts for item in (part if isinstance(part, list) else [part])]
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    if isinstance(body, dict | list | bool):
        body = json.dumps(_json(body), ensure_ascii=False, separators=(",", ":"))
    return b"" if body is None else str(body).encode("utf-8", "surrogatepass")


def _json(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(_json(name)): _json(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_json(one) for one in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode(errors=ESCAPED)
    return value if isinstance(value, str | int | float | None) else str(value)


def _text(name: str | bytes) -> str:
    return name.decode(errors="backslashreplace") if isinstance(name, bytes) else name
