"""Flask's extension and Django's middleware, beside the bare applications, called as a WSGI server would call them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from benchmarks import by_hand
from benchmarks.connections import body_of, prefix
from benchmarks.guarding import boundary_on
from benchmarks.rows import FLOOR, OURS, Row, Side, one_by_one

App = Callable[[dict[str, Any], Callable[..., Any]], Any]


def rows() -> Sequence[Row]:
    """On memory, fresh and replay."""
    return [
        Row(
            f"{name} in process/{kind}",
            "the bare application",
            {OURS: partial(_called, make, True), FLOOR: partial(_called, make, False)},
            replay=kind == "replay",
        )
        for name, make in (("flask", _flask), ("django", _django))
        for kind in ("fresh", "replay")
    ]


def _flask(boundary: Any) -> App:
    from flask import Flask, request

    from retrysafe.http.flask import Idempotency

    app = Flask("bench")
    if boundary is not None:
        Idempotency(app, boundary)

    @app.post("/orders")
    def order() -> Any:
        return by_hand.place(request.get_json()["order"]), 201

    return app


def _django(boundary: Any) -> App:
    import django
    from django.conf import settings

    if not settings.configured:
        settings.configure(
            ALLOWED_HOSTS=["*"], ROOT_URLCONF=[], RETRYSAFE={"BOUNDARY": boundary, "PRINCIPAL": "shared"}
        )
        django.setup()
    from django.core.handlers.wsgi import WSGIHandler
    from django.http import HttpRequest, JsonResponse
    from django.test import override_settings
    from django.urls import path

    def order(request: HttpRequest) -> JsonResponse:
        return JsonResponse(by_hand.place(json.loads(request.body)["order"]), status=201)

    class Urls:
        urlpatterns = (path("orders", order),)

    layers = [] if boundary is None else ["retrysafe.http.django.IdempotencyMiddleware"]
    settings.ROOT_URLCONF = Urls
    if boundary is not None:
        settings.RETRYSAFE = {"BOUNDARY": boundary, "PRINCIPAL": "shared"}
    with override_settings(MIDDLEWARE=layers):
        handler: App = WSGIHandler()
    return handler


@contextmanager
def _called(make: Callable[[Any], App], guarded: bool) -> Iterator[Side]:
    boundary = boundary_on("memory://") if guarded else None
    app, before = make(boundary), prefix().decode()

    def started(status: str, *_: Any) -> None:
        if not status.startswith("201"):
            raise RuntimeError(f"the application answered {status}")

    def call(key: str) -> None:
        body = body_of(key)
        answer = app(_environ(f'"{before}{key}"', body), started)
        for _ in answer:
            pass
        if hasattr(answer, "close"):
            answer.close()

    yield one_by_one(call)
    if boundary is not None:
        boundary.close()


def _environ(key: str, body: bytes) -> dict[str, Any]:
    return {
        "REQUEST_METHOD": "POST",
        "SCRIPT_NAME": "",
        "PATH_INFO": "/orders",
        "QUERY_STRING": "",
        "SERVER_NAME": "127.0.0.1",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "REMOTE_ADDR": "127.0.0.1",
        "CONTENT_TYPE": "application/json",
        "CONTENT_LENGTH": str(len(body)),
        "HTTP_HOST": "127.0.0.1",
        "HTTP_ACCEPT": "*/*",
        "HTTP_IDEMPOTENCY_KEY": key,
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(body),
        "wsgi.errors": io.StringIO(),
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }
