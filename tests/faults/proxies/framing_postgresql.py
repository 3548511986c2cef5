"""PostgreSQL's protocol 3: untyped messages first, one byte in reply to a request for encryption, then types."""

from __future__ import annotations

import struct

from tests.faults.proxies.framing import Direction

SSL_REQUEST, GSS_REQUEST, CANCEL_REQUEST = 80877103, 80877104, 80877102
READY = b"Z"


class PostgresqlFraming:
    """Counts a connection as established by its first ReadyForQuery. What follows an accepted encryption is opaque."""

    default_port = 5432

    def __init__(self) -> None:
        self._started = False
        self._asked_for_encryption = False
        self._encrypted = False
        self._ready = False

    def size(self, direction: Direction, buffer: bytes) -> int | None:
        if self._encrypted:
            return len(buffer)
        if direction == "<" and self._asked_for_encryption:
            return 1
        offset = 1 if direction == "<" or self._started else 0
        if len(buffer) < offset + 4:
            return None
        size = offset + int(struct.unpack_from("!i", buffer, offset)[0])
        return size if len(buffer) >= size else None

    def passed(self, direction: Direction, message: bytes) -> bool:
        establishing = not self._ready
        if direction == "<":
            if self._asked_for_encryption:
                self._asked_for_encryption, self._encrypted = False, message in (b"S", b"G")
            elif message[:1] == READY:
                self._ready = True
        elif not self._started and not self._encrypted:
            code = struct.unpack_from("!i", message, 4)[0]
            self._asked_for_encryption = code in (SSL_REQUEST, GSS_REQUEST)
            self._started = not self._asked_for_encryption
        return establishing


def statement_of(message: bytes) -> str | None:
    """The SQL of a request that has some: Query, or Parse."""
    if message[:1] not in (b"P", b"Q"):
        return None
    return message[5:].split(b"\0")[message[:1] == b"P"].decode()


def is_answered(message: bytes) -> bool:
    """Tell whether a reply is the last one to a request."""
    return message[:1] == READY
