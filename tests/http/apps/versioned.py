"""Orders with versions, in every framework: PUT, GET and DELETE /orders/{name} with preconditions, POST without.

Requests with a key are guarded, whatever their method.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import aiohttp
import httpx
from aiohttp import web
from aiohttp.test_utils import TestServer
from fastapi import APIRouter, FastAPI
from fastapi import Request as FastAPIRequest
from fastapi import Response as FastAPIResponse
from flask import Flask
from flask import request as flask_request
from flask.testing import EnvironBuilder
from litestar import Litestar
from litestar import Request as LitestarRequest
from litestar import Response as LitestarResponse
from litestar import route as litestar_route
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from retrysafe import Boundary
from retrysafe.http import aiohttp as of_aiohttp
from retrysafe.http import fastapi as of_fastapi
from retrysafe.http import flask as of_flask
from retrysafe.http import litestar as of_litestar
from retrysafe.http import starlette as of_starlette
from retrysafe.http.policy import Options
from tests.http.django_site import opened

from django.urls import path  # isort: skip
from rest_framework.response import Response as RestResponse  # isort: skip
from rest_framework.views import APIView  # isort: skip
from django.http import HttpResponse  # isort: skip
from django.test import Client  # isort: skip

from retrysafe.http import django as of_django  # isort: skip
from retrysafe.http import drf as of_drf  # isort: skip

METHODS: tuple[Literal["POST", "PUT", "DELETE"], ...] = ("POST", "PUT", "DELETE")
CHOSEN: Options = {"methods": METHODS, "required": False}


class Answer(NamedTuple):
    """The client's view of an answer; names of fields in small letters."""

    status: int
    fields: Mapping[str, str]
    body: bytes

    @property
    def replayed(self) -> bool:
        return self.fields.get("idempotent-replayed") == "true"


class Stock:
    """The versions of what there is."""

    def __init__(self) -> None:
        self.versions: dict[str, int] = {}
        self.writes = 0

    def do(self, method: str, name: str, check: Callable[..., Any]) -> tuple[int, dict[str, str], str]:
        """Serve a request: status, fields and body. ``check`` stands before the work; what it returns is let be."""
        current = self.versions.get(name)
        if method != "POST":
            if current is None and method in ("GET", "DELETE"):
                return 404, {}, "none"
            check(current, required=method != "GET")
        if method == "GET":
            return 200, {"ETag": f'"{current}"'}, f"version {current}"
        self.writes += 1
        if method == "DELETE":
            del self.versions[name]
            return 204, {}, ""
        version = self.versions[name] = (current or 0) + 1
        fields = {"ETag": f'"{version}"', "Location": f"/orders/{name}"}
        return 201 if current is None else 200, fields, f"version {version}"


Ask = Callable[..., Awaitable[Answer]]
"""Takes method, name of the order and fields."""


@asynccontextmanager
async def over_asgi(app: Any) -> AsyncIterator[Ask]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:

        async def ask(method: str, name: str = "a", **fields: str) -> Answer:
            answer = await client.request(method, f"/orders/{name}", headers=named(fields))
            return Answer(answer.status_code, lowered(answer.headers), answer.content)

        yield ask


def named(fields: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in fields.items()}


def lowered(fields: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in fields.items()}


# ------------------------------------------------------------ the applications


@asynccontextmanager
async def starlette(stock: Stock, boundary: Boundary, tmp_path: Path) -> AsyncIterator[Ask]:
    async def order(request: Request) -> Response:
        status, fields, body = stock.do(
            request.method,
            request.path_params["name"],
            lambda *version, **more: of_starlette.check_preconditions(request, *version, **more),
        )
        return Response(body, status, fields)

    guard = Middleware(of_starlette.IdempotencyMiddleware, boundary=boundary, principal="shared", **CHOSEN)
    app = Starlette(routes=[Route("/orders/{name}", order, methods=["GET", *METHODS])], middleware=[guard])
    async with over_asgi(app) as ask:
        yield ask


@asynccontextmanager
async def fastapi(stock: Stock, boundary: Boundary, tmp_path: Path) -> AsyncIterator[Ask]:
    idempotency = of_fastapi.Idempotency(boundary, principal="shared", **CHOSEN)
    router = APIRouter(route_class=idempotency.route_class)

    @router.api_route("/orders/{name}", methods=["GET", *METHODS])
    async def order(name: str, request: FastAPIRequest) -> FastAPIResponse:
        status, fields, body = stock.do(
            request.method,
            name,
            lambda *version, **more: of_fastapi.check_preconditions(request, *version, **more),
        )
        return FastAPIResponse(body, status, fields)

    app = FastAPI()
    app.include_router(router)
    async with over_asgi(app) as ask:
        yield ask


@asynccontextmanager
async def litestar(stock: Stock, boundary: Boundary, tmp_path: Path) -> AsyncIterator[Ask]:
    @litestar_route("/orders/{name:str}", http_method=["GET", *METHODS])
    async def order(request: LitestarRequest[Any, Any, Any]) -> LitestarResponse[Any]:
        status, fields, body = stock.do(
            request.method,
            request.path_params["name"],
            lambda *version, **more: of_litestar.check_preconditions(request, *version, **more),
        )
        return LitestarResponse(body.encode(), status_code=status, headers=fields)

    app = Litestar(
        [order],
        plugins=[of_litestar.IdempotencyPlugin(boundary, principal="shared", **CHOSEN)],
        logging_config=None,
    )
    async with over_asgi(app) as ask:
        yield ask


@asynccontextmanager
async def flask(stock: Stock, boundary: Boundary, tmp_path: Path) -> AsyncIterator[Ask]:
    app = Flask("shop")
    of_flask.Idempotency(app, boundary, principal="shared", **CHOSEN)

    @app.route("/orders/<name>", methods=["GET", *METHODS])
    def order(name: str) -> Any:
        status, fields, body = stock.do(
            flask_request.method,
            name,
            lambda *version, **more: of_flask.check_preconditions(flask_request, *version, **more),
        )
        return body, status, fields

    client = app.test_client()

    async def ask(method: str, name: str = "a", **fields: str) -> Answer:
        request = EnvironBuilder(app, f"/orders/{name}", method=method, headers=named(fields))
        answer = await asyncio.to_thread(client.open, request, buffered=True)
        return Answer(answer.status_code, lowered(answer.headers), answer.data)

    yield ask


class Unmet(Exception):
    """Carries a response of Django to where it is returned."""


@asynccontextmanager
async def django(stock: Stock, boundary: Boundary, tmp_path: Path) -> AsyncIterator[Ask]:
    def order(request: Any, name: str) -> HttpResponse:
        def check(*version: Any, **more: Any) -> None:
            unmet = of_django.check_preconditions(request, *version, **more)
            if unmet is not None:
                raise Unmet(unmet)

        try:
            status, fields, body = stock.do(request.method, name, check)
        except Unmet as error:
            unmet: HttpResponse = error.args[0]
            return unmet
        return HttpResponse(body, status=status, headers=fields)

    guarded = of_django.idempotent(boundary, principal="shared", **CHOSEN)(order)
    async with over_django(guarded, tmp_path) as ask:
        yield ask


@asynccontextmanager
async def drf(stock: Stock, boundary: Boundary, tmp_path: Path) -> AsyncIterator[Ask]:
    def order(self: Any, request: Any, name: str) -> RestResponse:
        status, fields, body = stock.do(
            request.method,
            name,
            lambda *version, **more: of_drf.check_preconditions(request, *version, **more),
        )
        return RestResponse(body or None, status, headers=fields)

    view: Any = type("Order", (APIView,), {name.lower(): order for name in ("GET", *METHODS)})
    guarded = of_drf.idempotent(boundary, principal="shared", **CHOSEN)(view.as_view())
    async with over_django(guarded, tmp_path, REST_FRAMEWORK={"UNAUTHENTICATED_USER": None}) as ask:
        yield ask


@asynccontextmanager
async def over_django(view: Any, tmp_path: Path, **settings: Any) -> AsyncIterator[Ask]:
    opening = opened("memory", tmp_path)

    def begin() -> Client:
        return opening.__enter__().serve(None, path("orders/<name>", view), MIDDLEWARE=[], **settings)

    client = await asyncio.to_thread(begin)

    async def ask(method: str, name: str = "a", **fields: str) -> Answer:
        answer = await asyncio.to_thread(client.generic, method, f"/orders/{name}", headers=named(fields))
        return Answer(answer.status_code, lowered(answer.headers), answer.content)

    try:
        yield ask
    finally:
        await asyncio.to_thread(opening.__exit__, None, None, None)


@asynccontextmanager
async def over_aiohttp(stock: Stock, boundary: Boundary, tmp_path: Path) -> AsyncIterator[Ask]:
    async def order(request: web.Request) -> web.Response:
        status, fields, body = stock.do(
            request.method,
            request.match_info["name"],
            lambda *version, **more: of_aiohttp.check_preconditions(request, *version, **more),
        )
        return web.Response(text=body or None, status=status, headers=fields)

    app = web.Application(middlewares=[of_aiohttp.idempotency(boundary, principal="shared", **CHOSEN)])
    app.router.add_route("*", "/orders/{name}", order)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:

        async def ask(method: str, name: str = "a", **fields: str) -> Answer:
            url = server.make_url(f"/orders/{name}")
            async with session.request(method, url, headers=named(fields)) as answer:
                return Answer(answer.status, lowered(answer.headers), await answer.read())

        yield ask


FRAMEWORKS = {
    "starlette": starlette,
    "fastapi": fastapi,
    "litestar": litestar,
    "flask": flask,
    "django": django,
    "drf": drf,
    "aiohttp": over_aiohttp,
}
