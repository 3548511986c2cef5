"""NATS: lines, of which PUB, HPUB, MSG and HMSG tell how many bytes follow."""

from __future__ import annotations

from tests.faults.proxies.framing import Direction

_WITH_PAYLOAD = (b"PUB", b"HPUB", b"MSG", b"HMSG")
_END = b"\r\n"


class NatsFraming:
    """Counts a connection as established with the first answer to a ping."""

    default_port = 4222

    def __init__(self) -> None:
        self._ready = False

    def size(self, direction: Direction, buffer: bytes) -> int | None:
        line, end, _ = buffer.partition(_END)
        if not end:
            return None
        size = len(line) + len(_END)
        words = line.split()
        if words and words[0] in _WITH_PAYLOAD:
            size += int(words[-1]) + len(_END)
        return size if len(buffer) >= size else None

    def passed(self, direction: Direction, message: bytes) -> bool:
        was_ready = self._ready
        if direction == "<" and message.startswith(b"PONG"):
            self._ready = True
        return not was_ready
