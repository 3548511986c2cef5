"""A stand-in for Azure Service Bus: AMQP 1.0 and the administration over HTTP, on one port, without TLS."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from administration import Asked, answer
from contents import marked
from journal import Journal
from namespace import Namespace
from peers import Hub, Peer

_TICK = 0.05
_REASONS = {200: "OK", 201: "Created", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 409: "Conflict"}


class Caller(asyncio.Protocol):
    """A connection, of which the first octets say what it speaks."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._peer: Peer | None = None
        self._pending = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._socket = transport

    def data_received(self, data: bytes) -> None:
        if self._peer is None:
            self._pending += data
            if len(self._pending) < 4:
                return
            if not self._pending.startswith(b"AMQP"):
                self._serve_http()
                return
            self._peer, data = Peer(self._hub, self._socket), self._pending
        self._peer.received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._peer is not None:
            self._peer.gone()

    def _serve_http(self) -> None:
        head, found, rest = self._pending.partition(b"\r\n\r\n")
        if not found:
            return
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        size = int(headers.get("content-length", "0"))
        if len(rest) < size:
            return
        method, target, _ = first.split(" ")
        status, body = answer(self._hub.namespace, Asked(method, target, headers, rest[:size]))
        self._hub.work()
        self._pending = rest[size:]
        told = f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}"
        self._socket.write(f"{told}\r\n\r\n".encode() + body)


async def serve(host: str, port: int, data: Path) -> None:
    """Serve for ever."""
    hub = Hub(Namespace(Journal(data), marked))
    server = await asyncio.get_running_loop().create_server(lambda: Caller(hub), host, port)
    async with server:
        await hub.tick(_TICK)


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--host", default="127.0.0.1")
parser.add_argument("--port", type=int, required=True)
parser.add_argument("--data", type=Path, required=True, help="a file, made when it is not there")
chosen = parser.parse_args()
asyncio.run(serve(chosen.host, chosen.port, chosen.data))
