"""RESP2 and RESP3: lines, strings with a length, values made of values; a pipeline is several messages."""

from __future__ import annotations

from tests.faults.proxies.framing import Direction

_STRINGS = b"$!="
_AGGREGATES = {ord("*"): 1, ord("~"): 1, ord(">"): 1, ord("%"): 2, ord("|"): 2}
_ESTABLISHING = (b"HELLO", b"AUTH", b"CLIENT", b"SELECT", b"READONLY")


class RedisFraming:
    """Counts a connection as established when its first command of another kind comes.

    An attribute belongs to the reply that follows it. A push answers no command.
    """

    default_port = 6379

    def __init__(self) -> None:
        self._ready = False
        self._establishing = 0

    def size(self, direction: Direction, buffer: bytes) -> int | None:
        return end_of(buffer, 0)

    def passed(self, direction: Direction, message: bytes) -> bool:
        if direction == ">":
            self._ready = self._ready or command_of(message) not in _ESTABLISHING
            self._establishing += not self._ready
            return not self._ready
        if message[:1] == b">" or not self._establishing:
            return not self._ready
        self._establishing -= 1
        return True


def end_of(buffer: bytes, start: int) -> int | None:
    """Return the end of the value that starts there, or None when it is not whole.

    What is neither string nor aggregate is a line.
    """
    left, at = 1, start
    while left:
        line_end = buffer.find(b"\r\n", at)
        if line_end < 0:
            return None
        kind, count = buffer[at], buffer[at + 1 : line_end]
        at = line_end + 2
        left -= 1
        if kind in _STRINGS:
            at += int(count) + 2 if int(count) >= 0 else 0  # a null has no bytes
            if at > len(buffer):
                return None
        elif kind in _AGGREGATES:
            left += max(int(count), 0) * _AGGREGATES[kind] + (kind == ord("|"))
    return at


def command_of(message: bytes) -> bytes:
    """The name of a command."""
    if message[:1] != b"*":
        return message.split(None, 1)[0].upper() if message.strip() else b""
    return message.split(b"\r\n", 3)[2].upper()
