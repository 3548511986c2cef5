"""Guards around guards: every pair, with principals on either side. No client gets what was done for another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from asgiref.wsgi import WsgiToAsgi
from fastapi import APIRouter, FastAPI, Request
from flask import Flask
from flask import request as flask_request
from litestar import Litestar
from litestar import Request as LitestarRequest
from litestar import post as litestar_post
from litestar.middleware import DefineMiddleware
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route, Router

from retrysafe import Boundary, ConfigurationError
from retrysafe.http import aiohttp, asgi, fastapi, flask, litestar, starlette, wsgi
from retrysafe.http.grpc import IdempotencyInterceptor
from tests.faults.helpers import unique
from tests.http.gateway import post as wsgi_post
from tests.http.test_grpc import Client as GrpcClient
from tests.http.test_grpc import Service, handlers
from tests.http.wire import post

CASES: dict[str, tuple[str | None, str | None]] = {
    "neither": (None, None),
    "outer": ("x-user", None),
    "inner": (None, "x-user"),
    "both": ("x-user", "x-user"),
    "wider outside": ("x-org", "x-user"),
    "wider inside": ("x-user", "x-org"),
}
"""By which field of a request the outer and the inner guard tell clients apart. All users are of one organisation."""
Answer = tuple[int, str]
REFUSED = 500


class Side(NamedTuple):
    """One guard of a pair."""

    boundary: Boundary
    field: str | None

    def principal(self, fields: Callable[[Any], Any]) -> Any:
        """A function that finds the principal, the same one for both sides of a framework."""
        return "shared" if self.field is None else FINDERS.setdefault((fields, self.field), self._finder(fields))

    def _finder(self, fields: Callable[[Any], Any]) -> Any:
        name = self.field
        return lambda request: fields(request).get(name)


FINDERS: dict[Any, Any] = {}


def of_scope(scope: Any) -> Any:
    return {name.decode(): value.decode() for name, value in scope["headers"]}


def of_request(request: Any) -> Any:
    return request.headers


def of_environ(environ: Any) -> Any:
    return {"x-user": environ.get("HTTP_X_USER"), "x-org": environ.get("HTTP_X_ORG")}


def of_context(context: Any) -> Any:
    return dict(context.invocation_metadata())


def secret(fields: Any) -> str:
    return f"secret of {fields.get('x-user')}"


# ------------------------------------------------------------ ASGI


async def answering(request: Any) -> PlainTextResponse:
    return PlainTextResponse(secret(request.headers))


def starlette_outer(app: Any, side: Side) -> Any:
    guarding = Middleware(starlette.IdempotencyMiddleware, boundary=side.boundary, principal=side.principal(of_request))
    return Starlette(routes=[Mount("/", app=app)], middleware=[guarding])


def fastapi_outer(app: Any, side: Side) -> Any:
    around = FastAPI()
    around.mount("/", app)
    around.add_middleware(fastapi.IdempotencyMiddleware, boundary=side.boundary, principal=side.principal(of_request))
    return around


ASGI_OUTER: dict[str, Callable[[Any, Side], Any]] = {
    "asgi": lambda app, side: asgi.IdempotencyMiddleware(app, side.boundary, principal=side.principal(of_scope)),
    "starlette": starlette_outer,
    "fastapi": fastapi_outer,
}


def plain(side: Side) -> Any:
    app = Router(routes=[Route("/pay", answering, methods=["POST"])])
    return asgi.IdempotencyMiddleware(app, side.boundary, principal=side.principal(of_scope))


def starlette_decorated(side: Side) -> Any:
    guarded = starlette.idempotent(side.boundary, principal=side.principal(of_request))(answering)
    return Starlette(routes=[Route("/pay", guarded, methods=["POST"])])


def starlette_application(side: Side) -> Any:
    routes = [Route("/pay", answering, methods=["POST"])]
    guarding = Middleware(starlette.IdempotencyMiddleware, boundary=side.boundary, principal=side.principal(of_request))
    return Starlette(routes=routes, middleware=[guarding])


def fastapi_router(side: Side) -> Any:
    name = side.field

    def account(request: Request) -> str | None:
        return request.headers.get(name or "")

    idempotency = fastapi.Idempotency(side.boundary, principal=account if name else "shared")
    router = APIRouter(route_class=idempotency.route_class)

    @router.post("/pay")
    def pay(request: Request) -> Any:
        return PlainTextResponse(secret(request.headers))

    app = FastAPI()
    app.include_router(router)
    return app


def litestar_application(side: Side) -> Any:
    @litestar_post("/pay", status_code=200)
    async def pay(request: LitestarRequest[Any, Any, Any]) -> str:
        return secret(request.headers)

    plugin = litestar.IdempotencyPlugin(side.boundary, principal=side.principal(of_request))
    return Litestar([pay], plugins=[plugin], logging_config=None)


def flask_application(side: Side) -> Any:
    app = Flask("inner")
    flask.Idempotency(app, side.boundary, principal=side.principal(of_request))

    @app.post("/pay")
    def pay() -> str:
        return secret(flask_request.headers)

    return app


def flask_decorated(side: Side) -> Any:
    app = Flask("inner")
    flask.Idempotency(app, side.boundary, principal="shared")

    @app.post("/pay")
    @flask.idempotent(principal=side.principal(of_request))
    def pay() -> str:
        return secret(flask_request.headers)

    return app


def behind_an_adapter(app: Any) -> Any:
    return WsgiToAsgi(app)  # type: ignore[no-untyped-call]


ASGI_INNER: dict[str, Callable[[Side], Any]] = {
    "asgi": plain,
    "starlette-decorator": starlette_decorated,
    "starlette-middleware": starlette_application,
    "fastapi-router": fastapi_router,
    "litestar": litestar_application,
    "flask-behind-an-adapter": lambda side: behind_an_adapter(flask_application(side)),
}


async def over_asgi(app: Any, fields: dict[str, str]) -> Answer:
    try:
        answer = await post(app, path="/pay", headers=list(fields.items()))
    except ConfigurationError:
        return REFUSED, ""
    return answer.status, answer.body.decode()


# ------------------------------------------------------------ the matrix


@pytest.fixture
def sides(request: pytest.FixtureRequest, case: str, boundaries: str) -> Iterator[tuple[Side, Side]]:
    outer = Boundary(unique("outer"), store="memory://")
    inner = outer if boundaries == "one" else Boundary(unique("inner"), store="memory://")
    fields = CASES[case]
    yield Side(outer, fields[0]), Side(inner, fields[1])
    outer.close()
    inner.close()


PAIRS = pytest.mark.parametrize("boundaries", ["one", "two"])
EVERY = pytest.mark.parametrize("case", CASES)
CLIENTS: list[dict[str, str]] = [
    {"x-user": "ann", "x-org": "acme"},
    {"x-user": "bob", "x-org": "acme"},
    {},
    {"x-org": "acme"},
]


def judge(case: str, answers: list[tuple[dict[str, str], Answer]]) -> None:
    """Check that all clients got their own answers, and that separated keys work."""
    served = [(client, body) for client, (status, body) in answers if status < 300]
    if case != "neither":
        for client, body in served:
            assert body == secret(client), (client, body)
            assert client, "nobody was served"
    if case in ("outer", "both", "neither"):
        assert served, answers


@EVERY
@PAIRS
@pytest.mark.parametrize("inside", ASGI_INNER)
@pytest.mark.parametrize("outside", ASGI_OUTER)
async def test_r32_guards_in_asgi(sides: tuple[Side, Side], case: str, outside: str, inside: str) -> None:
    app = ASGI_OUTER[outside](ASGI_INNER[inside](sides[1]), sides[0])
    if case == "both" and (outside, inside) not in ALIKE:
        case = "either"  # two functions that find the same: whether they do cannot be known
    judge(case, [(client, await over_asgi(app, client)) for client in CLIENTS * 2])


ALIKE = {("asgi", "asgi")}


@EVERY
@PAIRS
async def test_r32_a_litestar_handler_in_its_application(sides: tuple[Side, Side], case: str) -> None:
    outer, inner = sides
    principal = inner.principal(of_request)
    guarding: Any = litestar.IdempotencyMiddleware

    @litestar_post(
        "/pay",
        status_code=200,
        middleware=[DefineMiddleware(guarding, boundary=inner.boundary, principal=principal)],
    )
    async def pay(request: LitestarRequest[Any, Any, Any]) -> str:
        return secret(request.headers)

    plugin = litestar.IdempotencyPlugin(outer.boundary, principal=outer.principal(of_request))
    app = Litestar([pay], plugins=[plugin], logging_config=None)
    judge(case, [(client, await over_asgi(app, client)) for client in CLIENTS * 2])


@pytest.mark.slow
@EVERY
@PAIRS
@pytest.mark.parametrize("inside", ["decorator", "application"])
async def test_r32_guards_in_aiohttp(sides: tuple[Side, Side], case: str, inside: str) -> None:
    outer, inner = sides

    async def pay(request: web.Request) -> web.Response:
        return web.Response(text=secret(request.headers))

    app = web.Application(middlewares=[aiohttp.idempotency(outer.boundary, principal=outer.principal(of_request))])
    if inside == "decorator":
        guard: Any = aiohttp.idempotent(inner.boundary, principal=inner.principal(of_request))
        app.router.add_post("/pay", guard(pay))
    else:
        guard = aiohttp.idempotency(inner.boundary, principal=inner.principal(of_request))
        sub = web.Application(middlewares=[guard])
        sub.router.add_post("/pay", pay)
        app.add_subapp("/sub", sub)
    answers = []
    async with TestClient(TestServer(app)) as client:
        for who in CLIENTS * 2:
            path = "/pay" if inside == "decorator" else "/sub/pay"
            async with client.post(path, headers={"Idempotency-Key": "k", **who}) as answer:
                answers.append((who, (answer.status, await answer.text())))
    judge(case, answers)


WSGI_INNER: dict[str, Callable[[Side], Any]] = {
    "wsgi": lambda side: wsgi.IdempotencyMiddleware(
        wsgi_application, side.boundary, principal=side.principal(of_environ)
    ),
    "flask": flask_application,
    "flask-decorator": flask_decorated,
}


def wsgi_application(environ: Any, start_response: Any) -> Any:
    start_response("200 OK", [])
    return [secret(of_environ(environ)).encode()]


def over_wsgi(app: Any, fields: dict[str, str]) -> Answer:
    try:
        answer = wsgi_post(app, path="/pay", headers=list(fields.items()))
    except ConfigurationError:
        return REFUSED, ""
    return answer.status, answer.body.decode()


@EVERY
@PAIRS
@pytest.mark.parametrize("inside", WSGI_INNER)
def test_r32_guards_in_wsgi(sides: tuple[Side, Side], case: str, inside: str) -> None:
    app = wsgi.IdempotencyMiddleware(
        WSGI_INNER[inside](sides[1]), sides[0].boundary, principal=sides[0].principal(of_environ)
    )
    if case == "both" and inside != "wsgi":
        case = "either"
    judge(case, [(client, over_wsgi(app, client)) for client in CLIENTS * 2])


DJANGO = [
    (outside, inside)
    for outside in ("wsgi", "asgi", "middleware")
    for inside in ("decorator", "middleware", "rest_framework")
    if outside != inside
]


@pytest.mark.slow
@EVERY
@PAIRS
@pytest.mark.parametrize(("outside", "inside"), DJANGO)
def test_r32_guards_in_django(sides: tuple[Side, Side], case: str, outside: str, inside: str, tmp_path: Path) -> None:
    from tests.http.nested_django import site_of

    outer, inner = sides
    with site_of(tmp_path, inside, inner, outer if outside == "middleware" else None) as site:
        of_asgi = asgi.IdempotencyMiddleware(site.asgi, outer.boundary, principal=outer.principal(of_scope))
        of_wsgi = wsgi.IdempotencyMiddleware(site.wsgi, outer.boundary, principal=outer.principal(of_environ))
        app: Any = of_wsgi if outside == "wsgi" else site.wsgi
        answers = []
        for who in CLIENTS * 2:
            if outside == "asgi":
                answers.append((who, asyncio.run(over_asgi(of_asgi, who))))
            else:
                answers.append((who, over_wsgi(app, who)))
    judge("either" if case == "both" else case, answers)


@EVERY
@PAIRS
def test_r32_interceptors_of_grpc(sides: tuple[Side, Side], case: str) -> None:
    from concurrent.futures import ThreadPoolExecutor

    class Telling(Service):
        def place(self, request: Any, context: Any) -> Any:
            return request._replace(text=secret(of_context(context)))

    service = Telling()
    guards = [IdempotencyInterceptor(side.boundary, principal=side.principal(of_context)) for side in sides]
    with ThreadPoolExecutor(4) as pool:
        server = grpc.server(pool, interceptors=guards)
        server.add_generic_rpc_handlers((handlers(service.place, service.watch),))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            call, answers = GrpcClient(channel), []
            for who in CLIENTS * 2:
                got = call.raw("order", "Place", (("idempotency-key", "k"), *who.items()))
                answers.append((who, (200 if got.code is grpc.StatusCode.OK else REFUSED, (got.body or b"").decode())))
        server.stop(None).wait()
    judge(case, answers)
