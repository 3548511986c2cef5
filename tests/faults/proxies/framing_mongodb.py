"""MongoDB's wire protocol: each message begins with its length, and nothing but messages is ever sent."""

from __future__ import annotations

from tests.faults.proxies.framing import Direction


class MongodbFraming:
    """One connection."""

    def size(self, direction: Direction, buffer: bytes) -> int | None:
        """The length of the first message."""
        size = int.from_bytes(buffer[:4], "little")
        return size if len(buffer) >= max(size, 4) else None

    def passed(self, direction: Direction, message: bytes) -> bool:
        """Tell whether it was part of establishing the connection, or of watching the server."""
        return b"hello" in message
