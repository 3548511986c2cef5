"""MQTT: a byte for the kind, then the number of bytes that follow, seven bits at a time."""

from __future__ import annotations

from tests.faults.proxies.framing import Direction

_CONNACK = 0x20


class MqttFraming:
    """Counts a connection as established with its CONNACK."""

    default_port = 1883

    def __init__(self) -> None:
        self._ready = False

    def size(self, direction: Direction, buffer: bytes) -> int | None:
        size = 0
        for at, byte in enumerate(buffer[1:5]):
            size |= (byte & 0x7F) << 7 * at
            if not byte & 0x80:
                whole = size + at + 2
                return whole if len(buffer) >= whole else None
        return None

    def passed(self, direction: Direction, message: bytes) -> bool:
        was_ready = self._ready
        if direction == "<" and message[0] == _CONNACK:
            self._ready = True
        return not was_ready
