"""AMQP 1.0: headers of a protocol, and frames that say how long they are (section 2.3 of its part on transport)."""

from __future__ import annotations

from tests.faults.proxies.framing import Direction

_HEADER = b"AMQP"
_HEAD = 8
_SASL = 1
_OPEN, _BEGIN, _END, _CLOSE = 0x10, 0x11, 0x17, 0x18
_OF_THE_CONNECTION = (_OPEN, _BEGIN, _END, _CLOSE)
_PERFORMATIVE = 10
"""The offset of its code: behind the head, and the octets that say that it is one."""


class Amqp1Framing:
    """A frame is a message; what makes and ends a connection, and empty frames that keep it, are greetings."""

    default_port = 5672

    def size(self, direction: Direction, buffer: bytes) -> int | None:
        if len(buffer) < _HEAD:
            return None
        whole = _HEAD if buffer.startswith(_HEADER) else int.from_bytes(buffer[:4], "big")
        return whole if len(buffer) >= whole else None

    def passed(self, direction: Direction, message: bytes) -> bool:
        greets = message.startswith(_HEADER) or len(message) <= _PERFORMATIVE or message[5] == _SASL
        return greets or message[_PERFORMATIVE] in _OF_THE_CONNECTION
