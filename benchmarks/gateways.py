"""The layers before a service: none, a bare reverse proxy by hand, or the gateway; each in a process of its own.

``python -m benchmarks.gateways LAYER STORE UPSTREAM FD`` serves a layer on a socket that it inherits.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import aiohttp
import uvicorn

from benchmarks.connections import Connections
from benchmarks.guarding import CLIENTS
from benchmarks.rows import Side, cpu_of
from benchmarks.stores import Store
from benchmarks.web import listening, process
from retrysafe.gateway import Gateway, Settings

_HOPS = frozenset({b"connection", b"keep-alive", b"transfer-encoding", b"te", b"upgrade", b"host"})


class Proxy:
    """The least that a streaming reverse proxy does, on the same client library."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        if self._session is None:
            self._session = aiohttp.ClientSession(auto_decompress=False)

        async def body() -> Any:
            more = True
            while more:
                message = await receive()
                more = message.get("more_body", False)
                yield message["body"]

        lines = [(name.decode(), value.decode()) for name, value in scope["headers"] if name not in _HOPS]
        url = self._upstream + scope["raw_path"].decode()
        async with self._session.request(scope["method"], url, headers=lines, data=body()) as response:
            fields = [(name.lower(), value) for name, value in response.raw_headers if name.lower() not in _HOPS]
            await send({"type": "http.response.start", "status": response.status, "headers": fields})
            async for chunk in response.content.iter_any():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


@contextmanager
def served(layer: str, store: Store) -> Iterator[Side]:
    """The service behind a layer, asked over kept connections; the processor time of both processes counts."""
    with store() as url, ExitStack() as stack:
        address, number = stack.enter_context(listening("bare", ""))
        servers = [number]
        if layer != "direct":
            upstream = f"http://127.0.0.1:{address[1]}"
            address, number = stack.enter_context(process("benchmarks.gateways", layer, url, upstream))
            servers.append(number)
        yield Side(stack.enter_context(closing(Connections(address, CLIENTS))), cpu_of(*servers))


def main() -> None:
    """Serve until terminated."""
    layer, store, upstream, fd = sys.argv[1:]
    app: Any = Proxy(upstream) if layer == "proxy" else Gateway(Settings(upstream, store))
    config = uvicorn.Config(
        app, loop="uvloop", http="httptools", lifespan="off", access_log=False, log_level="warning", proxy_headers=False
    )
    uvicorn.Server(config).run([socket.socket(fileno=int(fd))])


if __name__ == "__main__":
    main()
