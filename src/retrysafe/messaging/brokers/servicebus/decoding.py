"""Messages that the client library cannot decode, such as one with a character or a decimal in it, made readable.

It fails when it meets one, up to 7.15.0 at least, or loses it, and the service hands the message out again to the next
consumer, for ever. Here such a message is one without an id, which an inbox keeps as a dead letter: its octets are
the payload.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

from azure.servicebus._pyamqp._decode import decode_payload
from azure.servicebus._pyamqp.message import Message

_DESCRIBED = 0
_DESCRIPTORS = {0x53: 2, 0x80: 9}
"""The octets of a descriptor, by its constructor."""
_SIZES = {0x45: 0, 0xC0: 1, 0xC1: 1, 0xD0: 4, 0xD1: 4}
"""In how many octets a list or a map says how long it is, by its constructor."""
_KEPT = ("header", "message_annotations", "properties")
"""Sections that the library needs, in which the service tells of the delivery."""
_PAYLOAD, _MORE = 11, 5
"""The indexes in a frame of its part of a message, and of the flag for more parts."""
_ERRORS = (ValueError, TypeError, LookupError, ArithmeticError, OSError, RecursionError)
"""The errors of decoding."""


def decoding(handler: Any) -> None:
    """Let a client of the library decode what it receives, whatever that is."""
    ready = handler._client_ready_async

    async def making_ready() -> bool:
        answer = bool(await ready())
        link = handler._link
        if link is not None and not isinstance(link._incoming_transfer, partial):
            link._incoming_transfer = partial(_receive, link, link._incoming_transfer)
        return answer

    handler._client_ready_async = making_ready


async def _receive(link: Any, receive: Callable[[Any], Awaitable[None]], frame: Any) -> None:
    before = bytes(link._received_payload)
    try:
        await receive(frame)
    except _ERRORS as error:
        if frame[_MORE]:
            raise
        link._received_payload = bytearray()
        await link._process_incoming_message(link._first_frame, readable(before + bytes(frame[_PAYLOAD]), error))


def readable(content: bytes, error: Exception) -> Message:
    """Build a placeholder for a message that cannot be decoded."""
    kept: dict[str, Any] = {}
    for section in _sections(content):
        try:
            decoded = decode_payload(memoryview(section))
        except _ERRORS:
            continue
        kept |= {name: getattr(decoded, name) for name in _KEPT if getattr(decoded, name) is not None}
    told: dict[str | bytes, Any] = {b"undecodable": f"{type(error).__name__}: {error}".encode()}
    return Message(**kept, application_properties=told, data=[content])


def _sections(content: bytes) -> Iterator[bytes]:
    """The sections before the body, each as it is."""
    while len(content) > 2 and content[0] == _DESCRIBED and content[1] in _DESCRIPTORS:
        at = 1 + _DESCRIPTORS[content[1]]
        octets = _SIZES.get(content[at] if at < len(content) else -1)
        if octets is None:
            return
        end = at + 1 + octets + int.from_bytes(content[at + 1 : at + 1 + octets], "big")
        yield content[:end]
        content = content[end:]
