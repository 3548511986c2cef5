"""``routes=`` holds for every spelling that is routed to the same place; rules that match nothing are told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from fastapi import APIRouter, FastAPI
from flask import Flask
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from retrysafe import Boundary
from retrysafe.http import aiohttp, fastapi, flask, starlette, wsgi
from retrysafe.http.asgi import IdempotencyMiddleware
from retrysafe.http.routes import Routes
from tests.http.gateway import post as wsgi_post
from tests.http.wire import post
from tests.tables import each_row

OPTIONS: Any = {"routes": {"POST /payments": "required"}}


@pytest.fixture
def boundary() -> Iterator[Boundary]:
    made = Boundary("routed", store="memory://")
    yield made
    made.close()


@each_row(
    ("paths", "need"),
    [
        (["/payments"], "required"),
        (["//payments"], "required"),
        (["/payments/"], "required"),
        (["/Payments"], "required"),
        (["/payments\n"], "required"),
        (["/api/payments"], None),
        (["/api/payments", "/payments"], "required"),
        (["/login"], "off"),
        (["/login/"], "required"),
        (["/open/x"], "off"),
        (["//open/x"], "required"),
    ],
)
def test_k6_the_strictest_reading_counts(paths: list[str], need: str | None) -> None:
    rules: Any = {"POST /payments": "required", "/login": "off", "/login/": "required", "/open/*": "off"}
    rules["//open/x"] = "required"
    assert Routes(rules).strictest("POST", paths) == need


@each_row("path", ["/login", "/payments"])
def test_k6_a_rule_before_it_wins(path: str) -> None:
    rules: Any = {path: "off", f"{path}/": "required", "/**": "required"}
    assert Routes(rules).strictest("POST", [path]) == "off"


async def pay(request: Any) -> PlainTextResponse:
    return PlainTextResponse("paid")


PAY = Route("/payments", pay, methods=["POST"])


@each_row("where", ["root_path", "mounted", "around"])
async def test_k6_in_asgi(boundary: Boundary, where: str) -> None:
    app: Any = IdempotencyMiddleware(Starlette(routes=[PAY]), boundary, **{"principal": "shared", **OPTIONS})
    if where == "mounted":
        app = Starlette(routes=[Mount("/api", app=app)])
    if where == "around":
        around = FastAPI()
        around.post("/payments")(lambda: "paid")
        around.add_middleware(fastapi.IdempotencyMiddleware, boundary=boundary, **{"principal": "shared", **OPTIONS})
        app = around
    answer = await post(app, None, path="/api/payments", root_path="" if where == "mounted" else "/api")
    assert answer.code == "key-missing"


@each_row(("script", "path"), [("", "/payments"), ("/api", "/payments"), ("", "//payments")])
@each_row("guard", ["flask", "wsgi"])
def test_k6_in_wsgi(boundary: Boundary, guard: str, script: str, path: str) -> None:
    app = Flask("shop")
    app.post("/payments")(lambda: "paid")
    if guard == "flask":
        flask.Idempotency(app, boundary, **{"principal": "shared", **OPTIONS})
    serving: Any = (
        app if guard == "flask" else wsgi.IdempotencyMiddleware(app, boundary, **{"principal": "shared", **OPTIONS})
    )

    def mounted(environ: dict[str, Any], start_response: Any) -> Any:
        return serving({**environ, "SCRIPT_NAME": script, "PATH_INFO": path, "RAW_URI": script + path}, start_response)

    assert wsgi_post(mounted, None).code == "key-missing"


async def test_k6_a_final_line_feed_in_starlette(boundary: Boundary) -> None:
    app = Starlette(routes=[PAY])
    guards = starlette.IdempotencyMiddleware(app, boundary, **{"principal": "shared", **OPTIONS})
    assert (await post(app, None, path="/payments\n")).status == 200
    assert (await post(guards, None, path="/payments\n")).code == "key-missing"


@each_row("guard", ["flask", "wsgi"])
def test_k6_a_method_in_small_letters_in_wsgi(boundary: Boundary, guard: str) -> None:
    app = Flask("shop")
    app.post("/payments")(lambda: "paid")
    if guard == "flask":
        flask.Idempotency(app, boundary, **{"principal": "shared", **OPTIONS})
    serving: Any = (
        app if guard == "flask" else wsgi.IdempotencyMiddleware(app, boundary, **{"principal": "shared", **OPTIONS})
    )
    assert wsgi_post(serving, None, method="post", path="/payments").code == "key-missing"


@pytest.mark.slow
@pytest.mark.parametrize("target", ["/payments", "http://shop/payments", "/p%61yments"])
async def test_k6_in_aiohttp(boundary: Boundary, target: str) -> None:
    async def handle(request: web.Request) -> web.Response:
        return web.Response()

    app = web.Application(middlewares=[aiohttp.idempotency(boundary, **{"principal": "shared", **OPTIONS})])
    app.router.add_post("/payments", handle)
    async with TestServer(app) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(f"POST {target} HTTP/1.1\r\nHost: shop\r\nContent-Length: 0\r\n\r\n".encode())
        assert b" 400 " in await reader.readline()
        writer.close()
        await writer.wait_closed()


RULES: Any = {
    "POST /payments": "required",
    "/orders/*/lines": "off",
    "POST /paymets": "required",
    "PUT /payments": "off",
}
NOTHING = {"POST /paymets", "PUT /payments"}


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["starlette", "fastapi", "flask", "aiohttp"])
async def test_a_rule_that_matches_no_route_is_told_once(
    boundary: Boundary, framework: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    for _ in range(2):
        await FRAMEWORKS[framework](boundary)
    told = [str(record.args) for record in caplog.records if "matches no route" in record.getMessage()]
    assert sorted(told) == sorted(str((rule,)) for rule in [*NOTHING, *NOTHING])


async def of_starlette(boundary: Boundary) -> None:
    lines = Mount("/orders", routes=[Route("/{order}/lines", pay, methods=["POST"])])
    app = Starlette(routes=[PAY, lines])
    app.add_middleware(starlette.IdempotencyMiddleware, boundary=boundary, routes=RULES, principal="shared")
    for _ in range(2):
        await post(app, path="/payments")


async def of_fastapi(boundary: Boundary) -> None:
    app, router = FastAPI(), APIRouter()
    router.post("/{order}/lines")(lambda order: order)
    app.include_router(router, prefix="/orders")
    app.post("/payments")(lambda: "paid")
    app.add_middleware(fastapi.IdempotencyMiddleware, boundary=boundary, routes=RULES, principal="shared")
    for _ in range(2):
        await post(app, path="/payments")


async def of_flask(boundary: Boundary) -> None:
    app = Flask("shop")
    app.post("/payments")(lambda: "paid")
    app.post("/orders/<int:order>/lines", endpoint="lines")(lambda order: "lines")
    flask.Idempotency(app, boundary, routes=RULES, principal="shared")
    for _ in range(2):
        app.test_client().post("/payments", headers={"Idempotency-Key": "k"})


async def of_aiohttp(boundary: Boundary) -> None:
    from aiohttp.test_utils import TestClient

    async def handle(request: web.Request) -> web.Response:
        return web.Response()

    app = web.Application(middlewares=[aiohttp.idempotency(boundary, routes=RULES, principal="shared")])
    app.router.add_post("/payments", handle)
    app.router.add_post("/orders/{order}/lines", handle)
    async with TestClient(TestServer(app)) as client:
        for _ in range(2):
            await client.post("/payments", headers={"Idempotency-Key": "k"})


FRAMEWORKS = {"starlette": of_starlette, "fastapi": of_fastapi, "flask": of_flask, "aiohttp": of_aiohttp}
