"""HTTP/2: a preface of the client, and frames that say how long they are (RFC 9113, sections 3.4 and 4.1)."""

from __future__ import annotations

from tests.faults.proxies.framing import Direction

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEAD = 9
_SETTINGS, _PING, _WINDOW_UPDATE = 4, 6, 8
_OF_THE_CONNECTION = (_SETTINGS, _PING, _WINDOW_UPDATE)
"""Frames that carry nothing of a call."""


class Http2Framing:
    """A frame is a message; those that keep the connection itself are greetings."""

    default_port = 80

    def size(self, direction: Direction, buffer: bytes) -> int | None:
        if direction == ">" and buffer.startswith(_PREFACE[: len(buffer)]):
            return len(_PREFACE) if len(buffer) >= len(_PREFACE) else None
        if len(buffer) < _HEAD:
            return None
        whole = _HEAD + int.from_bytes(buffer[:3], "big")
        return whole if len(buffer) >= whole else None

    def passed(self, direction: Direction, message: bytes) -> bool:
        return message == _PREFACE or message[3] in _OF_THE_CONNECTION
