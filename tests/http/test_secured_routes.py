"""Routes that find out who calls, under a guard that knows no principal: refused, unless that is said on purpose."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flask_login  # type: ignore[import-untyped]
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from fastapi import APIRouter, Depends, FastAPI, Header, Security
from fastapi.security import APIKeyCookie, HTTPBearer, SecurityScopes
from flask import Flask
from litestar import Litestar
from litestar import Router as LitestarRouter
from litestar import post as litestar_post
from litestar.middleware import AbstractAuthenticationMiddleware, AuthenticationResult
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser, requires
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import BaseRoute, Mount, Route, Router

from retrysafe import Boundary, ConfigurationError
from retrysafe.http import aiohttp, asgi, fastapi, flask, litestar, starlette
from retrysafe.http.principals import is_named, scoped
from tests.http.wire import post
from tests.tables import each_row

CHOICES = pytest.mark.parametrize("principal", [None, "shared"])


@pytest.fixture
def boundary() -> Iterator[Boundary]:
    made = Boundary("secured", store="memory://")
    yield made
    made.close()


async def is_refused(app: Any, **request: Any) -> bool:
    """Whether the application refuses for its configuration; everything else that it answers was let through."""
    try:
        answer = await post(app, path="/pay", **request)
    except ConfigurationError:
        return True
    return answer.status == 500


def scheme(token: Any = Depends(HTTPBearer())) -> None:  # noqa: B008
    """Through another dependency."""


def credentials(authorization: str = Header("")) -> None:
    """No scheme of FastAPI's."""


def scopes(asked: SecurityScopes) -> None:
    """What scopes are wanted."""


ASKING = {
    "scheme": Depends(APIKeyCookie(name="session", auto_error=False)),
    "beneath": Depends(scheme),
    "scopes": Security(scopes, scopes=["pay"]),
    "header": Depends(credentials),
}


@CHOICES
@each_row("where", ["handler", "route", "router", "include", "application"])
@each_row("asking", ASKING)
@each_row("guard", ["router", "middleware"])
async def test_r32_fastapi(boundary: Boundary, principal: Any, where: str, asking: str, guard: str) -> None:
    def at(place: str) -> list[Any]:
        return [ASKING[asking]] if place == where else []

    idempotency = fastapi.Idempotency(boundary, principal=principal)
    guarded: Any = {"route_class": idempotency.route_class} if guard == "router" else {}
    router = APIRouter(dependencies=at("router"), **guarded)
    if where == "handler":

        @router.post("/pay")
        async def pay(found: Any = ASKING[asking]) -> int:
            return 1
    else:

        @router.post("/pay", dependencies=at("route"))
        async def pay_plainly() -> int:
            return 1

    app = FastAPI(dependencies=at("application"))
    app.include_router(router, dependencies=at("include"))
    if guard == "middleware":
        app.add_middleware(fastapi.IdempotencyMiddleware, boundary=boundary, principal=principal)
    assert await is_refused(app) is (principal is None)


async def test_r32_fastapi_without_security_needs_no_principal(boundary: Boundary) -> None:
    router = APIRouter(route_class=fastapi.Idempotency(boundary).route_class)

    @router.post("/pay")
    async def pay(trace: str = Header("")) -> int:
        return 1

    app = FastAPI()
    app.include_router(router)
    assert not await is_refused(app)


@CHOICES
@each_row("how", ["middleware", "around", "beneath"])
async def test_r32_starlette_requires(boundary: Boundary, principal: Any, how: str) -> None:
    async def pay(request: Request) -> PlainTextResponse:
        return PlainTextResponse("paid")

    guard = starlette.idempotent(boundary, principal=principal)
    asked = requires([])
    handler: Any = guard(asked(pay)) if how == "beneath" else asked(pay)
    guards = [Middleware(starlette.IdempotencyMiddleware, boundary=boundary, principal=principal)]
    app = Starlette(routes=[Route("/pay", handler, methods=["POST"])], middleware=guards if how != "beneath" else [])
    assert await is_refused(app, auth=None) is (principal is None)


@CHOICES
async def test_r32_litestar_guards(boundary: Boundary, principal: Any) -> None:
    def anybody(connection: Any, handler: Any) -> None:
        """Lets in."""

    @litestar_post("/pay", guards=[anybody])
    async def pay() -> str:
        return "paid"

    app = Litestar([pay], plugins=[litestar.IdempotencyPlugin(boundary, principal=principal)])
    assert await is_refused(app) is (principal is None)


class OfStarlette(AuthenticationBackend):
    """Lets everybody in."""

    async def authenticate(self, conn: Any) -> tuple[AuthCredentials, SimpleUser]:
        return AuthCredentials(), SimpleUser("ann")


@CHOICES
@each_row("how", ["application", "mount", "mounted application", "router", "route", "around", "plain"])
async def test_r32_starlette_authentication_inside_the_guard(boundary: Boundary, principal: Any, how: str) -> None:
    async def pay(request: Request) -> PlainTextResponse:
        return PlainTextResponse("paid")

    def at(*places: str) -> list[Middleware]:
        return [Middleware(AuthenticationMiddleware, backend=OfStarlette())] if how in places else []

    routes: list[BaseRoute] = [Route("/pay", pay, methods=["POST"], middleware=at("route"))]
    if how == "mounted application":
        routes = [Mount("/", Starlette(routes=routes, middleware=at(how)))]
    if how == "router":
        routes = [Mount("/", Router(routes, middleware=at(how)))]
    if how == "mount":
        routes = [Mount("/", routes=routes, middleware=at(how))]
    app: Any = Starlette(routes=routes, middleware=at("application", "around", "plain"))
    if how == "plain":
        app = asgi.IdempotencyMiddleware(app, boundary, principal=principal)
    elif how == "around":
        app = starlette.IdempotencyMiddleware(app, boundary, principal=principal)
    else:
        app.add_middleware(starlette.IdempotencyMiddleware, boundary=boundary, principal=principal)
    assert await is_refused(app) is (principal is None)


async def test_r32_starlette_authentication_around_the_guard_needs_no_principal(boundary: Boundary) -> None:
    async def pay(request: Request) -> PlainTextResponse:
        return PlainTextResponse("paid")

    app = Starlette(routes=[Route("/pay", pay, methods=["POST"])])
    app.add_middleware(starlette.IdempotencyMiddleware, boundary=boundary)
    app.add_middleware(AuthenticationMiddleware, backend=OfStarlette())
    assert not await is_refused(app)


class OfLitestar(AbstractAuthenticationMiddleware):
    """Lets everybody in."""

    async def authenticate_request(self, connection: Any) -> AuthenticationResult:
        return AuthenticationResult(user="ann", auth=None)


@CHOICES
@pytest.mark.parametrize("how", ["handler", "router"])
async def test_r32_litestar_authentication_inside_the_guard(boundary: Boundary, principal: Any, how: str) -> None:
    def at(place: str) -> list[Any]:
        return [OfLitestar] if place == how else []

    @litestar_post("/pay", middleware=at("handler"))
    async def pay() -> str:
        return "paid"

    router = LitestarRouter("/", route_handlers=[pay], middleware=at("router"))
    app = Litestar([router], plugins=[litestar.IdempotencyPlugin(boundary, principal=principal)])
    assert await is_refused(app) is (principal is None)


@CHOICES
@each_row("how", ["application", "decorator"])
def test_r32_flask_login(boundary: Boundary, principal: Any, how: str) -> None:
    app = Flask("shop")
    app.config["LOGIN_DISABLED"] = True
    flask_login.LoginManager(app)
    flask.Idempotency(app, boundary, principal=principal)

    def pay() -> str:
        return "paid"

    app.post("/pay")(flask_login.login_required(flask.idempotent(pay) if how == "decorator" else pay))
    answer = app.test_client().post("/pay", headers={"Idempotency-Key": "k"})
    assert answer.status_code == (500 if principal is None else 200)


@CHOICES
@pytest.mark.parametrize("how", ["function", "method_decorator", "mixin", "middleware"])
def test_r32_django(boundary: Boundary, principal: Any, how: str, tmp_path: Path) -> None:
    from tests.http.django_site import opened

    from django.contrib.auth.decorators import login_required  # isort: skip
    from django.http import HttpRequest, HttpResponse  # isort: skip
    from django.test import RequestFactory  # isort: skip
    from django.utils.decorators import method_decorator  # isort: skip
    from django.views import View  # isort: skip
    from retrysafe.http.django import IdempotencyMiddleware  # isort: skip

    def pay(request: HttpRequest) -> HttpResponse:
        return HttpResponse("paid")

    class Pay(View):  # type: ignore[misc]
        def post(self, request: HttpRequest) -> HttpResponse:
            return pay(request)

    mixin: Any = type("LoginRequiredMixin", (), {"__module__": "django.contrib.auth.mixins"})
    of_users: Any = type("OfUsers", (mixin, Pay), {})
    views: dict[str, Any] = {
        "function": login_required(pay),
        "method_decorator": method_decorator(login_required, name="dispatch")(Pay).as_view(),
        "mixin": of_users.as_view(),
        "middleware": pay,
    }
    with opened("memory", tmp_path) as site:
        site.serve(views[how], RETRYSAFE={"BOUNDARY": boundary, "PRINCIPAL": principal})
        if how == "middleware":
            site.settings(MIDDLEWARE=["django.contrib.auth.middleware.LoginRequiredMiddleware"])
        middleware, asked = IdempotencyMiddleware(pay), RequestFactory().post("/orders")
        if principal is None:
            with pytest.raises(ConfigurationError, match="without principal="):
                middleware(asked)
        else:
            assert middleware(asked).status_code == 200


@pytest.mark.slow
@CHOICES
async def test_r32_aiohttp(boundary: Boundary, principal: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pay = _decorated_as_by("aiohttp_security.api")
    app = web.Application(middlewares=[aiohttp.idempotency(boundary, principal=principal)])
    app.router.add_post("/pay", pay)
    async with TestClient(TestServer(app)) as client, client.post("/pay", headers={"Idempotency-Key": "k"}) as answer:
        assert answer.status == (500 if principal is None else 200)


def _decorated_as_by(module: str) -> Any:
    """A handler under a decorator of a library that is not installed."""
    code = "import functools\ndef login_required(f):\n    @functools.wraps(f)\n"
    code += "    async def wrapped(request):\n        return await f(request)\n    return wrapped\n"
    names: dict[str, Any] = {"__name__": module}
    exec(code, names)

    async def pay(request: web.Request) -> web.Response:
        return web.Response()

    return names["login_required"](pay)


@each_row("principal", ["everybody", 7])
def test_a_principal_that_finds_nobody_is_refused_when_built(boundary: Boundary, principal: Any) -> None:
    with pytest.raises(ConfigurationError, match="principal="):
        aiohttp.idempotency(boundary, principal=principal)


def test_k8_principals_of_different_types_do_not_meet() -> None:
    assert len({scoped(tenant, who) for tenant in ("", "7") for who in (7, "7", "#7", "0:#7")}) == 8
    assert scoped("", "ann") == "ann", "as records of earlier versions have it"
    assert scoped("", "ann", "bob") != scoped("", "bob", "ann")
    assert not any(map(is_named, (None, "", True, b"7", 1.5, object())))
