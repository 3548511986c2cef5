"""The interface of every framing, and the buffers of a connection that is split into messages."""

from __future__ import annotations

from typing import Literal, Protocol

Direction = Literal[">", "<"]
"""From the client, or from the server."""


class Framing(Protocol):
    """Splits one connection of a protocol. It is asked about a direction's oldest bytes only."""

    def size(self, direction: Direction, buffer: bytes) -> int | None:
        """The length of the first message, or None when it is not whole yet."""
        ...

    def passed(self, direction: Direction, message: bytes) -> bool:
        """Take note of a message; whether it was still part of establishing the connection."""
        ...


class Messages:
    """The bytes of a connection, split."""

    def __init__(self, framing: Framing) -> None:
        self._framing = framing
        self._buffers: dict[Direction, bytes] = {">": b"", "<": b""}

    def feed(self, direction: Direction, data: bytes) -> list[tuple[bytes, bool]]:
        """Every message that these bytes complete, and whether it only establishes the connection."""
        found = []
        buffer = self._buffers[direction] + data
        while buffer and (size := self._framing.size(direction, buffer)) is not None:
            message, buffer = buffer[:size], buffer[size:]
            found.append((message, self._framing.passed(direction, message)))
        self._buffers[direction] = buffer
        return found

    def rest(self, direction: Direction) -> bytes:
        """Return the rest of a direction at its end: a message that only its end delimits, or a part of one."""
        buffer, self._buffers[direction] = self._buffers[direction], b""
        return buffer
