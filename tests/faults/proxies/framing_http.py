"""HTTP/1.1: a head, and a body as long as the head says, or in chunks, or until the connection ends."""

from __future__ import annotations

from collections import deque

from tests.faults.proxies.framing import Direction

_END = b"\r\n\r\n"


class HttpFraming:
    """A request or a response, with its body, is one message; so is an interim response (100 Continue)."""

    default_port = 80

    def __init__(self) -> None:
        self._methods: deque[bytes] = deque()

    def size(self, direction: Direction, buffer: bytes) -> int | None:
        end = buffer.find(_END)
        if end < 0:
            return None
        begin = end + len(_END)
        head = buffer[:end]
        if direction == "<" and self._has_no_body(head):
            return begin
        if b"chunked" in field(head, b"transfer-encoding").lower():
            return _end_of_chunks(buffer, begin)
        length = field(head, b"content-length")
        if not length and direction == "<":
            return None  # until the connection ends
        size = begin + int(length or 0)
        return size if len(buffer) >= size else None

    def _has_no_body(self, head: bytes) -> bool:
        status = head.split(b" ", 2)[1]
        return status[:1] == b"1" or status in (b"204", b"304") or (bool(self._methods) and self._methods[0] == b"HEAD")

    def passed(self, direction: Direction, message: bytes) -> bool:
        if direction == ">":
            self._methods.append(message.split(b" ", 1)[0])
        elif self._methods and message.split(b" ", 2)[1][:1] != b"1":
            self._methods.popleft()
        return False


def field(head: bytes, name: bytes) -> bytes:
    """The value of a header field; empty if there is none."""
    for line in head.split(b"\r\n")[1:]:
        found, _, value = line.partition(b":")
        if found.strip().lower() == name:
            return value.strip()
    return b""


def _end_of_chunks(buffer: bytes, at: int) -> int | None:
    while (line_end := buffer.find(b"\r\n", at)) >= 0:
        size = int(buffer[at:line_end].split(b";", 1)[0], 16)
        at = line_end + 2
        if size == 0:
            if buffer[at : at + 2] == b"\r\n":
                return at + 2
            end = buffer.find(_END, at)  # trailers
            return None if end < 0 else end + len(_END)
        at += size + 2
    return None
