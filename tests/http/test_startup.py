"""A store that cannot be used is found when an application starts, and each refused request names the command."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from fastapi import APIRouter, FastAPI
from litestar import Litestar, post
from litestar.testing import TestClient as LitestarClient
from sqlalchemy import create_engine
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from retrysafe import Boundary, SchemaOutdated, StoreMisconfigured, StoreUnavailable
from retrysafe.http.aiohttp import idempotency
from retrysafe.http.asgi import IdempotencyMiddleware
from retrysafe.http.fastapi import Idempotency
from retrysafe.http.litestar import IdempotencyPlugin
from retrysafe.http.starlette import IdempotencyMiddleware as StarletteMiddleware
from retrysafe.webhooks.answers import answer_of
from tests.ports import free_port


@pytest.fixture
def unmigrated(tmp_path: Path) -> Boundary:
    """A boundary on a store whose tables were dropped after it was built: as on a server without `migrate`."""
    boundary = Boundary("shop", store=f"sqlite:///{tmp_path / 'shop.db'}", observers=())
    backend = boundary.entrypoint.backend
    with backend.client().transaction() as opened:
        opened.handle.execute("DROP TABLE retrysafe_schema")
    return boundary


class Life:
    """An application whose start and end are counted."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    @asynccontextmanager
    async def lifespan(self, app: Any) -> AsyncIterator[None]:
        self.seen.append("started")
        yield
        self.seen.append("ended")


async def order(request: Request) -> PlainTextResponse:
    return PlainTextResponse("done")


ROUTES = [Route("/orders", order, methods=["POST"])]


def starlette(boundary: Boundary, life: Life) -> Any:
    app = Starlette(routes=ROUTES, lifespan=life.lifespan)
    app.add_middleware(StarletteMiddleware, boundary=boundary, principal="shared")
    return app


def plain(boundary: Boundary, life: Life) -> Any:
    return IdempotencyMiddleware(Starlette(routes=ROUTES, lifespan=life.lifespan), boundary, principal="shared")


@pytest.mark.parametrize("make", [starlette, plain])
def test_an_asgi_application_does_not_start_without_tables(make: Any, unmigrated: Boundary) -> None:
    life = Life()
    with pytest.raises(SchemaOutdated, match=r"retrysafe migrate --store sqlite:///"):
        TestClient(make(unmigrated, life)).__enter__()
    assert life.seen == ["started", "ended"]


@pytest.mark.parametrize("make", [starlette, plain])
def test_an_application_that_migrates_at_its_start_starts(make: Any, unmigrated: Boundary) -> None:
    class Migrating(Life):
        @asynccontextmanager
        async def lifespan(self, app: Any) -> AsyncIterator[None]:
            with unmigrated.entrypoint.backend.client().transaction() as opened:
                opened.handle.execute("CREATE TABLE retrysafe_schema (version INTEGER, name TEXT)")
                opened.handle.execute("INSERT INTO retrysafe_schema VALUES (99, 'all')")
            async with super().lifespan(app):
                yield

    life = Migrating()
    with TestClient(make(unmigrated, life)) as client:
        assert client.post("/orders").status_code == 200
    assert life.seen == ["started", "ended"]


@pytest.mark.slow
@pytest.mark.parametrize("make", [starlette, plain])
def test_an_application_starts_while_its_store_is_down(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    life = Life()
    boundary = Boundary("shop", store=f"postgresql://shop@127.0.0.1:{free_port()}/shop", observers=())
    with TestClient(make(boundary, life)) as client:
        assert client.post("/orders").status_code == 200
    assert [(record.levelname, record.name) for record in caplog.records if record.name == "retrysafe"] == [
        ("WARNING", "retrysafe")
    ]


def test_litestar_does_not_start_without_tables(unmigrated: Boundary) -> None:
    @post("/orders")
    async def create() -> str:
        return "done"

    app = Litestar([create], plugins=[IdempotencyPlugin(unmigrated, principal="shared")], logging_config=None)
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - it comes in a group
        LitestarClient(app).__enter__()
    assert "retrysafe migrate --store" in "".join(map(str, leaves_of(caught.value)))


@pytest.mark.parametrize("of", ["router", "application"])
def test_fastapi_with_a_guarded_router_does_not_start_without_tables(of: str, unmigrated: Boundary) -> None:
    guard = Idempotency(unmigrated, principal="shared")
    at_start = {of: guard.lifespan}
    router = APIRouter(route_class=guard.route_class, lifespan=at_start.get("router"))
    app = FastAPI(lifespan=at_start.get("application"))
    app.include_router(router)
    with pytest.raises(SchemaOutdated, match=r"retrysafe migrate --store sqlite:///"):
        TestClient(app).__enter__()


def test_fastapi_migrates_before_its_router_looks(unmigrated: Boundary) -> None:
    @asynccontextmanager
    async def migrating(app: Any) -> AsyncIterator[None]:
        with unmigrated.entrypoint.backend.client().transaction() as opened:
            opened.handle.execute("CREATE TABLE retrysafe_schema (version INTEGER, name TEXT)")
            opened.handle.execute("INSERT INTO retrysafe_schema VALUES (99, 'all')")
        yield

    guard = Idempotency(unmigrated, principal="shared")
    app = FastAPI(lifespan=migrating)
    app.include_router(APIRouter(route_class=guard.route_class, lifespan=guard.lifespan))
    with TestClient(app) as client:
        assert client.get("/openapi.json").status_code == 200


async def test_aiohttp_does_not_start_without_tables(unmigrated: Boundary) -> None:
    async def check(app: web.Application) -> None:
        await unmigrated.acheck()

    app = web.Application(middlewares=[idempotency(unmigrated, principal="shared")])
    app.on_startup.append(check)
    with pytest.raises(SchemaOutdated, match=r"retrysafe migrate --store sqlite:///"):
        await web.AppRunner(app).setup()


def leaves_of(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in leaves_of(inner)]
    return [error]


def test_a_request_to_a_store_without_tables_is_a_problem_of_its_own(
    unmigrated: Boundary, caplog: pytest.LogCaptureFixture
) -> None:
    answer = TestClient(plain(unmigrated, Life())).post("/orders", headers={"Idempotency-Key": '"k"'})
    assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (
        503,
        "store-not-migrated",
        "60",
    )
    assert "Nothing was done" in answer.json()["detail"]
    assert "sqlite" not in answer.text, "what concerns the server stays there"
    assert answer.json().keys().isdisjoint({"key_hash", "operator_command"}), "no store has the key"
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.name == "retrysafe"
    assert "Run:  retrysafe migrate --store sqlite:///" in record.getMessage()
    assert "keys show" not in record.getMessage()


def test_a_request_to_a_store_that_refuses_us_is_a_problem_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    boundary = Boundary("shop", store="redis://127.0.0.1:6379/0", observers=())
    guard = IdempotencyMiddleware(None, boundary, principal="shared").guard  # type: ignore[arg-type]
    refusal = guard.refusal(StoreMisconfigured("WRONGPASS. Correct the user and the password in store=."))
    assert (refusal.code, guard.answer(refusal).status) == ("store-misconfigured", 503)
    [record] = caplog.records
    assert (record.levelno, "Correct the user" in record.getMessage()) == (logging.ERROR, True)


def test_a_webhook_to_a_store_without_tables_is_logged_with_the_command(caplog: pytest.LogCaptureFixture) -> None:
    answer = answer_of(SchemaOutdated("Run:  retrysafe migrate --store X"), 409)
    assert answer is not None
    assert (answer.status, dict(answer.headers)[b"retry-after"]) == (503, b"60")
    assert b"store-not-migrated" in (answer.body or b"")
    [record] = caplog.records
    assert (record.levelno, "retrysafe migrate --store X" in record.getMessage()) == (logging.ERROR, True)


UNCONFIGURED = """
from retrysafe.errors import SchemaOutdated
from retrysafe.http.problems import report
import retrysafe

retrysafe.LoggingObserver()
report("store-not-migrated", SchemaOutdated("Run:  retrysafe migrate --store X"))
"""


@pytest.mark.slow
def test_the_error_is_seen_where_nobody_set_logging_up() -> None:
    done = subprocess.run([sys.executable, "-c", UNCONFIGURED], capture_output=True, text=True, check=True)
    assert "retrysafe migrate --store X" in done.stderr


def test_unprotected_routes_by_mistake_are_an_error(caplog: pytest.LogCaptureFixture) -> None:
    boundary = Boundary("shop", store="memory://", observers=())
    guard = IdempotencyMiddleware(None, boundary, on_store_error="open", principal="shared").guard  # type: ignore[arg-type]
    assert guard.passes(StoreUnavailable("down"))
    assert caplog.records == []
    assert guard.passes(StoreMisconfigured("wrong password"))
    assert not guard.passes(SchemaOutdated("no tables"))
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_a_boundary_is_checked_on_request(unmigrated: Boundary) -> None:
    with pytest.raises(SchemaOutdated, match="retrysafe migrate"):
        unmigrated.check()


async def test_a_boundary_on_a_sync_engine_is_checked_from_a_loop(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    boundary = Boundary("shop", store=engine, observers=())
    await boundary.acheck()
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE retrysafe_schema")
    engine.dispose()
    await boundary.acheck()  # once per process is enough
    boundary.close()
