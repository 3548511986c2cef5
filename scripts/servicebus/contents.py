"""Messages as octets of AMQP: what the service reads of them, and what it adds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from namespace import Incoming
from proton import Data, Described, Message, symbol, timestamp

_DATA = 0x75
_BEGINNINGS = (b"\x00S", b"\x00\x80")
"""The beginning of a section: the constructor of a described value."""


def incoming(content: bytes) -> list[Incoming]:
    """The messages of a transfer: one, or those of a batch, which are data sections of an envelope."""
    parts = _data(content)
    batch = bool(parts) and all(part.startswith(_BEGINNINGS) for part in parts)
    return [_read(part) for part in (parts if batch else [content])]


def _data(content: bytes) -> list[bytes]:
    parts = []
    while content:
        data = Data()
        size = data.decode(content)
        data.rewind()
        data.next()
        section = data.get_object()
        content = content[size:]
        if isinstance(section, Described) and section.descriptor == _DATA:
            parts.append(bytes(section.value))
    return parts


def _read(content: bytes) -> Incoming:
    message = decoded(content)
    known = "" if message.id is None else str(message.id)
    return Incoming(content, known, message.group_id or None, message.ttl or None)


def decoded(content: bytes) -> Message:
    """A message."""
    message = Message()
    message.decode(content)
    return message


def outgoing(content: bytes, count: int, annotations: Mapping[str, Any]) -> bytes:
    """A message as it is handed out."""
    message = decoded(content)
    message.delivery_count = count
    told = {symbol(f"x-opt-{name}"): value for name, value in annotations.items()}
    message.annotations = {**(message.annotations or {}), **told}
    return bytes(message.encode())


def marked(content: bytes, reason: str, description: str) -> bytes:
    """A dead letter, which says why it is one."""
    message = decoded(content)
    told = {"DeadLetterReason": reason, "DeadLetterErrorDescription": description}
    message.properties = {**(message.properties or {}), **told}
    return bytes(message.encode())


def instant(seconds: float) -> timestamp:
    """Milliseconds, as AMQP tells instants."""
    return timestamp(int(seconds * 1000))
