"""MySQL's and MariaDB's packets: three bytes of length, a sequence number; the longest ones are continued."""

from __future__ import annotations

from tests.faults.proxies.framing import Direction

LONGEST = 0xFFFFFF
_CLIENT_SSL = 0x800
_SSL_REQUEST_SIZE = 32


class MysqlFraming:
    """Counts a connection as established by the OK that ends its handshake, whatever methods that goes through.

    What follows a request for encryption is opaque.
    """

    default_port = 3306

    def __init__(self) -> None:
        self._ready = False
        self._encrypted = False
        self._introduced = False

    def size(self, direction: Direction, buffer: bytes) -> int | None:
        if self._encrypted:
            return len(buffer)
        end = 0
        while len(buffer) >= end + 4:
            length = int.from_bytes(buffer[end : end + 3], "little")
            end += 4 + length
            if length < LONGEST:
                return end if len(buffer) >= end else None
        return None

    def passed(self, direction: Direction, message: bytes) -> bool:
        establishing = not self._ready
        if establishing and not self._encrypted:
            payload = message[4:]
            if direction == ">" and not self._introduced:
                self._introduced = True
                flags = int.from_bytes(payload[:4], "little")
                self._encrypted = len(payload) == _SSL_REQUEST_SIZE and bool(flags & _CLIENT_SSL)
            elif direction == "<" and self._introduced:
                self._ready = payload[:1] == b"\x00"
        return establishing


def statement_of(message: bytes) -> str | None:
    """The SQL of a COM_QUERY."""
    return message[5:].decode(errors="replace") if message[3:5] == b"\x00\x03" else None
