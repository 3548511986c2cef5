"""Kafka: requests and responses, each with its length before it. Brokers tell clients where they are to be reached."""

from __future__ import annotations

from tests.faults.proxies.framing import Direction
from tests.faults.proxies.proxy import Proxy

_LENGTH = 4


def size_of(buffer: bytes) -> int | None:
    """The length of the first message, or None when it is not whole yet."""
    whole = int.from_bytes(buffer[:_LENGTH], "big") + _LENGTH
    return whole if len(buffer) >= max(_LENGTH, whole) else None


def led_by(message: bytes, port: int, by: int) -> bytes:
    """The message, with another port wherever it tells the broker's address."""
    host = b"127.0.0.1"
    return message.replace(host + port.to_bytes(4, "big"), host + by.to_bytes(4, "big"))


class KafkaFraming:
    """Counts a connection as established when the client knows what the broker can do: after the first response."""

    default_port = 9092

    def __init__(self) -> None:
        self._ready = False

    def size(self, direction: Direction, buffer: bytes) -> int | None:
        return size_of(buffer)

    def passed(self, direction: Direction, message: bytes) -> bool:
        was_ready, self._ready = self._ready, self._ready or direction == "<"
        return not was_ready


class KafkaProxy(Proxy):
    """Stands in the place of the broker: clients are told its own address."""

    def rewritten(self, direction: Direction, message: bytes) -> bytes:
        return led_by(message, self.upstream[1], self.port) if direction == "<" else message
