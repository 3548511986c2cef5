"""Records of Kafka as octets, with what no client library writes."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

from tests.faults.helpers import until

_PRODUCE, _VERSION = 0, 3


def produce(url: str, topic: str, headers: Sequence[tuple[bytes, bytes]], value: bytes) -> None:
    """Produce a record with any octets as headers to partition 0."""
    batch = _batch(_record(headers, value))
    request = struct.pack(">hhih", _PRODUCE, _VERSION, 1, -1) + struct.pack(">hhi", -1, -1, 5000)
    request += struct.pack(">ih", 1, len(topic)) + topic.encode() + struct.pack(">iii", 1, 0, len(batch)) + batch
    host, size = urlsplit(url), 4 + 4 + 4 + 2 + len(topic) + 4 + 4 + 2

    def is_taken() -> bool:
        """A broker that has just made the topic may not take it yet."""
        with socket.create_connection((host.hostname or "", host.port or 0), timeout=10) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            return connection.makefile("rb").read(size)[-2:] == b"\0\0"

    until(is_taken)


def _record(headers: Iterable[tuple[bytes, bytes]], value: bytes) -> bytes:
    told = [*headers]
    record = b"\0" + _number(0) + _number(0) + _number(-1) + _octets(value) + _number(len(told))
    return _octets(record + b"".join(_octets(name) + _octets(text) for name, text in told))


def _batch(record: bytes) -> bytes:
    now = int(time.time() * 1000)
    body = struct.pack(">hiqqqhii", 0, 0, now, now, -1, -1, -1, 1) + record
    told = struct.pack(">iBI", -1, 2, _crc32c(body)) + body
    return struct.pack(">qi", 0, len(told)) + told


def _octets(octets: bytes) -> bytes:
    return _number(len(octets)) + octets


def _number(number: int) -> bytes:
    """A number of variable length, its sign in the last bit."""
    left, told = (number << 1) ^ (number >> 63), b""
    while left > 0x7F:
        told, left = told + bytes([left & 0x7F | 0x80]), left >> 7
    return told + bytes([left])


def _crc32c(octets: bytes) -> int:
    crc = 0xFFFFFFFF
    for octet in octets:
        crc ^= octet
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
