"""The applications of the HTTP rows: one of Starlette, bare or behind a layer, and how each is served.

``python -m benchmarks.web LAYER STORE FD`` serves one behind uvicorn on a socket that it inherits.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from benchmarks import by_hand
from benchmarks.connections import Connections, body_of, prefix
from benchmarks.guarding import CLIENTS, boundary_on
from benchmarks.rows import Side, Work, at_once, cpu_of
from benchmarks.stores import Store
from retrysafe.http.asgi import IdempotencyMiddleware

App = Any


async def order(request: Request) -> Response:
    """Stand for the guarded work."""
    return JSONResponse(by_hand.place((await request.json())["order"]), 201)


def bare(store: str = "") -> App:
    """The application without a layer."""
    return Starlette(routes=[Route("/orders", order, methods=["POST"])])


def retrysafe(store: str) -> App:
    """The application behind our middleware."""
    return IdempotencyMiddleware(bare(), boundary_on(store))


def idemkit(store: str) -> App:
    """The application behind idemkit."""
    from idemkit import HttpConfig, IdempotencyMiddleware, InMemoryBackend, RedisBackend

    backend: Any = InMemoryBackend(max_size=10_000_000) if store == "memory://" else RedisBackend.from_url(store)
    return IdempotencyMiddleware(bare(), backend=backend, config=HttpConfig(scope_mode="single_tenant"))


def asgi_idempotency_header(store: str) -> App:
    """The application behind asgi-idempotency-header."""
    from idempotency_header_middleware import IdempotencyHeaderMiddleware
    from idempotency_header_middleware.backends import MemoryBackend, RedisBackend
    from redis.asyncio import Redis

    backend: Any = MemoryBackend() if store == "memory://" else RedisBackend(Redis.from_url(store))
    return IdempotencyHeaderMiddleware(bare(), backend=backend)


LAYERS: dict[str, Callable[[str], App]] = {
    "bare": bare,
    "retrysafe": retrysafe,
    "idemkit": idemkit,
    "asgi-idempotency-header": asgi_idempotency_header,
}
RIVALS = ("idemkit", "asgi-idempotency-header")


# ---------------------------------------------------------------- served


@contextmanager
def served(layer: str, store: Store, clients: int) -> Iterator[Side]:
    """The application behind uvicorn, in a process of its own whose processor time counts, asked over connections."""
    with store() as url, listening(layer, url) as (address, process), closing(Connections(address, clients)) as asking:
        yield Side(asking, cpu_of(process))


@contextmanager
def listening(layer: str, store: str) -> Iterator[tuple[tuple[str, int], int]]:
    """Serve the application behind uvicorn in a process of its own; yield its address and process number."""
    with process("benchmarks.web", layer, store) as found:
        yield found


@contextmanager
def process(module: str, *arguments: str) -> Iterator[tuple[tuple[str, int], int]]:
    """A module that serves on a socket that it inherits: the address, and the number of the process."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        fd, address = listener.fileno(), listener.getsockname()
        with subprocess.Popen([sys.executable, "-m", module, *arguments, str(fd)], pass_fds=[fd]) as server:
            listener.close()  # when the server ends, nobody is left to wait for
            try:
                yield address, server.pid
            finally:
                server.terminate()


@contextmanager
def in_process(layer: str, store: Store) -> Iterator[Side]:
    """The application called as a server would call it, without one."""
    with store() as url, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        app = LAYERS[layer](url)
        yield at_once(runner, [_call(app)] * CLIENTS)
        if isinstance(app, IdempotencyMiddleware):
            runner.run(app.guard.boundary.aclose())


def _call(app: App) -> Work:
    before = prefix()

    async def call(key: str) -> None:
        body = body_of(key)
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "scheme": "http",
            "server": ("127.0.0.1", 80),
            "client": ("127.0.0.1", 4000),
            "root_path": "",
            "method": "POST",
            "path": "/orders",
            "raw_path": b"/orders",
            "query_string": b"",
            "headers": [
                (b"host", b"127.0.0.1"),
                (b"user-agent", b"benchmark/1"),
                (b"accept", b"*/*"),
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(body)),
                (b"idempotency-key", b'"%s%s"' % (before, key.encode())),
            ],
        }

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start" and message["status"] != 201:
                raise RuntimeError(f"the application answered {message['status']}")

        await app(scope, receive, send)

    return call


def main() -> None:
    """Serve until terminated."""
    layer, store, fd = sys.argv[1:]
    config = uvicorn.Config(
        LAYERS[layer](store), loop="uvloop", http="httptools", access_log=False, log_level="warning"
    )
    uvicorn.Server(config).run([socket.socket(fileno=int(fd))])


if __name__ == "__main__":
    main()
