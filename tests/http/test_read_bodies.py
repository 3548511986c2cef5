"""Bodies that somebody in front of the guard has read: taken from where they are kept, or the request is refused."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from litestar import Litestar
from litestar import Request as LitestarRequest
from litestar import post as litestar_post
from litestar.middleware import DefineMiddleware
from litestar.middleware.logging import LoggingMiddlewareConfig
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from retrysafe import Boundary, ConfigurationError
from retrysafe.http import aiohttp as of_aiohttp
from retrysafe.http import starlette
from retrysafe.http.asgi import IdempotencyMiddleware
from retrysafe.http.litestar import IdempotencyPlugin
from tests.http.wire import post
from tests.tables import each_row

FORM = [("content-type", "multipart/form-data; boundary=b")]
UPLOAD = b'--b\r\nContent-Disposition: form-data; name="f"; filename="f"\r\n\r\n%b\r\n--b--\r\n'


@pytest.fixture
def boundary() -> Any:
    with_bodies = Boundary("bodies", store="memory://")
    level = logging.getLogger().level
    yield with_bodies
    logging.getLogger().setLevel(level)  # Litestar lets everybody log
    with_bodies.close()


async def test_r37_the_request_log_of_litestar_keeps_the_body(boundary: Boundary) -> None:
    @litestar_post("/orders")
    async def order(request: LitestarRequest[Any, Any, Any]) -> dict[str, int]:
        return await request.json()  # type: ignore[no-any-return]

    app = Litestar(
        [order],
        middleware=[LoggingMiddlewareConfig().middleware],
        plugins=[IdempotencyPlugin(boundary, principal="shared")],
    )
    answers = [await post(app, body=body) for body in (b'{"a": 5}', b'{"a": 5}', b'{"a": 6}')]
    assert [(one.status, one.replayed) for one in answers] == [(201, False), (201, True), (422, False)]


async def test_r37_a_form_of_litestar_whose_bytes_are_gone_is_refused(boundary: Boundary) -> None:
    class Parsing:
        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            form = await scope["litestar_app"].request_class(scope, receive).form()
            try:
                await self.app(scope, receive, send)
            finally:
                await form.close()

    @litestar_post("/orders")
    async def order() -> str:
        return "placed"

    middleware: Any = DefineMiddleware(Parsing)
    plugin = IdempotencyPlugin(boundary, principal="shared")
    app = Litestar([order], middleware=[middleware], plugins=[plugin], logging_config=None, debug=True)
    refused = await post(app, headers=FORM, body=UPLOAD % b"one")
    assert (refused.status, b"whose bytes" in refused.body) == (500, True)
    assert (await post(app, None, headers=FORM, body=UPLOAD % b"one")).status == 201, (
        "without a key nothing is compared"
    )


Reading = Callable[[web.Request], Any]


async def whole_form(request: web.Request) -> None:
    await request.post()


async def whole_body(request: web.Request) -> None:
    await request.read()


async def part_by_part(request: web.Request) -> None:
    async for part in await request.multipart():
        await part.read()


@pytest.mark.slow
@each_row(
    ("reading", "statuses"),
    [(whole_form, [201, 201, 422, 422]), (whole_body, [201, 201, 422, 422]), (part_by_part, [500] * 4)],
)
async def test_r37_uploads_that_a_middleware_of_aiohttp_has_read(reading: Reading, statuses: list[int]) -> None:
    boundary, stored = Boundary(f"read by {reading.__name__}", store="memory://"), []

    @web.middleware
    async def in_front(request: web.Request, handler: Any) -> Any:
        await reading(request)
        return await handler(request)

    async def upload(request: web.Request) -> web.Response:
        invoice: Any = (await request.post())["invoice"]
        stored.append(invoice.file.read())
        return web.Response(status=201)

    app = web.Application(middlewares=[in_front, of_aiohttp.idempotency(boundary, principal="shared")])
    app.router.add_post("/invoices", upload)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        got = []
        for content, number in ((b"ann", "1"), (b"ann", "1"), (b"bob", "1"), (b"ann", "2")):
            form = aiohttp.FormData({"number": number})
            form.add_field("invoice", io.BytesIO(content), filename="invoice.txt")
            url = server.make_url("/invoices")
            async with session.post(url, data=form, headers={"Idempotency-Key": "k"}) as answer:
                got.append(answer.status)
    assert got == statuses
    assert stored == ([b"ann"] if 201 in statuses else [])
    await boundary.aclose()


async def test_r37_a_body_that_was_declared_and_does_not_come_is_never_taken_for_empty(boundary: Boundary) -> None:
    class Streaming(BaseHTTPMiddleware):
        async def dispatch(self, request: Any, call_next: Any) -> Any:
            async for _ in request.stream():
                pass
            return await call_next(request)

    async def order(request: Any) -> PlainTextResponse:
        return PlainTextResponse("placed")

    app = Starlette(routes=[Route("/orders", order, methods=["POST"])])
    app.add_middleware(starlette.IdempotencyMiddleware, boundary=boundary, principal="shared")
    app.add_middleware(Streaming)
    with pytest.raises(ConfigurationError, match="nothing of it was left"):
        await post(app, headers=[("content-length", "2")])
    assert (await post(app, headers=[("content-length", "0")], body=b"")).status == 200


async def test_f3_json_is_compared_by_its_meaning_at_any_size(boundary: Boundary) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await PlainTextResponse("placed")(scope, receive, send)

    guarded = IdempotencyMiddleware(app, boundary, principal="shared", canonical_json=True, body_memory=1 << 10)
    large = b'"%b"' % (b"x" * (1 << 12))
    bodies = (b'{"a":1,"b":%b}' % large, b'{"b": %b, "a": 1.0}' % large, b'{"b": %b, "a": 2}' % large)
    answers = [await post(guarded, body=body) for body in bodies]
    assert [(one.status, one.replayed) for one in answers] == [(200, False), (200, True), (422, False)]
