"""A client that costs little beside the server: bare sockets, kept open, many requests under way."""

from __future__ import annotations

import json
import re
import secrets
import selectors
import socket
from collections import deque
from collections.abc import Sequence

from benchmarks import by_hand

_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)\r\n")


def body_of(key: str) -> bytes:
    """The body of a request."""
    return json.dumps(by_hand.payload(key)).encode()


def prefix() -> bytes:
    """Return the prefix that makes one side's keys its own, also on a store that outlives the run."""
    return secrets.token_hex(4).encode() + b"-"


class Connections:
    """Requests over some connections at once, the next as soon as one is answered."""

    def __init__(self, address: tuple[str, int], clients: int) -> None:
        self._prefix = prefix()
        self._selector = selectors.EpollSelector()
        self._idle: list[socket.socket] = []
        for _ in range(clients):
            connection = socket.create_connection(address)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(connection, selectors.EVENT_READ)
            self._idle.append(connection)

    def __call__(self, keys: Sequence[str]) -> None:
        """Send one request for each key; raises when one is not answered with 201."""
        waiting = deque(keys)
        asked = 0
        for connection in self._idle:
            if waiting:
                connection.sendall(self._request(waiting.popleft()))
                asked += 1
        select = self._selector.select
        while asked:
            for ready, _ in select():
                answered = ready.fileobj
                assert isinstance(answered, socket.socket)
                _read(answered)
                if waiting:
                    answered.sendall(self._request(waiting.popleft()))
                else:
                    asked -= 1

    def _request(self, key: str) -> bytes:
        body = body_of(key)
        return (
            b"POST /orders HTTP/1.1\r\nhost: 127.0.0.1\r\nuser-agent: benchmark/1\r\naccept: */*\r\n"
            b'content-type: application/json\r\nidempotency-key: "%s%s"\r\ncontent-length: %d\r\n\r\n%s'
            % (self._prefix, key.encode(), len(body), body)
        )

    def close(self) -> None:
        """Hang up."""
        for connection in self._idle:
            connection.close()
        self._selector.close()


def _read(connection: socket.socket) -> None:
    """Read one response to its end."""
    data = connection.recv(65536)
    while True:
        head = data.find(b"\r\n\r\n")
        if head >= 0:
            if not data.startswith(b"HTTP/1.1 201"):
                raise RuntimeError(f"the server answered {data!r}")
            length = _LENGTH.search(data, 0, head + 2)
            whole = data.endswith(b"0\r\n\r\n") if length is None else len(data) >= head + 4 + int(length[1])
            if whole:
                return
        more = connection.recv(65536)
        if not more:
            raise RuntimeError(f"the server hung up after {data!r}")
        data += more
