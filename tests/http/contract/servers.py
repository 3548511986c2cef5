"""Servers in threads of the test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from retrysafe import Boundary


@contextmanager
def uvicorn(app: Any, boundary: Boundary) -> Iterator[str]:
    """An ASGI application on uvicorn."""
    from uvicorn import Config, Server

    server = Server(Config(app, port=0, log_level="critical", lifespan="off", ws="none"))
    started, startup = threading.Event(), server.startup

    async def told(*arguments: Any, **named: Any) -> None:
        await startup(*arguments, **named)
        started.set()

    async def serve() -> None:
        await server.serve()
        await boundary.aclose()

    server.startup = told  # type: ignore[method-assign]
    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(60)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def werkzeug(app: Any, boundary: Boundary) -> Iterator[str]:
    """A WSGI application on werkzeug's server, a thread for each request."""
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        def log(self, type: str, message: str, *args: Any) -> None:
            pass

    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=Quiet)
    server.log = lambda *_: None  # type: ignore[method-assign]  # the fixture is told to raise it
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        boundary.close()


@contextmanager
def aiohttp(app: Any, boundary: Boundary) -> Iterator[str]:
    """An application on aiohttp's own server."""
    from aiohttp import web

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def wait_for(work: Awaitable[Any]) -> Any:
        async def waiting() -> Any:
            return await work

        return asyncio.run_coroutine_threadsafe(waiting(), loop).result(60)

    runner = web.AppRunner(app, access_log=None)
    wait_for(runner.setup())
    site = web.TCPSite(runner, "127.0.0.1", 0)
    wait_for(site.start())
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        wait_for(runner.cleanup())
        wait_for(boundary.aclose())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


Serving = Callable[[Any, Boundary], Any]
SERVERS: dict[str, Serving] = {"uvicorn": uvicorn, "werkzeug": werkzeug, "aiohttp": aiohttp}


def named(name: str) -> str:
    """A library with its version, for the table."""
    return f"{name} {version(name)}"
