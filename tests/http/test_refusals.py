"""Refusals of a handler: what it did stays by one that it returns, and is undone by one that it raises."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from fastapi import FastAPI, HTTPException
from fastapi.responses import JSONResponse
from flask import Flask, abort
from litestar import Litestar
from litestar import Response as LitestarResponse
from litestar import post as litestar_post
from litestar.exceptions import HTTPException as LitestarException
from litestar.middleware import DefineMiddleware
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.routing import Route

from retrysafe import Boundary, current
from retrysafe.http import aiohttp as of_aiohttp
from retrysafe.http import fastapi, flask, litestar, starlette, wsgi
from tests.http.gateway import post as wsgi_post
from tests.http.wire import post
from tests.tables import each_row

Ask = Callable[[], Awaitable[tuple[int, bool]]]


BOOKED: list[str] = []


def counting() -> None:
    """The work: a row that a refusal means to leave behind, as the counter of a lock-out is; or a step of a saga."""
    claim = current()
    if claim.tx is None:
        claim.step("book", lambda: BOOKED.append("flight"), undo=lambda _: BOOKED.clear())
    else:
        claim.tx.execute("INSERT INTO failures VALUES (1)")


def of_flask(boundary: Boundary, status: int, *, raises: bool, **options: Any) -> Ask:
    app = Flask("shop")
    flask.Idempotency(app, boundary, principal="shared", **options)

    @app.post("/orders")
    def order() -> Any:
        counting()
        return abort(app.make_response(("no", status))) if raises else ("no", status)

    async def ask() -> tuple[int, bool]:
        answer = app.test_client().post("/orders", headers={"Idempotency-Key": "k"})
        return answer.status_code, "Idempotent-Replayed" in answer.headers

    return ask


def of_asgi(app: Any) -> Ask:
    async def ask() -> tuple[int, bool]:
        answer = await post(app)
        return answer.status, answer.replayed

    return ask


class Inside(BaseHTTPMiddleware):
    """Carries the response over from another task."""

    async def dispatch(self, request: Any, call_next: Any) -> Any:
        return await call_next(request)


def of_starlette(boundary: Boundary, status: int, *, raises: bool, inside: Any = None, **options: Any) -> Ask:
    async def order(request: Any) -> JSONResponse:
        counting()
        if raises:
            raise HTTPException(status)
        return JSONResponse("no", status)

    app = Starlette(routes=[Route("/orders", order, methods=["POST"])])
    if inside is not None:
        app.add_middleware(inside)
    app.add_middleware(starlette.IdempotencyMiddleware, boundary=boundary, principal="shared", **options)
    return of_asgi(app)


def of_starlette_around_another(boundary: Boundary, status: int, *, raises: bool, **options: Any) -> Ask:
    return of_starlette(boundary, status, raises=raises, inside=Inside, **options)


def of_a_starlette_route(boundary: Boundary, status: int, *, raises: bool, **options: Any) -> Ask:
    @starlette.idempotent(boundary, principal="shared", **options)
    async def order(request: Any) -> JSONResponse:
        counting()
        if raises:
            raise HTTPException(status)
        return JSONResponse("no", status)

    return of_asgi(Starlette(routes=[Route("/orders", order, methods=["POST"])]))


def of_fastapi(boundary: Boundary, status: int, *, raises: bool, **options: Any) -> Ask:
    app = FastAPI()
    app.router.route_class = fastapi.Idempotency(boundary, principal="shared", **options).route_class

    @app.post("/orders")
    def order() -> Any:
        counting()
        if raises:
            raise HTTPException(status)
        return JSONResponse("no", status)

    return of_asgi(app)


def of_litestar(boundary: Boundary, status: int, *, raises: bool, plugin: bool = True, **options: Any) -> Ask:
    @litestar_post("/orders", sync_to_thread=False)
    def order() -> LitestarResponse[Any]:
        counting()
        if raises:
            raise LitestarException(status_code=status)
        return LitestarResponse("no", status_code=status)

    given: Any = {"boundary": boundary, "principal": "shared", **options}
    if plugin:
        return of_asgi(
            Litestar(
                [order], plugins=[litestar.IdempotencyPlugin(**{"principal": "shared", **given})], logging_config=None
            )
        )
    middleware: Any = DefineMiddleware(litestar.IdempotencyMiddleware, **{"principal": "shared", **given})
    return of_asgi(Litestar([order], middleware=[middleware], logging_config=None))


def of_litestar_without_plugin(boundary: Boundary, status: int, *, raises: bool, **options: Any) -> Ask:
    return of_litestar(boundary, status, raises=raises, plugin=False, **options)


def of_the_aiohttp(boundary: Boundary, status: int, *, raises: bool, **options: Any) -> Ask:
    class Refused(web.HTTPClientError):
        status_code = status

    async def order(request: web.Request) -> web.Response:
        counting()
        if raises:
            raise Refused
        return web.Response(status=status)

    async def ask() -> tuple[int, bool]:
        app = web.Application(middlewares=[of_aiohttp.idempotency(boundary, principal="shared", **options)])
        app.router.add_post("/orders", order)
        async with TestServer(app) as server, aiohttp.ClientSession() as session:
            url = server.make_url("/orders")
            async with session.post(url, headers={"Idempotency-Key": "k"}) as answer:
                return answer.status, "Idempotent-Replayed" in answer.headers

    return ask


INTEGRATIONS = [
    of_flask, of_starlette, of_starlette_around_another, of_a_starlette_route, of_fastapi,
    of_litestar, of_litestar_without_plugin, of_the_aiohttp,
]  # fmt: skip


@pytest.mark.slow
@each_row("integration", INTEGRATIONS)
@each_row(
    ("status", "raises", "options", "rows", "stored"),
    [
        (400, False, {}, 1, True),
        (400, True, {}, 0, True),
        (403, False, {}, 2, False),
        (403, True, {}, 0, False),
        (400, False, {"refusals": "rollback"}, 0, True),
        (403, False, {"refusals": "rollback"}, 0, False),
        (503, False, {}, 0, False),
        (200, False, {}, 1, True),
        (200, True, {}, 0, True),
        (303, False, {}, 1, True),
        (303, True, {}, 0, True),
    ],
)
async def test_a_refusal_that_is_returned_commits_and_one_that_is_raised_does_not(
    tmp_path: Path, integration: Any, status: int, raises: bool, options: Any, rows: int, stored: bool
) -> None:
    place = tmp_path / f"{integration.__name__}-{status}-{raises}-{len(options)}.db"
    database = sqlite3.connect(place)
    database.execute("CREATE TABLE failures (one)")
    boundary = Boundary(place.stem, store=f"sqlite:///{place}", effects="transactional")
    ask = integration(boundary, status, raises=raises, **options)
    assert [await ask(), await ask()] == [(status, False), (status, stored)]
    if integration is of_the_aiohttp and status < 400:
        rows = 1  # it raises a success in place of returning it
    assert len(database.execute("SELECT * FROM failures").fetchall()) == rows
    database.close()
    await boundary.aclose()


@pytest.mark.slow
@each_row("integration", INTEGRATIONS)
@each_row(
    ("raises", "options", "booked"),
    [(False, {}, ["flight"]), (True, {}, []), (False, {"refusals": "rollback"}, [])],
)
async def test_a_saga_is_undone_by_a_refusal_that_is_raised(
    tmp_path: Path, integration: Any, raises: bool, options: Any, booked: list[str]
) -> None:
    place = tmp_path / f"{integration.__name__}-{raises}-{len(options)}.db"
    boundary = Boundary(place.stem, store=f"sqlite:///{place}", effects="keyed")
    ask = integration(boundary, 409, raises=raises, **options)
    BOOKED.clear()
    assert [await ask(), await ask()] == [(409, False), (409, True)]
    assert booked == BOOKED
    await boundary.aclose()


@pytest.mark.parametrize("refusals", ["commit", "rollback"])
def test_an_answer_of_an_unknown_framework_counts_as_returned(tmp_path: Path, refusals: Any) -> None:
    database = sqlite3.connect(tmp_path / "shop.db")
    database.execute("CREATE TABLE failures (one)")
    boundary = Boundary(f"wsgi {refusals}", store=f"sqlite:///{tmp_path}/shop.db", effects="transactional")

    def app(environ: Any, start_response: Any) -> list[bytes]:
        counting()
        start_response("409 Conflict", [])
        return [b"no"]

    guarded = wsgi.IdempotencyMiddleware(app, boundary, principal="shared", refusals=refusals)
    assert [wsgi_post(guarded).replayed for _ in "12"] == [False, True]
    assert len(database.execute("SELECT * FROM failures").fetchall()) == (refusals == "commit")
    database.close()
    boundary.close()
