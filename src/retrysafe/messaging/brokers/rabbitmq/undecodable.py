"""Messages that the client library cannot decode, such as one with a timestamp beyond the year 9999, made decodable.

It hangs up when it meets one, and the broker hands the message out again on the next connection, for ever. So a
connection that follows one which ended at once is read by frames, and whatever cannot be decoded of a message is taken
out of its frame. Without it the message is the same if it is nothing that an envelope is made of. Else all properties
and headers go: a message without an id is a dead letter, and they are kept in one of its headers.
"""

from __future__ import annotations

import asyncio
import base64
import struct
from typing import Any, cast

import aio_pika
from aiormq import spec
from aiormq.connection import TCPTransportFactory, TLSTransportFactory, TransportFactory
from pamqp import constants, decode
from pamqp.header import ContentHeader
from yarl import URL

_FRAME = struct.Struct(">BHI")
_CONTENT = struct.Struct(">HHQ")
_DELIVER = struct.pack(">HH", 60, 60)
_NEEDED = {"content_type", "headers", "message_id", "message_type", "app_id"}
"""The properties that an envelope is made of."""
_ERRORS = (ValueError, OverflowError, OSError, ArithmeticError, LookupError, RecursionError, struct.error)
"""The errors of decoding; an OSError for an instant that the system's library has none for."""


class DecodingConnection(aio_pika.Connection):
    """A connection whose every frame can be decoded."""

    def __init__(self, url: URL, *args: Any, **options: Any) -> None:
        super().__init__(url, *args, **options)
        self.kwargs["transport_factory"] = _Transport()


class _Transport(TransportFactory):
    async def create(self, url: URL, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        factory = TLSTransportFactory() if url.scheme == "amqps" else TCPTransportFactory()
        reader, writer = await factory.create(url, **options)
        return cast("asyncio.StreamReader", _Frames(reader)), writer


class _Frames:
    """The rest of a `StreamReader`: the two methods that frames are read by."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._frame = memoryview(b"")

    def at_eof(self) -> bool:
        return not self._frame and self._reader.at_eof()

    async def readexactly(self, count: int) -> bytes:
        if not self._frame:
            head = await self._reader.readexactly(_FRAME.size)
            if not head.startswith(b"AMQP"):  # it speaks another version, and says which one
                kind, channel, size = _FRAME.unpack(head)
                body = (await self._reader.readexactly(size + 1))[:-1]
                body = decodable(kind, body)
                head = _FRAME.pack(kind, channel, len(body)) + body + constants.FRAME_END_CHAR
            self._frame = memoryview(head)
        taken, self._frame = self._frame[:count], self._frame[count:]
        return bytes(taken)


def decodable(kind: int, body: bytes) -> bytes:
    """The body of a frame as the client library can decode it."""
    if kind == constants.FRAME_HEADER:
        return _header(body)
    if kind == constants.FRAME_METHOD and body.startswith(_DELIVER):
        return _delivery(body)
    return body


def _header(body: bytes) -> bytes:
    try:
        ContentHeader().unmarshal(body)
    except _ERRORS as error:
        content, raw = body[: _CONTENT.size], body[_CONTENT.size :]
        try:
            return content + _readable(raw)
        except _ERRORS:
            told = {"undecodable": f"{type(error).__name__}: {error}", "properties": base64.b64encode(raw).decode()}
            return content + spec.Basic.Properties(headers={**told}).marshal()
    return body


def _readable(raw: bytes) -> bytes:
    """The properties that can be decoded; raises what decoding one that is needed does."""
    (flags,) = struct.unpack_from(">H", raw)
    if flags & 1:
        raise ValueError("more properties than there are")
    parts: list[bytes] = []
    at = 2
    for name, flag in spec.Basic.Properties.flags.items():
        if flags & flag:
            kind = getattr(spec.Basic.Properties, f"_{name}")
            part = raw[at : at + _length(kind, raw, at)]
            at += len(part)
            try:
                decode.by_type(part, kind)
                parts.append(part)
            except _ERRORS:
                if name in _NEEDED:
                    raise
                flags -= flag
    return struct.pack(">H", flags) + b"".join(parts)


def _length(kind: str, raw: bytes, at: int) -> int:
    if kind == "shortstr":
        return 1 + raw[at]
    if kind == "table":
        return 4 + int(struct.unpack_from(">I", raw, at)[0])
    return 8 if kind == "timestamp" else 1


def _delivery(body: bytes) -> bytes:
    """The consumer's name, the number and the mark of a delivery; where it was published to says nothing here."""
    try:
        spec.Basic.Deliver().unmarshal(body[4:])
    except _ERRORS:
        named = 4 + 1 + body[4]
        return body[: named + 9] + b"\0\0"
    return body
