"""The five integrations behind real servers on loopback: each receiver at a path of its own."""

from __future__ import annotations

import asyncio
import http.client
import socket
import socketserver
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import uvicorn
from fastapi import FastAPI
from flask import Flask
from starlette.applications import Starlette
from starlette.routing import Route

from retrysafe.webhooks import Receiver, asgi, flask, starlette, wsgi
from tests.django.aliases import set_up
from tests.webhooks.providers import Delivery

set_up()

from django.core.asgi import ASGIHandler  # noqa: E402
from django.core.handlers.wsgi import WSGIHandler  # noqa: E402
from django.test import override_settings  # noqa: E402
from django.urls import path  # noqa: E402

from retrysafe.webhooks import django  # noqa: E402

Receivers = Mapping[str, Receiver]
"""By name, which is the path."""


class Answer(NamedTuple):
    """The answer over the wire."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def replayed(self) -> bool:
        return self.status == 200 and self.headers.get("idempotent-replayed") == "true"


def post(port: int, name: str, delivery: Delivery, *, method: str = "POST", chunked: bool = False) -> Answer:
    """One delivery over a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        body = iter([delivery.body[:7], delivery.body[7:]]) if chunked else delivery.body
        connection.request(method, f"/{name}", body, delivery.headers, encode_chunked=chunked)
        response = connection.getresponse()
        return Answer(response.status, {n.lower(): v for n, v in response.getheaders()}, response.read())
    finally:
        connection.close()


# ------------------------------------------------------------ applications


def asgi_app(receivers: Receivers) -> Any:
    """The bare ASGI application, by path."""
    return Starlette(routes=[Route(f"/{name}", asgi.WebhookApp(one)) for name, one in receivers.items()])


def fastapi_app(receivers: Receivers) -> Any:
    """Routes of FastAPI."""
    app = FastAPI()
    for name, one in receivers.items():
        app.add_route(f"/{name}", starlette.endpoint(one), methods=["POST"])
    return app


def django_asgi_app(receivers: Receivers) -> Any:
    """Async views of Django."""
    _route(receivers, django.aview)
    return ASGIHandler()


def wsgi_app(receivers: Receivers) -> Any:
    """The bare WSGI application, by path."""
    apps = {f"/{name}": wsgi.WebhookApp(one) for name, one in receivers.items()}
    return lambda environ, start_response: apps[environ["PATH_INFO"]](environ, start_response)


def flask_app(receivers: Receivers) -> Any:
    """Views of Flask."""
    app = Flask(__name__)
    for name, one in receivers.items():
        app.add_url_rule(f"/{name}", view_func=flask.view(one), methods=["POST"])
    return app


def django_app(receivers: Receivers) -> Any:
    """Views of Django."""
    _route(receivers, django.view)
    return WSGIHandler()


def _route(receivers: Receivers, view: Callable[[Receiver], Any]) -> None:
    """Let Django serve these views, until the server is gone."""
    urls = type("Urls", (), {"urlpatterns": [path(name, view(one)) for name, one in receivers.items()]})
    csrf = "django.middleware.csrf.CsrfViewMiddleware"
    made = override_settings(ROOT_URLCONF=urls, MIDDLEWARE=[csrf], ALLOWED_HOSTS=["*"])
    _overridden.append(made)
    made.enable()


_overridden: list[override_settings] = []

LOOPS: dict[str, Callable[[Receivers], Any]] = {
    "asgi": asgi_app,
    "fastapi": fastapi_app,
    "django-async": django_asgi_app,
}
THREADS: dict[str, Callable[[Receivers], Any]] = {"wsgi": wsgi_app, "flask": flask_app, "django": django_app}
DOORS = [*LOOPS, *THREADS]


# ------------------------------------------------------------ servers


@asynccontextmanager
async def serving(door: str, receivers: Receivers) -> AsyncIterator[int]:
    """The port on which an integration serves these receivers."""
    if door in THREADS:
        with serving_in_threads(door, receivers) as port:
            yield port
        return
    with _settings_back():
        async with _on_uvicorn(LOOPS[door](receivers)) as port:
            yield port


@contextmanager
def serving_in_threads(door: str, receivers: Receivers) -> Iterator[int]:
    """`serving` for sync tests."""
    with _settings_back(), _on_threads(THREADS[door](receivers)) as port:
        yield port


@contextmanager
def _settings_back() -> Iterator[None]:
    try:
        yield
    finally:
        while _overridden:
            _overridden.pop().disable()


@asynccontextmanager
async def _on_uvicorn(app: Callable[..., Awaitable[None]]) -> AsyncIterator[int]:
    listening = socket.create_server(("127.0.0.1", 0), backlog=64)
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_level="critical"))
    task = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        await task
        listening.close()


class _Threading(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = False
    request_queue_size = 64

    def handle_error(self, *_: Any) -> None: ...


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None: ...

    def get_stderr(self) -> Any:
        import io

        return io.StringIO()


@contextmanager
def _on_threads(app: Any) -> Iterator[int]:
    server = make_server("127.0.0.1", 0, app, _Threading, _Quiet)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
