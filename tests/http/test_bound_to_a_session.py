"""Principals that fail, answers that are bound to a session, and uploads in aiohttp."""

from __future__ import annotations

import asyncio
import io
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from fastapi import FastAPI, HTTPException
from flask import Flask, abort, redirect
from flask_login import LoginManager, UserMixin, login_required
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, SimpleUser, requires
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.routing import Route

from retrysafe import Boundary, ConfigurationError, current
from retrysafe.http import aiohttp, fastapi, flask, starlette, wsgi
from retrysafe.http.asgi import IdempotencyMiddleware
from retrysafe.http.messages import SECRETS, Request, Response, find_dropped_fields, leads_to_login, strip_fields
from tests.http.gateway import post as wsgi_post
from tests.http.wire import post
from tests.tables import each_row


@pytest.fixture
def boundary() -> Iterator[Boundary]:
    made = Boundary("bound", store="memory://")
    yield made
    made.close()


async def paying(request: Any) -> PlainTextResponse:
    return PlainTextResponse("paid")


PAY = Route("/pay", paying, methods=["POST"])

# ------------------------------------------------------------ principals that fail


def refusing(request: Any) -> str:
    raise HTTPException(401, "who?", {"x-why": "token"})


@each_row("framework", ["starlette", "fastapi"])
async def test_k8_a_principal_that_refuses_gives_the_applications_own_answer(
    boundary: Boundary, framework: str
) -> None:
    if framework == "starlette":
        app: Any = Starlette(routes=[PAY])
        app.add_middleware(starlette.IdempotencyMiddleware, boundary=boundary, principal=refusing)
    else:
        app = FastAPI()
        app.add_middleware(fastapi.IdempotencyMiddleware, boundary=boundary, principal=refusing)
    answer = await post(app, path="/pay")
    body = b"who?" if framework == "starlette" else b'{"detail":"who?"}'
    assert (answer.status, answer.body, answer.header("x-why")) == (401, body, "token")


async def test_k8_a_principal_that_refuses_in_an_outer_guard_of_a_guarded_route(boundary: Boundary) -> None:
    guarded = starlette.idempotent(boundary, principal="shared")(paying)
    app = Starlette(routes=[Route("/pay", guarded, methods=["POST"])])
    app.add_middleware(starlette.IdempotencyMiddleware, boundary=boundary, principal=refusing)
    assert (await post(app, path="/pay")).status == 401


@pytest.mark.slow
async def test_k8_a_principal_that_refuses_in_aiohttp_and_flask(boundary: Boundary) -> None:
    def refused(request: web.Request) -> str:
        raise web.HTTPUnauthorized

    async def handle(request: web.Request) -> web.Response:
        return web.Response()

    app = web.Application(middlewares=[aiohttp.idempotency(boundary, principal=refused)])
    app.router.add_post("/pay", handle)
    async with TestClient(TestServer(app)) as client, client.post("/pay", headers={"Idempotency-Key": "k"}) as answer:
        assert answer.status == 401
    shop = Flask("shop")
    flask.Idempotency(shop, boundary, principal=lambda request: abort(401))
    shop.post("/pay")(lambda: "paid")
    assert shop.test_client().post("/pay", headers={"Idempotency-Key": "k"}).status_code == 401


async def test_k8_a_principal_that_fails_is_an_error_and_nothing_runs(boundary: Boundary) -> None:
    async def cancelled(scope: Any) -> str:
        raise asyncio.CancelledError

    async def broken(scope: Any) -> str:
        raise LookupError("no such token")

    async def untouched(scope: Any, receive: Any, send: Any) -> None:
        pytest.fail("ran unprotected")

    for principal, error in ((cancelled, RuntimeError), (broken, LookupError)):
        with pytest.raises(error):
            await post(IdempotencyMiddleware(untouched, boundary, principal=principal))


async def test_r18_a_request_that_is_cancelled_while_its_principal_is_found_stays_cancelled(
    boundary: Boundary,
) -> None:
    looking = asyncio.Event()

    async def slow(scope: Any) -> str:
        looking.set()
        await asyncio.Event().wait()
        return "nobody"

    running = asyncio.ensure_future(post(IdempotencyMiddleware(PAY.app, boundary, principal=slow)))
    await looking.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


def test_k8_a_coroutine_function_is_no_principal_of_sync_code(boundary: Boundary) -> None:
    async def principal(environ: Any) -> str:
        return "ann"

    with pytest.raises(ConfigurationError, match="coroutine"):
        wsgi_post(wsgi.IdempotencyMiddleware(lambda environ, start: [b""], boundary, principal=principal))


# ------------------------------------------------------------ answers bound to a session


class User(UserMixin):  # type: ignore[misc]
    def __init__(self, name: str) -> None:
        self.id = name


def test_r6_no_field_with_credentials_is_stored() -> None:
    lines = tuple((name, b"secret") for name in sorted(SECRETS))
    assert strip_fields(Response(200, lines, b""), None, find_dropped_fields(frozenset())).headers == ()
    assert strip_fields(Response(200, lines, b""), None, find_dropped_fields(SECRETS)).headers == lines
    assert {b"authorization", b"proxy-authorization", b"authentication-info"} <= SECRETS


@each_row(
    ("location", "login"),
    [
        ("/login?next=/orders", True),
        ("/login?next=%2Forders", True),
        ("http://shop/login?a=1&next=http%3A%2F%2Fshop%2Forders%3Fa%3D1", True),
        ("/login?next=/api/orders", True),
        ("/login?from=/orders", True),
        ("https://sso.test/enter?next=/orders", True),
        ("https://other.test/enter?next=/orders", False),
        ("/receipt/7?next=/orders", False),
        ("/login", False),
        ("/login?next=/orders/8", False),
        ("/orders/7", False),
        ("http://[", False),
    ],
)
def test_r33_a_page_of_login_that_is_told_where_to_come_back_to(location: str, login: bool) -> None:
    request = Request("POST", b"/orders", b"", (), ("/api/orders",))
    response = Response(302, ((b"location", location.encode()),), b"")
    assert leads_to_login(request, response, ["/login", "https://sso.test/enter"]) is login


@each_row("effects", ["keyed", "external", "transactional"])
@each_row("target", ["/receipt/17?next=/orders", "/login?next=/orders"])
@each_row("writes", [True, False])
async def test_r33_an_order_that_leads_on_is_no_login(
    tmp_path: Path, effects: Any, target: str, *, writes: bool
) -> None:
    """A page that is told where the client came from frees no key, unless it is that of a login; nor does work done."""
    place = f"sqlite:///{tmp_path}/shop.db"
    boundary = Boundary(f"shop {effects} {target} {writes}", store=place, effects=effects)
    app, ran = FastAPI(), []
    guard = fastapi.Idempotency(boundary, principal="shared", login_pages=["/login"])
    app.router.route_class = guard.route_class

    @app.post("/orders")
    def order() -> Any:
        ran.append(1)
        if effects == "transactional" and writes:
            current().tx.execute("CREATE TABLE orders (one)")
        return RedirectResponse(target, status_code=303)

    answers = [await post(app) for _ in "123"]
    login = target.startswith("/login") and effects != "external" and not (effects == "transactional" and writes)
    assert [answer.replayed for answer in answers] == [False, not login, not login]
    assert len(ran) == (3 if login else 1)
    await boundary.aclose()


async def test_r33_a_redirect_to_the_login_is_not_replayed_after_it(boundary: Boundary) -> None:
    class Backend:
        async def authenticate(self, connection: Any) -> Any:
            name = connection.headers.get("x-user")
            return None if name is None else (AuthCredentials(["authenticated"]), SimpleUser(name))

    async def login(request: Any) -> RedirectResponse:
        return RedirectResponse("/")

    asking = requires("authenticated", redirect="login")(paying)
    app = Starlette(routes=[Route("/pay", asking, methods=["POST"]), Route("/login", login, name="login")])
    guard: Any = {"boundary": boundary, "principal": "shared", "login_pages": ["/login"]}
    app.add_middleware(starlette.IdempotencyMiddleware, **{"principal": "shared", **guard})
    app.add_middleware(AuthenticationMiddleware, backend=Backend())  # type: ignore[arg-type]
    refused = await post(app, path="/pay", headers=[("host", "shop")])
    assert refused.status == 303
    served = await post(app, path="/pay", headers=[("host", "shop"), ("x-user", "ann")])
    assert (served.status, served.body, served.replayed) == (200, b"paid", False)


async def test_r33_a_redirect_from_around_the_handler_is_not_replayed(boundary: Boundary) -> None:
    class LoggedIn:
        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            known = scope["type"] != "http" or (b"x-user", b"ann") in scope["headers"]
            await (self.app if known else RedirectResponse("/enter", 303))(scope, receive, send)

    app = Starlette(routes=[PAY])
    app.add_middleware(LoggedIn)
    app.add_middleware(starlette.IdempotencyMiddleware, boundary=boundary, principal="shared")
    assert (await post(app, path="/pay")).status == 303
    served = await post(app, path="/pay", headers=[("x-user", "ann")])
    assert (served.status, served.replayed) == (200, False)


def test_r33_the_login_view_of_flask_login_is_known(boundary: Boundary) -> None:
    shop = Flask("shop")
    login = LoginManager(shop)
    login.login_view = "enter"
    login.user_loader(lambda name: None)
    login.request_loader(lambda request: User(request.headers["X-User"]) if "X-User" in request.headers else None)
    flask.Idempotency(shop, boundary, principal="shared")

    @shop.post("/orders")
    @login_required  # type: ignore[untyped-decorator]
    def order() -> str:
        return "placed"

    shop.add_url_rule("/enter", "enter", lambda: "")
    shop.secret_key = "secret"
    client = shop.test_client()
    assert client.post("/orders", headers={"Idempotency-Key": "k"}).status_code == 302
    served = client.post("/orders", headers={"Idempotency-Key": "k", "X-User": "ann"})
    assert (served.status_code, served.text, "Idempotent-Replayed" in served.headers) == (200, "placed", False)


def test_r33_in_wsgi(boundary: Boundary) -> None:
    shop, runs = Flask("shop"), []

    @shop.post("/orders")
    def order() -> Any:
        runs.append(1)
        return redirect("/login?next=/orders") if len(runs) == 1 else redirect("/orders/7", 303)

    app = wsgi.IdempotencyMiddleware(shop, boundary, login_pages=["/login"], principal="shared")
    answers = [wsgi_post(app, path="/orders") for _ in range(3)]
    assert [(answer.status, answer.replayed) for answer in answers] == [(302, False), (303, False), (303, True)]


# ------------------------------------------------------------ uploads in aiohttp

SIZE = 8 << 20


@pytest.mark.slow
async def test_r12_an_upload_is_in_memory_once_when_the_handler_begins(boundary: Boundary) -> None:
    held: list[int] = []

    async def handle(request: web.Request) -> web.Response:
        held.append(tracemalloc.get_traced_memory()[1])
        return web.Response(text=str(len(await request.read())))

    guarding = aiohttp.idempotency(boundary, body_memory=1 << 16, principal="shared")
    app = web.Application(middlewares=[guarding], client_max_size=2 * SIZE)
    app.router.add_post("/pay", handle)
    async with TestClient(TestServer(app)) as client:
        upload = io.BytesIO(bytes(SIZE))
        tracemalloc.start()
        try:
            async with client.post("/pay", data=upload, headers={"Idempotency-Key": "k"}) as answer:
                assert await answer.text() == str(SIZE)
        finally:
            tracemalloc.stop()
    assert held[0] < 1.6 * SIZE


@pytest.mark.slow
async def test_r12_bodies_that_an_application_does_not_take_are_refused_as_ever(boundary: Boundary) -> None:
    async def handle(request: web.Request) -> web.Response:
        return web.Response()

    app = web.Application(middlewares=[aiohttp.idempotency(boundary, principal="shared")], client_max_size=1000)
    app.router.add_post("/pay", handle)
    async with TestClient(TestServer(app)) as client:
        for size, status in ((1001, 413), (1000, 200)):
            async with client.post("/pay", data=bytes(size), headers={"Idempotency-Key": f"k{size}"}) as answer:
                assert answer.status == status


@pytest.mark.slow
async def test_a_body_that_a_middleware_has_read_counts(boundary: Boundary) -> None:
    @web.middleware
    async def reading(request: web.Request, handler: Any) -> Any:
        await request.read()
        return await handler(request)

    async def handle(request: web.Request) -> web.Response:
        return web.Response(text=await request.text())

    app = web.Application(middlewares=[reading, aiohttp.idempotency(boundary, principal="shared")])
    app.router.add_post("/pay", handle)
    async with TestClient(TestServer(app)) as client:
        for body, status in (("a", 200), ("b", 422), ("a", 200)):
            async with client.post("/pay", data=body, headers={"Idempotency-Key": "k"}) as answer:
                assert answer.status == status
                assert status == 422 or await answer.text() == body
