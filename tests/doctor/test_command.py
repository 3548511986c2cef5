"""The command line, waivers, start-up, brokers, applications, and the registry."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from fastapi import APIRouter, Depends, FastAPI
from flask import Flask
from litestar import Litestar
from litestar import post as litestar_post
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from retrysafe import Boundary, ConfigurationError
from retrysafe.backends.registry import connect
from retrysafe.doctor import check_at_start, diagnose, registry
from retrysafe.doctor.waivers import Waiver
from retrysafe.http import aiohttp, fastapi, flask, litestar, starlette
from retrysafe.http.policy import policy
from retrysafe.protocol.events import Event
from tests.docs.pages import ROOT

Made = Callable[..., Boundary]


@pytest.fixture
def boundary(tmp_path: Path) -> Iterator[Made]:
    made: list[Boundary] = []

    def make(name: str = "doctored", **terms: Any) -> Boundary:
        made.append(Boundary(name, store=f"sqlite:///{tmp_path}/shop.db", **{"observers": (), **terms}))
        return made[-1]

    yield make
    for one in made:
        one.close()


def ids(**asked: Any) -> list[str]:
    return [one.id for one in diagnose(app=object(), **asked) if one.subject == "boundary doctored"]


# ------------------------------------------------------------ boundaries


def test_a_window_that_is_shorter_than_clients_retry(boundary: Made) -> None:
    boundary(window="24h")
    assert ids(retried_for="72h") == ["boundary-window"]
    assert ids(retried_for="24h") == []


def test_a_lease_and_effects_that_end_in_doubt(boundary: Made) -> None:
    boundary(lease="2s", effects="external")
    assert ids() == ["boundary-lease", "boundary-unknown"]


def test_an_operation_that_has_its_functions_name(boundary: Made) -> None:
    charges = boundary()

    @charges.once(key="order")
    def charge(order: str) -> None: ...

    @charges.once(key="order", operation="refund")
    def refund(order: str) -> None: ...

    said = [one for one in diagnose(app=object()) if one.id == "boundary-unnamed-operation"]
    assert [one.evidence for one in said if "charge" in one.evidence] != []
    assert all("refund" not in one.evidence for one in said)


# ------------------------------------------------------------ routes


async def handler(request: Request) -> JSONResponse:
    return JSONResponse({})


@policy("off")
async def harmless(request: Request) -> JSONResponse:
    return JSONResponse({})


class Refunds(HTTPEndpoint):
    async def post(self, request: Request) -> JSONResponse:
        return JSONResponse({})


def routes_of(app: object) -> list[str]:
    return [one.evidence for one in diagnose(app=app) if one.id == "application-route"]


def test_routes_that_nothing_guards_in_starlette(boundary: Made) -> None:
    payments = boundary()
    routes = [
        Route("/payments", handler, methods=["POST"]),
        Route("/search", harmless, methods=["POST"]),
        Route("/orders", starlette.idempotent(payments, principal="shared")(handler), methods=["POST"]),
        Route("/orders", handler, methods=["GET"]),
        Route("/refunds", Refunds),
        Mount("/admin", routes=[Route("/users/{id}", handler, methods=["PATCH"])]),
    ]
    app = Starlette(routes=routes)
    assert routes_of(app) == ["Nothing guards POST /payments, POST /refunds, PATCH /admin/users/{id}."]
    app.add_middleware(starlette.IdempotencyMiddleware, boundary=payments, principal="shared")
    assert routes_of(app) == []


def test_dependencies_of_fastapi_that_end_after_the_response(boundary: Made) -> None:
    def session() -> Iterator[None]:
        yield

    async def audit() -> AsyncIterator[None]:
        yield

    def places(late: None = Depends(audit)) -> None: ...

    def app(*dependencies: Any, method: str = "POST") -> FastAPI:
        made = FastAPI()
        guard = fastapi.Idempotency(boundary(shared=True), principal="shared", methods=[method])
        router = APIRouter(route_class=guard.route_class)

        @router.api_route("/orders", methods=[method], dependencies=dependencies)
        def order() -> None: ...

        made.include_router(router, prefix="/shop")
        made.post("/unguarded", dependencies=[Depends(session)])(lambda: None)
        return made

    def told(app: FastAPI) -> list[str]:
        return [one.evidence for one in diagnose(app=app) if one.id == "application-late-dependency"]

    (late,) = told(app(Depends(session), Depends(places)))
    names = [f"{function.__module__}.{function.__qualname__}" for function in (session, audit)]
    assert late.endswith(f"POST /shop/orders: {names[0]}, {names[1]}.")
    assert told(app(Depends(session, scope="function"), Depends(lambda: None))) == []
    assert told(app(Depends(session), method="PUT"))


def test_late_hooks_of_litestar_that_write(boundary: Made) -> None:
    async def commit_session(message: object, scope: object) -> None: ...

    async def add_headers(message: object, scope: object) -> None: ...

    @litestar_post("/orders", sync_to_thread=False)
    def order() -> None: ...

    guard = litestar.IdempotencyPlugin(boundary(), principal="shared")
    app = Litestar([order], plugins=[guard], before_send=[commit_session, add_headers], logging_config=None)
    (told,) = [one.evidence for one in diagnose(app=app) if one.id == "application-late-dependency"]
    assert told.endswith("POST /orders: test_late_hooks_of_litestar_that_write.<locals>.commit_session.")


def test_routes_that_nothing_guards_in_litestar(boundary: Made) -> None:
    def app(**options: Any) -> Litestar:
        @litestar_post("/payments", sync_to_thread=False)
        def pay() -> None: ...

        @litestar_post("/search", opt={"idempotency": "off"}, sync_to_thread=False)
        def search() -> None: ...

        return Litestar([pay, search], logging_config=None, **options)

    assert routes_of(app()) == ["Nothing guards POST /payments."]
    assert routes_of(app(plugins=[litestar.IdempotencyPlugin(boundary(), principal="shared")])) == []


def test_routes_that_nothing_guards_in_aiohttp(boundary: Made) -> None:
    async def serve(request: web.Request) -> web.Response:
        return web.Response()

    @policy("off")
    async def search(request: web.Request) -> web.Response:
        return web.Response()

    def app(**options: Any) -> web.Application:
        made, below = web.Application(**options), web.Application()
        made.router.add_post("/payments", serve)
        made.router.add_get("/payments", serve)
        made.router.add_patch("/orders", aiohttp.idempotent(payments, principal="shared")(serve))
        made.router.add_post("/search", search)
        below.router.add_post("/users", serve)
        made.add_subapp("/admin", below)
        return made

    payments = boundary()
    assert routes_of(app()) == ["Nothing guards POST /payments, POST /admin/users."]
    assert routes_of(app(middlewares=[aiohttp.idempotency(payments, principal="shared")])) == []


def test_routes_that_nothing_guards_in_flask(boundary: Made) -> None:
    app = Flask("shop")
    app.post("/payments")(lambda: "")
    assert routes_of(app) == ["Nothing guards POST /payments."]
    flask.Idempotency(app, boundary(), principal="shared")
    assert routes_of(app) == []


# ------------------------------------------------------------ the command


@pytest.fixture
def broken(tmp_path: Path) -> str:
    """A store without an index."""
    url = f"sqlite:///{tmp_path}/broken.db"
    connect(url)
    with closing(sqlite3.connect(tmp_path / "broken.db")) as connection:
        connection.execute("DROP INDEX retrysafe_records_tombstone")
        connection.commit()
    return url


def test_a_table_that_was_not_needed_yet_misses_no_index(tmp_path: Path, command: Any) -> None:
    connect(f"sqlite:///{tmp_path}/fresh.db")
    done = command("doctor", "--store", f"sqlite:///{tmp_path}/fresh.db", "--json")
    assert (done.code, done.out) == (0, "")


@pytest.mark.slow
def test_json_and_exit_codes(broken: str, command: Any) -> None:
    done = command("doctor", "--store", broken, "--json")
    assert done.code == 1
    said = json.loads(done.out)
    assert said["id"] == "sqlite-indexes"
    assert said["evidence"] == "Missing: retrysafe_records_tombstone."
    assert command("doctor", "--store", broken, "--fail-on", "error").code == 0
    assert command("doctor").code == 2
    assert "sqlite-indexes: " in command("doctor", "--list").out


def test_the_four_answers_of_each_boundary_are_shown(boundary: Made, command: Any) -> None:
    boundary(window="2h")
    said = command("doctor", "--app", "os:path").out.partition("\nboundary     doctored\n")[2].splitlines()[:4]
    assert [line.split()[0] for line in said] == ["state", "window", "concurrency", "effects"]
    assert "7200 s" in said[1]


def test_a_waiver_holds_until_its_day(broken: str, command: Any, tmp_path: Path) -> None:
    waivers = tmp_path / "waivers.toml"

    def code(until: str, **fields: str) -> int:
        given = {"id": "sqlite-indexes", "reason": "being rebuilt", **fields}
        lines = [f'{name} = "{value}"' for name, value in given.items()]
        waivers.write_text("\n".join(["[[waiver]]", *lines, until]), encoding="utf-8")
        done: int = command("doctor", "--store", broken, "--waivers", str(waivers)).code
        return done

    assert code("until = 2999-01-01") == 0
    assert code("until = 2020-01-01") == 1
    assert code("until = 2999-01-01", subject="postgresql:*") == 1
    assert code("") == 2
    assert code("until = 2999-01-01", reason="") == 2
    assert code("until = 2999-01-01", id="nonsense") == 2


def test_a_process_can_refuse_to_start(tmp_path: Path) -> None:
    missing = f"sqlite:///{tmp_path}/absent.db"
    assert "store-unreachable" in [one.id for one in check_at_start(stores=[missing])]
    with pytest.raises(ConfigurationError, match="store-unreachable"):
        check_at_start(stores=[missing], refuse=True)


def test_a_metric_has_the_findings_of_each_severity_but_waived_ones(tmp_path: Path) -> None:
    told: list[Event] = []
    waiver = Waiver("store-unreachable", "*", "it is being set up", date(2999, 1, 1))
    missing = f"sqlite:///{tmp_path}/absent.db"
    check_at_start(stores=[missing], observers=[told.append])
    check_at_start(stores=[missing], observers=[told.append], waivers=[waiver])
    assert {event.name for event in told} == {"doctor_examined"}
    first, second = ({one.fields["severity"]: one.fields["findings"] for one in half} for half in (told[:3], told[3:]))
    assert [*first] == [*second] == ["error", "warning", "note"]
    assert {name: first[name] - second[name] for name in first} == {"error": 1, "warning": 0, "note": 0}
    assert "store-unreachable" in told[0].fields["checks"]
    assert "store-unreachable" not in told[3].fields["checks"]


# ------------------------------------------------------------ the registry


def test_every_check_has_an_id_of_its_own_and_a_page() -> None:
    seen = [check for _, found in registry.groups() for check in found]
    assert len({check.id for check in seen}) == len(seen)
    for check in seen:
        assert (ROOT / "docs" / check.page).exists(), check.id
        assert check.asks.endswith("?"), check.id
