"""AMQP 0-9-1: the client's header, then frames with a type, a channel and a length."""

from __future__ import annotations

from tests.faults.proxies.framing import Direction

_HEADER = b"AMQP"
_BESIDE_PAYLOAD = 8
"""Bytes of a frame before its payload, and the octet that ends it."""
_METHOD, _CONNECTION = 1, 10
_OPEN_OK = 41


class AMQPFraming:
    """Counts a connection as established when the broker has opened it."""

    default_port = 5672

    def __init__(self) -> None:
        self._ready = False

    def size(self, direction: Direction, buffer: bytes) -> int | None:
        if buffer[:4] == _HEADER[: len(buffer)]:
            size = 8
        elif len(buffer) < _BESIDE_PAYLOAD:
            return None
        else:
            size = int.from_bytes(buffer[3:7], "big") + _BESIDE_PAYLOAD
        return size if len(buffer) >= size else None

    def passed(self, direction: Direction, message: bytes) -> bool:
        was_ready = self._ready
        if method_of(message) == (_CONNECTION, _OPEN_OK):
            self._ready = True
        return not was_ready


def method_of(frame: bytes) -> tuple[int, int] | None:
    """Class and number of the method in a frame, if there is one."""
    if frame[0] != _METHOD or frame[:4] == _HEADER:
        return None
    return int.from_bytes(frame[7:9], "big"), int.from_bytes(frame[9:11], "big")
