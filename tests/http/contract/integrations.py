"""The fixture in every integration, written as the users of that framework write applications."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

from retrysafe.conformance import apps
from tests.http.contract import servers
from tests.http.contract.fixture import ALWAYS, METHODS, OPTIONS, Fixture, principal
from tests.http.contract.neighbours import ALLOWED, CORS, EXPOSED, PREFLIGHT, cors_and_gzip
from tests.http.contract.stores import Place

Serve = Callable[[Place], AbstractContextManager[str]]
_NO_OPENAPI = "{} makes no OpenAPI document"
NO_HOP = {"hop": "PEP 3333 forbids an application to send what concerns one connection"}
NO_BACKGROUND = {"background": "WSGI has no work after the response"}


class Integration(NamedTuple):
    """An integration as its users see it.

    Attributes:
        title: its name in the table.
        serve: serves the fixture on a place; gives the address.
        versions: the libraries whose versions the table names.
    """

    title: str
    serve: Serve
    versions: tuple[str, ...]


def _of_scope(scope: Any) -> str | None:
    return principal(dict(scope["headers"]).get(b"authorization", b"").decode())


def _of_environ(environ: Any) -> str | None:
    return principal(environ.get("HTTP_AUTHORIZATION"))


def _of_request(request: Any) -> str | None:
    return principal(request.headers.get("Authorization"))


def _around(app: Any) -> Any:
    """CORS and compression around an ASGI application."""
    from starlette.middleware.cors import CORSMiddleware
    from starlette.middleware.gzip import GZipMiddleware

    return CORSMiddleware(GZipMiddleware(app), **_CORS)


_CORS: dict[str, Any] = {
    "allow_origins": ["*"],
    "allow_methods": METHODS,
    "allow_headers": ALLOWED.split(", "),
    "expose_headers": EXPOSED.split(", "),
}


@contextmanager
def asgi(place: Place) -> Iterator[str]:
    """The middleware around a plain ASGI application."""
    from retrysafe.http.asgi import IdempotencyMiddleware

    fixture = Fixture(
        place,
        features=ALWAYS | apps.ASGI_FEATURES,
        unsupported={"R29": _NO_OPENAPI.format("a plain ASGI application")},
    )
    boundary = fixture.boundary()
    app = apps.asgi_on(fixture.state, effect=fixture.aeffect)
    guarded = IdempotencyMiddleware(app, boundary, principal=_of_scope, **OPTIONS)
    with servers.uvicorn(_around(guarded), boundary) as address:
        yield address


@contextmanager
def wsgi(place: Place) -> Iterator[str]:
    """The middleware around a plain WSGI application."""
    from retrysafe.http.wsgi import IdempotencyMiddleware

    unsupported = {"R29": _NO_OPENAPI.format("a plain WSGI application"), **NO_HOP, **NO_BACKGROUND}
    fixture = Fixture(place, unsupported=unsupported)
    boundary = fixture.boundary()
    app = apps.wsgi_on(fixture.state, effect=fixture.effect)
    guarded = IdempotencyMiddleware(app, boundary, principal=_of_environ, **OPTIONS)
    with servers.werkzeug(cors_and_gzip(guarded), boundary) as address:
        yield address


@contextmanager
def starlette(place: Place) -> Iterator[str]:
    """The middleware in an application of Starlette's, inside CORS and compression."""
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.cors import CORSMiddleware
    from starlette.middleware.gzip import GZipMiddleware
    from starlette.routing import Mount, Route

    from retrysafe.http.starlette import IdempotencyMiddleware

    fixture = Fixture(
        place, features=ALWAYS | apps.ASGI_FEATURES, unsupported={"R29": _NO_OPENAPI.format("Starlette by itself")}
    )
    boundary = fixture.boundary()

    async def act(request: Any) -> Any:
        return await _starlette_response(fixture, request)

    app = Starlette(
        routes=[
            Route("/act{rest:path}", act, methods=[*METHODS]),
            Mount("/", apps.asgi_on(fixture.state)),
        ],
        middleware=[
            Middleware(CORSMiddleware, **_CORS),
            Middleware(GZipMiddleware),
            Middleware(IdempotencyMiddleware, boundary=boundary, principal=_of_request, **OPTIONS),
        ],
    )
    with servers.uvicorn(app, boundary) as address:
        yield address


async def _starlette_response(fixture: Fixture, request: Any) -> Any:
    """The handler, for Starlette and FastAPI."""
    from starlette.background import BackgroundTask
    from starlette.responses import Response, StreamingResponse

    script = fixture.script(request.headers.get("fixture-script"))
    body = await request.body()
    await fixture.state.arun(script, fixture.aeffect)
    lines, piece = script.answer(body, request.headers.get("content-type", ""))
    response: Any = (
        StreamingResponse(fixture.state.apieces(script, piece), script.status)
        if script.stream
        else Response(b"" if script.status == 204 else piece * script.repeat, script.status)
    )
    response.raw_headers += [(name.lower().encode(), value.encode()) for name, value in lines]
    if script.background:
        response.background = BackgroundTask(fixture.state.work_after, script)
    return response


@contextmanager
def starlette_route(place: Place) -> Iterator[str]:
    """The decorator on one route of Starlette's."""
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.cors import CORSMiddleware
    from starlette.middleware.gzip import GZipMiddleware
    from starlette.routing import Mount, Route

    from retrysafe.http.starlette import idempotent

    fixture = Fixture(
        place, features=ALWAYS | apps.ASGI_FEATURES, unsupported={"R29": _NO_OPENAPI.format("Starlette by itself")}
    )
    boundary = fixture.boundary()

    @idempotent(boundary, principal=_of_request, required=False, **OPTIONS)
    async def act(request: Any) -> Any:
        return await _starlette_response(fixture, request)

    app = Starlette(
        routes=[Route("/act{rest:path}", act, methods=[*METHODS]), Mount("/", apps.asgi_on(fixture.state))],
        middleware=[Middleware(CORSMiddleware, **_CORS), Middleware(GZipMiddleware)],
    )
    with servers.uvicorn(app, boundary) as address:
        yield address


@contextmanager
def fastapi(place: Place) -> Iterator[str]:
    """A router of FastAPI's, with the principal as a dependency."""
    from fastapi import APIRouter, FastAPI, Header, Request
    from starlette.middleware.cors import CORSMiddleware
    from starlette.middleware.gzip import GZipMiddleware

    from retrysafe.http.fastapi import Idempotency

    fixture = Fixture(place, features=ALWAYS | apps.ASGI_FEATURES, openapi="/openapi.json")
    boundary = fixture.boundary()

    def account(authorization: str | None = Header(None)) -> str | None:
        return principal(authorization)

    router = APIRouter(route_class=Idempotency(boundary, principal=account, required=False, **OPTIONS).route_class)

    async def act(request: Request) -> Any:
        return await _starlette_response(fixture, request)

    act.__annotations__["request"] = Request
    for method in METHODS:
        router.add_api_route("/act{rest:path}", act, methods=[method], operation_id=method)
    app = FastAPI()
    app.include_router(router)
    app.mount("/", apps.asgi_on(fixture.state))
    app.add_middleware(GZipMiddleware)
    app.add_middleware(CORSMiddleware, **_CORS)
    with servers.uvicorn(app, boundary) as address:
        yield address


@contextmanager
def litestar(place: Place) -> Iterator[str]:
    """The plugin in an application of Litestar's."""
    from litestar import Litestar, Request, asgi, route
    from litestar.background_tasks import BackgroundTask
    from litestar.config.compression import CompressionConfig
    from litestar.config.cors import CORSConfig
    from litestar.response.base import ASGIResponse
    from litestar.response.streaming import ASGIStreamingResponse
    from litestar.types import ASGIApp

    from retrysafe.http.litestar import IdempotencyPlugin

    fixture = Fixture(place, features=ALWAYS | apps.ASGI_FEATURES, openapi="/schema/openapi.json")
    boundary = fixture.boundary()

    async def act(request: Request[Any, Any, Any]) -> ASGIApp:
        script = fixture.script(request.headers.get("fixture-script"))
        body = await request.body()
        await fixture.state.arun(script, fixture.aeffect)
        lines, piece = script.answer(body, request.headers.get("content-type", ""))
        task = BackgroundTask(fixture.state.work_after, script) if script.background else None
        told: dict[str, Any] = {
            "status_code": script.status,
            "headers": lines,
            "background": task,
        }
        if script.stream:
            return ASGIStreamingResponse(iterator=fixture.state.apieces(script, piece), **told)
        whole = b"" if script.status == 204 or request.method == "HEAD" else piece * script.repeat
        return ASGIResponse(body=whole, is_head_response=request.method == "HEAD", **told)

    act.__annotations__ |= {"request": Request[Any, Any, Any], "return": ASGIApp}
    control = apps.asgi_on(fixture.state)

    async def controls(scope: Any, receive: Any, send: Any) -> None:
        await control({**scope, "path": scope["raw_path"].decode().partition("?")[0]}, receive, send)

    app = Litestar(
        [
            route(["/act", "/act/{rest:path}"], http_method=[*METHODS])(act),  # type: ignore[list-item]
            asgi("/fixture", is_mount=True, copy_scope=True)(controls),
        ],
        plugins=[IdempotencyPlugin(boundary, principal=_of_request, **OPTIONS)],
        cors_config=CORSConfig(**_CORS),
        compression_config=CompressionConfig(backend="gzip"),
        logging_config=None,
    )
    with servers.uvicorn(app, boundary) as address:
        yield address


@contextmanager
def flask(place: Place) -> Iterator[str]:
    """The extension in an application of Flask's."""
    from flask import Flask, Response, request

    from retrysafe.http.flask import Idempotency

    fixture = Fixture(place, unsupported={"R29": _NO_OPENAPI.format("Flask"), **NO_HOP, **NO_BACKGROUND})
    boundary = fixture.boundary()
    app = Flask("fixture")
    app.logger.disabled = True
    Idempotency(app, boundary, principal=_of_request, **OPTIONS)

    def act(rest: str = "") -> Any:
        script = fixture.script(request.headers.get("Fixture-Script"))
        body = request.get_data()
        fixture.state.run(script, fixture.effect)
        lines, piece = script.answer(body, request.headers.get("Content-Type", ""))
        whole = b"" if script.status == 204 else piece * script.repeat
        response = Response(fixture.state.pieces(script, piece) if script.stream else whole, script.status)
        del response.headers["Content-Type"]
        for name, value in lines:
            response.headers.add(name, value)
        return response

    for rule in ("/act", "/act/", "/act/<path:rest>"):
        app.add_url_rule(rule, rule, act, methods=[*METHODS])

    def control(rest: str = "") -> Any:
        status, told = fixture.state.control(rest, request.query_string.decode())
        return Response(told, status)

    for rule in ("/fixture", "/fixture/<path:rest>"):
        app.add_url_rule(rule, rule, control)
    with servers.werkzeug(cors_and_gzip(app), boundary) as address:
        yield address


@contextmanager
def aiohttp(place: Place) -> Iterator[str]:
    """The middleware in an application of aiohttp's."""
    from aiohttp import web
    from multidict import CIMultiDict

    from retrysafe.http.aiohttp import idempotency

    fixture = Fixture(
        place,
        features=(ALWAYS | {"hop"}) - {"stream"},
        unsupported={
            "R29": _NO_OPENAPI.format("aiohttp"),
            "stream": "an aiohttp handler sends a stream by itself: its body is not kept",
            "background": "aiohttp has no work after the response",
        },
    )
    boundary = fixture.boundary()

    async def act(request: web.Request) -> web.StreamResponse:
        script = fixture.script(request.headers.get("Fixture-Script"))
        body = await request.read()
        await fixture.state.arun(script, fixture.aeffect)
        lines, piece = script.answer(body, request.headers.get("Content-Type", ""))
        headers: Any = [(name, value) for name, value in lines]
        if not script.stream:
            whole = b"" if script.status == 204 else piece * script.repeat
            return web.Response(body=whole, status=script.status, headers=CIMultiDict(headers))
        response = web.StreamResponse(status=script.status, headers=CIMultiDict(headers))
        await response.prepare(request)
        async for chunk in fixture.state.apieces(script, piece):
            await response.write(chunk)
        return response

    async def control(request: web.Request) -> web.StreamResponse:
        rest, query = request.match_info["rest"], request.query_string
        status, told = await asyncio.to_thread(fixture.state.control, rest, query)
        return web.Response(body=told, status=status)

    async def preflight(request: web.Request) -> web.StreamResponse:
        return web.Response(headers=PREFLIGHT, status=204)

    async def neighbours(request: web.Request, response: web.StreamResponse) -> None:
        response.headers.update(CORS)
        if "gzip" in request.headers.get("Accept-Encoding", "") and isinstance(response, web.Response):
            response.enable_compression()

    app = web.Application(middlewares=[idempotency(boundary, principal=_of_request, **OPTIONS)])
    app.on_response_prepare.append(neighbours)
    app.router.add_route("OPTIONS", "/act{rest:.*}", preflight)
    app.router.add_route("*", "/act{rest:.*}", act)
    app.router.add_get("/fixture{rest:.*}", control)
    with servers.aiohttp(app, boundary) as address:
        yield address


@contextmanager
def django(place: Place) -> Iterator[str]:
    """The middleware of a Django project."""
    with _django(place) as (fixture, act, serve):
        boundary = fixture.boundary(**_on_alias(fixture))
        guarded = {"BOUNDARY": boundary, "PRINCIPAL": _of_request, **{k.upper(): v for k, v in OPTIONS.items()}}
        ours = "retrysafe.http.django.IdempotencyMiddleware"
        with serve(act, boundary, MIDDLEWARE=[*_DJANGO_AROUND, ours], RETRYSAFE=guarded) as address:
            yield address


@contextmanager
def django_view(place: Place) -> Iterator[str]:
    """The decorator on one view of Django's."""
    with _django(place) as (fixture, act, serve):
        from retrysafe.http.django import idempotent

        boundary = fixture.boundary(**_on_alias(fixture))
        view = idempotent(boundary, principal=_of_request, required=False, **OPTIONS)(act)
        with serve(view, boundary, MIDDLEWARE=_DJANGO_AROUND) as address:
            yield address


@contextmanager
def drf(place: Place) -> Iterator[str]:
    """The mixin on a view of REST framework's."""
    with _django(place) as (fixture, act, serve):
        from rest_framework.views import APIView

        from retrysafe.http.drf import Idempotency, IdempotentMixin

        boundary = fixture.boundary(**_on_alias(fixture))

        def handler(self: Any, request: Any, rest: str = "") -> Any:
            return act(request._request, rest)

        promised = Idempotency(boundary, principal=_of_request, required=False, **OPTIONS)
        methods = {method.lower(): handler for method in METHODS}
        view = type(
            "Act",
            (IdempotentMixin, APIView),
            {"idempotency": promised, "authentication_classes": [], "permission_classes": [], **methods},
        )
        with serve(view.as_view(), boundary, MIDDLEWARE=_DJANGO_AROUND) as address:
            yield address


_DJANGO_SETTINGS: dict[str, Any] = {
    "DATA_UPLOAD_MAX_MEMORY_SIZE": None,
    "REST_FRAMEWORK": {"UNAUTHENTICATED_USER": None},
    "LOGGING_CONFIG": None,
}
_DJANGO_AROUND = ["tests.http.contract.neighbours.DjangoCors", "django.middleware.gzip.GZipMiddleware"]


def _on_alias(fixture: Fixture) -> dict[str, Any]:
    """A transactional boundary is on the alias, where the views work; a leased one has a store of its own."""
    return {"store": fixture.alias} if fixture.place.transactional else {}


@contextmanager
def _django(place: Place) -> Iterator[tuple[Fixture, Any, Any]]:
    """A project whose view is the fixture's handler, and what serves it."""
    from tests.django.aliases import add_alias, remove_alias, set_up

    set_up()
    from django.core.handlers.wsgi import WSGIHandler
    from django.db import connections
    from django.http import HttpResponse, StreamingHttpResponse
    from django.test import override_settings
    from django.urls import re_path

    fixture = Fixture(
        place,
        unsupported={
            "R29": _NO_OPENAPI.format("Django by itself"),
            "R4": "a response of Django's has one line for each field",
            **NO_HOP,
            **NO_BACKGROUND,
        },
    )
    if place.transactional:
        fixture.alias = add_alias(place.kind, **place.settings)

    def effect(id: str) -> None:
        if place.transactional:
            with connections[fixture.alias].cursor() as cursor:
                cursor.execute(place.insert, [id])

    def act(request: Any, rest: str = "") -> Any:
        script = fixture.script(request.headers.get("Fixture-Script"))
        body = request.body
        fixture.state.run(script, effect)
        lines, piece = script.answer(body, request.headers.get("Content-Type", ""))
        whole = b"" if script.status == 204 else piece * script.repeat
        response: Any = (
            StreamingHttpResponse(fixture.state.pieces(script, piece), status=script.status)
            if script.stream
            else HttpResponse(whole, status=script.status)
        )
        del response.headers["Content-Type"]
        for name, value in lines:
            if name == "Set-Cookie":
                response.set_cookie(*value.split("=", 1))
            else:
                response.headers[name] = value
        return response

    def control(request: Any, rest: str = "") -> Any:
        status, told = fixture.state.control(rest, request.META.get("QUERY_STRING", ""))
        return HttpResponse(told, status=status)

    @contextmanager
    def serve(view: Any, boundary: Any, **settings: Any) -> Iterator[str]:
        patterns = [re_path(r"^act(?P<rest>.*)$", view), re_path(r"^fixture(?P<rest>.*)$", control)]
        urls = type("Urls", (), {"urlpatterns": patterns})
        with (
            override_settings(ROOT_URLCONF=urls, ALLOWED_HOSTS=["*"], **_DJANGO_SETTINGS, **settings),
            servers.werkzeug(WSGIHandler(), boundary) as address,
        ):
            yield address

    default = connections.settings["default"]
    atomic, default["ATOMIC_REQUESTS"] = default["ATOMIC_REQUESTS"], False
    try:
        yield fixture, act, serve
    finally:
        default["ATOMIC_REQUESTS"] = atomic
        if place.transactional:
            remove_alias(fixture.alias)


INTEGRATIONS: dict[str, Integration] = {
    "asgi": Integration("ASGI", asgi, ("uvicorn",)),
    "wsgi": Integration("WSGI", wsgi, ("werkzeug",)),
    "starlette": Integration("Starlette", starlette, ("starlette", "uvicorn")),
    "starlette_route": Integration("Starlette, one route", starlette_route, ("starlette", "uvicorn")),
    "fastapi": Integration("FastAPI", fastapi, ("fastapi", "uvicorn")),
    "litestar": Integration("Litestar", litestar, ("litestar", "uvicorn")),
    "flask": Integration("Flask", flask, ("flask", "werkzeug")),
    "django": Integration("Django", django, ("django", "werkzeug")),
    "django_view": Integration("Django, one view", django_view, ("django", "werkzeug")),
    "drf": Integration("REST framework", drf, ("djangorestframework", "werkzeug")),
    "aiohttp": Integration("aiohttp", aiohttp, ("aiohttp",)),
}
