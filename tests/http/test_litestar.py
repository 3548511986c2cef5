"""Litestar: the plugin, each handler's own choice, guards and authentication, OpenAPI, restarts."""

from __future__ import annotations

import gzip
from typing import Annotated, Any

import pytest
from litestar import Controller, Litestar, Request, get, post
from litestar.config.compression import CompressionConfig
from litestar.connection import ASGIConnection
from litestar.exceptions import ClientException, NotAuthorizedException
from litestar.handlers import BaseRouteHandler
from litestar.middleware import AbstractAuthenticationMiddleware, AuthenticationResult, DefineMiddleware
from litestar.params import Body, Parameter

from retrysafe import Boundary, ConfigurationError, current
from retrysafe.http.litestar import IdempotencyMiddleware, IdempotencyPlugin
from tests.http.conftest import Place
from tests.http.places import POSTGRESQL_TRANSACTIONAL
from tests.http.wire import Exchanged
from tests.http.wire import post as send

ANN = [("x-user", "ann")]


class ByHeader(AbstractAuthenticationMiddleware):
    async def authenticate_request(self, connection: ASGIConnection[Any, Any, Any, Any]) -> AuthenticationResult:
        name = connection.headers.get("x-user")
        if name is None:
            raise NotAuthorizedException
        return AuthenticationResult(user=name, auth=None)


async def admins(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    if connection.user != "ann":
        raise NotAuthorizedException("not you")


class Shop:
    """An application whose handlers count."""

    def __init__(self, boundary: Boundary, **options: Any) -> None:
        self.runs = 0
        self.errors: list[Exception] = []
        shop = self

        @post("/orders")
        async def create(data: Annotated[dict[str, Any], Body()], request: Request[Any, Any, Any]) -> dict[str, Any]:
            shop.runs += 1
            current()
            if shop.errors:
                raise shop.errors.pop()
            return {**data, "run": shop.runs}

        @post("/off", opt={"idempotency": "off"})
        async def off() -> int:
            shop.runs += 1
            return shop.runs

        @post("/strict", opt={"idempotency": {"need": "required", "key_policy": "uuid"}}, sync_to_thread=True)
        def strict() -> int:
            shop.runs += 1
            current()
            return shop.runs

        @post("/admin", guards=[admins])
        async def admin() -> int:
            shop.runs += 1
            return shop.runs

        class Optional(Controller):
            path = "/optional"
            opt = {"idempotency": "optional"}  # noqa: RUF012 - as Litestar has it

            @post("/{name:str}")
            async def create(self, name: Annotated[str, Parameter()]) -> int:
                shop.runs += 1
                return shop.runs

        @get("/orders")
        async def orders() -> int:
            return shop.runs

        self.app = Litestar(
            [create, off, strict, admin, Optional, orders],
            plugins=[
                IdempotencyPlugin(
                    boundary,
                    **{"required": True, "principal": lambda request: request.user, **options},
                )
            ],
            middleware=[DefineMiddleware(ByHeader, exclude="schema")],
            logging_config=None,
        )

    async def post(self, path: str, key: str | None = "k", **request: Any) -> Exchanged:
        return await send(self.app, key, path=path, **{"headers": ANN, **request})


async def test_r2_a_retry_gets_the_same_response(place: Place) -> None:
    shop = Shop(place.boundary())
    first, again = await shop.post("/orders", body=b'{"a": 1}'), await shop.post("/orders", body=b'{"a": 1}')
    assert (first.status, first.body) == (201, b'{"a":1,"run":1}')
    assert (again.status, again.body, again.replayed, shop.runs) == (201, first.body, True, 1)


async def test_k6_k7_calls_that_need_a_key(place: Place) -> None:
    shop = Shop(place.boundary())
    assert (await shop.post("/orders", None)).code == "key-missing"
    assert (await shop.post("/orders", None, method="GET")).status == 200


async def test_k8_the_principal_is_the_user(place: Place) -> None:
    shop = Shop(place.boundary())
    await shop.post("/orders")
    await shop.post("/orders", headers=[("x-user", "bob")])
    assert shop.runs == 2


async def test_r26_refused_clients_meet_no_key(place: Place) -> None:
    shop = Shop(place.boundary())
    for _ in range(2):
        assert (await shop.post("/orders", headers=[])).status == 401
    assert place.seen.told == []


async def test_a_guard_refuses_without_keeping_the_key(place: Place) -> None:
    shop = Shop(place.boundary())
    bob = [("x-user", "bob")]
    for _ in range(2):
        answer = await shop.post("/admin", headers=bob)
        assert (answer.status, answer.header("idempotent-replayed")) == (401, None)
    assert (await shop.post("/admin")).status == 201


async def test_a_handlers_own_choice_wins(place: Place) -> None:
    shop = Shop(place.boundary())
    assert [(await shop.post("/off")).body for _ in range(2)] == [b"1", b"2"]
    assert (await shop.post("/strict")).code == "key-invalid"
    key = "0b8f7a1e-6a3c-4c57-8d5f-2f1f0e9b7c11"
    assert [(await shop.post("/strict", key)).body for _ in range(2)] == [b"3", b"3"]
    assert [(await shop.post("/optional/a", None)).body for _ in range(2)] == [b"4", b"5"]
    assert [(await shop.post("/optional/a", "other")).body for _ in range(2)] == [b"6", b"6"]


async def test_f6_a_mismatch_is_refused(place: Place) -> None:
    shop = Shop(place.boundary())
    await shop.post("/orders")
    assert (await shop.post("/orders", body=b'{"b": 2}')).code == "key-reused"


async def test_a_4xx_is_stored_and_a_5xx_is_not(place: Place) -> None:
    shop = Shop(place.boundary())
    shop.errors = [LookupError(), ClientException("no")]
    refused, again = await shop.post("/orders", "a"), await shop.post("/orders", "a")
    assert (refused.status, again.status, again.replayed, shop.runs) == (400, 400, True, 1)
    failed, second = await shop.post("/orders", "b"), await shop.post("/orders", "b")
    assert (failed.status, second.status, shop.runs) == (500, 201, 3)


@POSTGRESQL_TRANSACTIONAL
async def test_the_request_is_run_again_when_the_database_wants_it(place: Place) -> None:
    from psycopg.errors import SerializationFailure

    shop = Shop(place.boundary())
    shop.errors = [SerializationFailure(), SerializationFailure()]
    answer = await shop.post("/orders")
    assert (answer.status, shop.runs) == (201, 3)


async def test_the_middleware_alone(place: Place) -> None:
    runs: list[int] = []

    @post(
        "/orders", middleware=[DefineMiddleware(IdempotencyMiddleware, boundary=place.boundary(), principal="shared")]
    )  # type: ignore[arg-type]
    async def create() -> int:
        runs.append(1)
        return len(runs)

    app = Litestar([create], logging_config=None)
    assert [(await send(app)).body for _ in range(2)] == [b"1", b"1"]


def test_e4_r29_openapi_shows_guarded_handlers() -> None:
    paths = Shop(Boundary("shop", store="memory://", window="36h")).app.openapi_schema.to_schema()["paths"]
    operation = paths["/orders"]["post"]
    [header] = [one for one in operation["parameters"] if one["name"] == "Idempotency-Key"]
    assert header["required"] is True
    assert {"201", "400", "403", "409", "422", "503"} <= operation["responses"].keys()
    assert operation["responses"]["400"]["content"].keys() == {"application/json", "application/problem+json"}
    assert operation["x-idempotency"]["window"] == 36 * 3600
    assert "x-idempotency" not in paths["/off"]["post"]
    assert "x-idempotency" not in paths["/orders"]["get"]
    assert paths["/optional/{name}"]["post"]["x-idempotency"]["required"] is False


def test_an_option_that_is_none_is_refused_when_the_application_is_made() -> None:
    @post("/x", opt={"idempotency": "maybe"})
    async def handle() -> None: ...

    with pytest.raises(ConfigurationError, match="maybe"):
        Litestar([handle], plugins=[IdempotencyPlugin(Boundary("shop", store="memory://"), principal="shared")])


async def test_r26_compression_comes_around_the_claim(place: Place) -> None:
    @post("/text")
    async def text() -> str:
        return "x" * 1000

    app = Litestar(
        [text],
        plugins=[IdempotencyPlugin(place.boundary(), principal="shared")],
        compression_config=CompressionConfig(backend="gzip"),
        logging_config=None,
    )
    packed = await send(app, "k", path="/text", headers=[("accept-encoding", "gzip")])
    plain = await send(app, "k", path="/text", headers=[("accept-encoding", "identity")])
    assert (packed.header("content-encoding"), gzip.decompress(packed.body)) == ("gzip", b"x" * 1000)
    assert (plain.header("content-encoding"), plain.body, plain.replayed) == (None, b"x" * 1000, True)
