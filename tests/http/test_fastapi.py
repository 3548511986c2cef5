"""FastAPI: routers, routes, dependencies, OpenAPI; the shared session; on sync and async sessionmakers."""

from __future__ import annotations

import asyncio
import copy as copy_module
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import fastapi.routing
import pytest
import sqlalchemy
from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI, Header, HTTPException, Request, Response
from fastapi.responses import JSONResponse, RedirectResponse, StreamingResponse
from pydantic import BaseModel
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from retrysafe import Boundary, Claim, ConfigurationError, current
from retrysafe.backends.registry import connect
from retrysafe.http.fastapi import Idempotency, IdempotencyMiddleware, policy
from retrysafe.http.problems import PROBLEMS
from tests.http.conftest import Place
from tests.http.observing import Recorder
from tests.http.wire import Exchanged, post
from tests.tables import each_row

copied = pytest.mark.skipif(
    not hasattr(fastapi.routing, "iter_route_contexts"), reason="this FastAPI copies the routes of included routers"
)


class Order(BaseModel):
    item: str


ORDER = b'{"item": "tea"}'


async def account(x_user: Annotated[str | None, Header()] = None) -> str:
    if x_user is None:
        raise HTTPException(401, "who are you?")
    return x_user


ANN = [("x-user", "ann")]


class Shop:
    """An application with one guarded router, which counts what its handlers do."""

    def __init__(self, boundary: Boundary, *, principal: Any = account, prefix: str = "/shop", **options: Any) -> None:
        self.runs: list[str] = []
        self.idempotency = Idempotency(boundary, principal=principal, **options)
        self.router = router = APIRouter(route_class=self.idempotency.route_class)

        @router.post("/orders", status_code=201)
        async def create(order: Order, claim: Claim = Depends(self.idempotency.claim)) -> dict[str, Any]:
            self.runs.append(order.item)
            assert claim is current()
            if order.item == "none":
                raise HTTPException(404, "there is none")
            if order.item == "broken":
                raise LookupError("broken")
            return {"item": order.item, "run": len(self.runs)}

        @router.post("/sync")
        def create_sync(order: Order) -> dict[str, Any]:
            self.runs.append(current().key_for("bank"))
            return {"run": len(self.runs)}

        @router.get("/orders")
        async def orders() -> list[str]:
            return self.runs

        @router.post("/off")
        @policy("off")
        async def off() -> int:
            self.runs.append("off")
            return len(self.runs)

        @router.post("/optional")
        @policy("optional", key_policy="uuid")
        async def optional(request: Request) -> int:
            self.runs.append("optional")
            return len(self.runs)

        self.app = FastAPI()
        self.app.include_router(router, prefix=prefix)

    async def post(self, path: str, key: str | None = "k", **request: Any) -> Exchanged:
        request.setdefault("headers", ANN)
        request.setdefault("body", ORDER)
        return await post(self.app, key, path=f"/shop{path}", **request)


# ---------------------------------------------------------------- routes


@pytest.mark.parametrize("path", ["/orders", "/sync"])
async def test_r2_a_retry_gets_the_same_response(place: Place, path: str) -> None:
    shop = Shop(place.boundary())
    first, again = await shop.post(path), await shop.post(path)
    assert (again.status, again.body, again.replayed, len(shop.runs)) == (first.status, first.body, True, 1)
    assert first.header("idempotent-replayed") is None


async def test_k6_a_declared_route_wants_a_key(place: Place) -> None:
    shop = Shop(place.boundary())
    assert (await shop.post("/orders", None)).code == "key-missing"
    assert shop.runs == []


async def test_k7_other_methods_of_the_router_pass(place: Place) -> None:
    shop = Shop(place.boundary())
    assert (await shop.post("/orders", None, method="GET")).status == 200
    assert (await shop.post("/orders", None, method="PATCH")).status == 405


async def test_k8_the_principal_is_a_dependency(place: Place) -> None:
    shop = Shop(place.boundary())
    ann, bob = await shop.post("/orders"), await shop.post("/orders", headers=[("x-user", "bob")])
    assert (ann.status, bob.status, len(shop.runs)) == (201, 201, 2)
    assert (await shop.post("/orders")).body == ann.body


async def test_r26_refused_clients_meet_no_key(place: Place) -> None:
    shop = Shop(place.boundary())
    for _ in range(2):
        answer = await shop.post("/orders", headers=[])
        assert (answer.status, answer.body) == (401, b'{"detail":"who are you?"}')
    assert (place.seen.told, shop.runs) == ([], [])


async def test_k8_a_principal_of_nobody_is_refused(place: Place) -> None:
    async def nobody() -> None: ...

    shop = Shop(place.boundary(), principal=nobody)
    assert (await shop.post("/orders")).code == "principal-missing"


@each_row("is_async", [True, False])
async def test_a_tenant_is_set_by_an_async_dependency_before_the_claim(is_async: bool) -> None:
    tenant: ContextVar[str | None] = ContextVar("tenant", default=None)

    async def know(x_tenant: Annotated[str, Header()]) -> None:
        tenant.set(x_tenant)

    def know_in_a_thread(x_tenant: Annotated[str, Header()]) -> None:
        tenant.set(x_tenant)

    boundary = Boundary("tenants", store="memory://", scope=tenant.get, observers=())
    route_class = Idempotency(boundary, principal="shared").route_class
    router = APIRouter(route_class=route_class, dependencies=[Depends(know if is_async else know_in_a_thread)])

    @router.post("/orders")
    async def create() -> str | None:
        return tenant.get()

    app = FastAPI()
    app.include_router(router)
    if is_async:
        for name in ("blue", "green", "blue"):
            answer = await post(app, key="k", headers=[("x-tenant", name)], path="/orders")
            assert answer.body == f'"{name}"'.encode()
    else:
        with pytest.raises(
            ConfigurationError, match=r"a sync dependency of FastAPI sets .* Make the dependency async def"
        ):
            await post(app, key="k", headers=[("x-tenant", "blue")], path="/orders")
    await boundary.aclose()


async def test_shared_keys_are_one_space(place: Place) -> None:
    shop = Shop(place.boundary(), principal="shared")
    assert (await shop.post("/orders", headers=[])).status == 201
    assert (await shop.post("/orders", headers=[])).replayed


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("where", ["route", "router", "include", "outer", "outer include", "application"])
async def test_r26_a_replay_too_is_given_only_to_whom_every_dependency_lets_in(
    place: Place, where: str, shared: bool
) -> None:
    def here(name: str) -> list[Any] | None:
        return [Depends(account)] if name == where else None

    async def anybody() -> str:
        return "anybody"

    idempotency = Idempotency(place.boundary(), principal="shared" if shared else anybody)
    router = APIRouter(route_class=idempotency.route_class, dependencies=here("router"))

    @router.post("/orders", dependencies=here("route"))
    async def create() -> int:
        return 1

    outer, app = APIRouter(dependencies=here("outer")), FastAPI(dependencies=here("application"))
    outer.include_router(router, dependencies=here("include"))
    app.include_router(outer, dependencies=here("outer include"))
    assert [(await post(app, headers=headers)).status for headers in (ANN, ANN, [])] == [200, 200, 401]


async def test_routes_of_an_idempotency_are_compared_with_the_whole_path(place: Place) -> None:
    idempotency = Idempotency(
        place.boundary(), routes={"POST /v1/orders": "required", "/**": "off"}, principal="shared"
    )
    router = APIRouter(route_class=idempotency.route_class)
    runs: list[int] = []

    @router.post("/orders")
    async def create() -> int:
        runs.append(1)
        return len(runs)

    app = FastAPI()
    app.include_router(router, prefix="/v1")
    assert (await post(app, None, path="/v1/orders")).code == "key-missing"
    assert [(await post(app, path="/v1/orders")).body for _ in range(2)] == [b"1", b"1"]


@copied
async def test_a_policy_above_the_decorator_of_the_router_is_refused(place: Place) -> None:
    idempotency = Idempotency(place.boundary(), required=False, principal="shared")
    router = APIRouter(route_class=idempotency.route_class)

    @policy("required")
    @router.post("/orders")
    async def create() -> int:
        return 1

    app = FastAPI()
    app.include_router(router)
    with pytest.raises(ConfigurationError, match="beneath"):
        await post(app, None)


async def test_an_overridden_principal_counts(place: Place) -> None:
    shop = Shop(place.boundary())
    shop.app.dependency_overrides[account] = lambda: "tester"
    assert (await shop.post("/orders", headers=[])).status == 201


async def test_f6_a_mismatch_is_refused(place: Place) -> None:
    shop = Shop(place.boundary())
    await shop.post("/orders")
    answer = await shop.post("/orders", body=b'{"item": "rum"}')
    assert (answer.status, answer.code) == (422, "key-reused")
    assert (await shop.post("/sync")).code == "key-reused"


@pytest.mark.parametrize(("body", "status"), [(b'{"item": "none"}', 404), (b"{}", 422)], ids=["raised", "invalid"])
async def test_a_4xx_is_stored_whoever_made_it(place: Place, body: bytes, status: int) -> None:
    shop = Shop(place.boundary())
    first, again = await shop.post("/orders", body=body), await shop.post("/orders", body=body)
    assert (first.status, again.status, again.body, again.replayed) == (status, status, first.body, True)


async def test_r16_an_exception_frees_the_key(place: Place) -> None:
    shop = Shop(place.boundary())
    for _ in range(2):
        with pytest.raises(LookupError):
            await shop.post("/orders", body=b'{"item": "broken"}')
    assert len(shop.runs) == 2


async def test_a_handlers_own_policy_wins_over_its_router(place: Place) -> None:
    shop = Shop(place.boundary())
    assert [(await shop.post("/off")).body for _ in range(2)] == [b"1", b"2"]
    assert [(await shop.post("/optional", None)).body for _ in range(2)] == [b"3", b"4"]
    assert (await shop.post("/optional", "guessable")).code == "key-invalid"
    key = "0b8f7a1e-6a3c-4c57-8d5f-2f1f0e9b7c11"
    assert [(await shop.post("/optional", key)).body for _ in range(2)] == [b"5", b"5"]


async def test_a_handlers_own_policy_wins_over_the_middleware(place: Place) -> None:
    shop = Shop(place.boundary())

    @shop.app.post("/shop/plain")
    async def plain() -> int:
        shop.runs.append("plain")
        return len(shop.runs)

    @shop.app.post("/shop/unguarded")
    @policy("off")
    async def unguarded() -> int:
        shop.runs.append("unguarded")
        return len(shop.runs)

    boundary = place.boundary()
    shop.app.add_middleware(
        IdempotencyMiddleware, boundary=boundary, principal=lambda request: request.headers.get("x-user"), required=True
    )
    assert [(await shop.post("/plain")).body for _ in range(2)] == [b"1", b"1"]
    assert (await shop.post("/plain", None)).code == "key-missing"
    assert [(await shop.post("/unguarded")).body for _ in range(2)] == [b"2", b"3"]
    assert [(await shop.post("/off")).body for _ in range(2)] == [b"4", b"5"]
    await shop.post("/orders")
    assert (await shop.post("/orders")).replayed
    assert place.seen.told[-1].boundary != boundary.name


async def test_a_dependency_that_swallows_errors_cannot_hide_a_replay(place: Place) -> None:
    idempotency = Idempotency(place.boundary(), principal=account)
    runs: list[int] = []

    async def swallowing() -> AsyncIterator[None]:
        try:
            yield
        except Exception as error:
            raise HTTPException(500) from error

    router = APIRouter(route_class=idempotency.route_class, dependencies=[Depends(swallowing)])

    @router.post("/orders")
    async def create() -> int:
        runs.append(1)
        return len(runs)

    app = FastAPI()
    app.include_router(router)
    answers = [await post(app, headers=ANN) for _ in range(2)]
    assert [(answer.status, answer.body) for answer in answers] == [(200, b"1"), (200, b"1")]


async def test_a_router_in_a_router_in_a_mounted_application(place: Place) -> None:
    shop = Shop(place.boundary())
    outer = APIRouter(prefix="/outer")
    outer.include_router(shop.router, prefix="/inner")
    mounted, app = FastAPI(), FastAPI()
    mounted.include_router(outer)
    app.mount("/mounted", mounted)
    answers = [await post(app, path="/mounted/outer/inner/orders", headers=ANN, body=ORDER) for _ in range(2)]
    assert [answer.status for answer in answers] == [201, 201]
    assert len(shop.runs) == 1


@each_row("around", ["the application", "the mounted one"])
async def test_a_policy_in_a_mounted_application_wins_over_the_middleware(place: Place, around: str) -> None:
    router, mounted, app = APIRouter(), FastAPI(), FastAPI()

    @router.post("/orders")
    @policy("required")
    async def create() -> int:
        return 1

    mounted.include_router(router, prefix="/included")
    app.mount("/mounted", mounted)
    (app if around == "the application" else mounted).add_middleware(
        IdempotencyMiddleware, boundary=place.boundary(), principal="shared"
    )
    assert (await post(app, None, path="/mounted/included/orders")).code == "key-missing"


@pytest.mark.parametrize("how", ["router", "middleware"])
async def test_k8_guarded_routes_of_a_mounted_application_are_left_to_it(place: Place, how: str) -> None:
    runs: list[int] = []
    idempotency = Idempotency(place.boundary(), principal=account)
    router, mounted, app = APIRouter(), FastAPI(), FastAPI()
    if how == "router":
        router = APIRouter(route_class=idempotency.route_class)
    else:
        mounted.add_middleware(
            IdempotencyMiddleware, boundary=place.boundary(), principal=lambda request: request.headers["x-user"]
        )

    @router.post("/orders")
    async def create() -> int:
        runs.append(1)
        return len(runs)

    mounted.include_router(router)
    app.mount("/mounted", mounted)
    app.add_middleware(IdempotencyMiddleware, boundary=place.boundary(), principal="shared")
    answers = [await post(app, path="/mounted/orders", headers=[("x-user", name)]) for name in ("ann", "bob", "ann")]
    assert [answer.body for answer in answers] == [b"1", b"2", b"1"]


async def test_r11_a_stream_is_kept_without_its_body(place: Place) -> None:
    idempotency = Idempotency(place.boundary(), principal="shared")
    router = APIRouter(route_class=idempotency.route_class)

    @router.post("/orders")
    async def stream() -> StreamingResponse:
        async def events() -> AsyncIterator[str]:
            yield "data: 1\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    app = FastAPI()
    app.include_router(router)
    first, again = await post(app), await post(app)
    if place.transactional:
        assert (first.code, again.code) == ("response-unsupported",) * 2
    else:
        assert (first.body, again.body, again.header("idempotency-replay")) == (b"data: 1\n\n", b"", "omitted")


# ---------------------------------------------------------------- OpenAPI


def test_e4_openapi_shows_the_header_and_the_errors() -> None:
    shop = Shop(Boundary("shop", store="memory://", window="36h"))
    paths = shop.app.openapi()["paths"]
    operation = paths["/shop/orders"]["post"]
    [header] = [one for one in operation["parameters"] if one["name"] == "Idempotency-Key"]
    assert (header["in"], header["required"], header["schema"]["maxLength"]) == ("header", True, 255)
    assert "36 hours" in header["description"]
    assert {"201", "400", "403", "409", "422", "503"} <= operation["responses"].keys()
    for status in ("400", "409", "422", "503"):
        schema = operation["responses"][status]["content"]["application/problem+json"]["schema"]
        for code in schema["properties"]["code"]["enum"]:
            assert PROBLEMS[code].status == int(status)
    assert "HTTPValidationError" in str(operation["responses"]["422"]["content"]["application/json"])
    assert operation["responses"]["409"]["headers"].keys() == {"Retry-After"}


def test_r29_openapi_tells_the_window_and_the_fingerprint() -> None:
    shop = Shop(Boundary("shop", store="memory://", window="36h"))
    told = shop.app.openapi()["paths"]["/shop/orders"]["post"]["x-idempotency"]
    assert (told["window"], told["effects"], told["required"]) == (36 * 3600, "keyed", True)
    assert {"method", "path", "query", "body", "if-match"} <= set(told["fingerprint"])


def test_e4_only_guarded_routes_show_it() -> None:
    paths = Shop(Boundary("shop", store="memory://")).app.openapi()["paths"]
    assert "x-idempotency" not in str(paths["/shop/orders"]["get"])
    assert "x-idempotency" not in paths["/shop/off"]["post"]
    optional = paths["/shop/optional"]["post"]
    assert optional["x-idempotency"]["required"] is False
    assert optional["parameters"][-1]["schema"]["anyOf"][0] == {"format": "uuid"}


def test_e4_fields_of_the_user_stay() -> None:
    idempotency = Idempotency(Boundary("shop", store="memory://"), principal="shared")
    router = APIRouter(route_class=idempotency.route_class)

    @router.post("/x", openapi_extra={"x-mine": 1, "responses": {"409": {"description": "mine"}}})
    async def handle(idempotency_key: Annotated[str, Header()], x_mine: Annotated[str, Header()]) -> None: ...

    app = FastAPI()
    app.include_router(router)
    operation = app.openapi()["paths"]["/x"]["post"]
    assert (operation["x-mine"], operation["responses"]["409"]["description"]) == (1, "mine")
    assert sorted(one["name"].lower() for one in operation["parameters"]) == ["idempotency-key", "x-mine"]
    assert "x-idempotency" in operation


# ---------------------------------------------------------------- the shared session


@dataclass
class Database:
    """A database with goods, behind a sessionmaker of one colour."""

    sessions: Any
    asynchronous: bool
    look: Callable[[], list[str]]
    seen: Recorder

    def __post_init__(self) -> None:
        self.boundary = Boundary("shop", store=self.sessions, effects="transactional", observers=[self.seen])


DATABASES = ["sqlite", "sqlite+aiosqlite", "postgresql+psycopg", "postgresql+asyncpg"]


@pytest.fixture(params=DATABASES)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """Sync and async sessionmakers on SQLite and PostgreSQL."""
    scheme: str = request.param
    if scheme.startswith("sqlite"):
        url = f"sqlite:///{tmp_path / 'shop.db'}"
        connect(url)
    else:
        url = request.getfixturevalue("postgresql")
        connect(url).migrate()
    plain = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with plain.begin() as connection:
        connection.execute(text("DROP TABLE IF EXISTS goods"))
        connection.execute(text("DELETE FROM retrysafe_records"))
        connection.execute(text("CREATE TABLE goods (value TEXT PRIMARY KEY)"))

    def look() -> list[str]:
        with plain.connect() as connection:
            return [row[0] for row in connection.execute(text("SELECT value FROM goods ORDER BY value"))]

    target = f"{scheme}:{url.partition(':')[2]}"
    asynchronous = scheme in ("sqlite+aiosqlite", "postgresql+asyncpg")
    if asynchronous:
        aengine = create_async_engine(target, poolclass=sqlalchemy.NullPool)
        yield Database(async_sessionmaker(aengine), True, look, Recorder())
    else:
        engine = sqlalchemy.create_engine(target)
        yield Database(sessionmaker(engine), False, look, Recorder())
        engine.dispose()
    plain.dispose()


INSERT = text("INSERT INTO goods VALUES (:value)")


class Base(DeclarativeBase):
    pass


class Good(Base):
    __tablename__ = "goods"
    value: Mapped[str] = mapped_column(primary_key=True)


def shared(database: Database, **hooks: Any) -> FastAPI:
    """An application that adds goods through the request's session, and then does what ``hooks`` say."""
    idempotency = Idempotency(database.boundary, principal="shared")
    router = APIRouter(route_class=idempotency.route_class)
    after: Callable[..., Any] | None = hooks.get("after")
    dependencies = hooks.get("dependencies", [])

    if database.asynchronous:

        @router.post("/goods", dependencies=dependencies)
        async def add(
            request: Request, tasks: BackgroundTasks, session: AsyncSession = Depends(idempotency.session)
        ) -> Any:
            value = (await request.body()).decode()
            await session.execute(INSERT, {"value": value})
            if after is not None:
                answer = after(session, tasks)
                if answer is not None:
                    return await answer or value
            return value
    else:

        @router.post("/goods", dependencies=dependencies)
        def add_sync(
            tasks: BackgroundTasks,
            x_item: Annotated[str, Header()],
            session: Session = Depends(idempotency.session),
        ) -> Any:
            session.execute(INSERT, {"value": x_item})
            return (after and after(session, tasks)) or x_item

    app = FastAPI()
    app.include_router(router)
    return app


async def add(app: FastAPI, value: str, key: str | None = None) -> Exchanged:
    return await post(app, key or f"key-{value}", path="/goods", body=value.encode(), headers=[("x-item", value)])


async def test_the_session_commits_with_the_record(database: Database) -> None:
    app = shared(database)
    first, again = await add(app, "tea"), await add(app, "tea")
    assert (first.status, again.body, again.replayed, database.look()) == (200, b'"tea"', True, ["tea"])


async def test_a_4xx_keeps_nothing_but_the_answer(database: Database) -> None:
    def refuse(session: Any, tasks: Any) -> None:
        raise HTTPException(409, "sold out")

    app = shared(database, after=refuse)
    first, again = await add(app, "tea"), await add(app, "tea")
    assert (first.status, again.status, again.replayed, database.look()) == (409, 409, True, [])


class Declined(Exception):
    pass


@pytest.mark.parametrize("database", ["sqlite+aiosqlite"], indirect=True)
@each_row(
    "copy",
    [
        lambda scope: scope,
        lambda scope: {**scope},
        dict,
        lambda scope: scope | {},
        lambda scope: {} | scope,
        lambda scope: scope.copy(),
        copy_module.copy,
        lambda scope: {name: scope[name] for name in scope},
        lambda scope: {name: value for name, value in scope.items() if value is not None},
    ],
    ids=["none", "unpacked", "dict", "united", "united after", "copy", "module", "names", "items"],
)
@each_row(
    ("path", "status", "replayed", "kept"),
    [
        ("/returned/201", 201, True, True),
        ("/returned/303", 303, True, True),
        ("/returned/409", 409, True, True),
        ("/raised/409", 409, True, False),
        ("/answered/200", 200, True, False),
        ("/caught/400", 400, True, False),
        ("/caught/200", 200, True, False),
        ("/login", 303, False, False),
    ],
)
async def test_r33_a_middleware_inside_may_copy_the_scope(
    database: Database, copy: Any, path: str, status: int, replayed: bool, kept: bool
) -> None:
    """An answer after which nothing is known frees no key, and what an exception has undone stays undone."""

    async def handle(request: Request) -> Response:
        await current().tx.execute(INSERT, {"value": value})
        if path.startswith("/returned"):
            return Response(status_code=status)
        if path.startswith("/raised"):
            raise HTTPException(status)
        raise Declined if path.startswith("/answered") else LookupError

    async def answer(request: Request, error: Exception) -> Response:
        return Response(status_code=200)

    def copying(app: Any) -> Any:
        async def call(scope: Any, receive: Any, send: Any) -> None:
            if path == "/login":
                await RedirectResponse("/enter", 303)(scope, receive, send)
            else:
                try:
                    await app(copy(scope), receive, send)
                except LookupError:
                    await Response(status_code=status)(scope, receive, send)

        return call

    app = FastAPI(exception_handlers={Declined: answer})
    app.add_route("/{kind}/{status}", handle, methods=["POST"])
    app.add_middleware(copying)
    app.add_middleware(IdempotencyMiddleware, boundary=database.boundary, principal="shared")
    value = uuid4().hex
    first, again = await post(app, value, path=path), await post(app, value, path=path)
    assert (first.status, again.status, again.replayed) == (status, status, replayed)
    assert (value in database.look()) is kept


@pytest.mark.parametrize("kind", ["exception", "5xx"])
async def test_a_failure_rolls_back(database: Database, kind: str) -> None:
    failing = [True]

    def fail(session: Any, tasks: Any) -> None:
        if failing[0]:
            raise LookupError if kind == "exception" else HTTPException(503)

    app = shared(database, after=fail)
    if kind == "exception":
        with pytest.raises(LookupError):
            await add(app, "tea")
    else:
        assert (await add(app, "tea")).status == 503
    assert database.look() == []
    failing[0] = False
    assert (await add(app, "tea")).status == 200
    assert database.look() == ["tea"]


AGAIN = text("DO $$ BEGIN RAISE EXCEPTION 'again' USING ERRCODE = '40P01'; END $$")


@pytest.mark.fault(24)
@pytest.mark.parametrize("database", ["postgresql+psycopg", "postgresql+asyncpg"], indirect=True)
@pytest.mark.parametrize("answered", ["handler", "raised", "raised from none", "another error"])
async def test_a_deadlock_behind_another_answer_or_error_runs_the_request_again(
    database: Database, answered: str
) -> None:
    runs: list[Any] = []

    @contextmanager
    def as_conflict() -> Iterator[None]:
        runs.append(None)
        try:
            yield
        except DBAPIError as error:
            if answered == "handler":
                raise
            if answered == "another error":
                raise ValueError from error
            raise HTTPException(409) from (error if answered == "raised" else None)

    if database.asynchronous:

        async def after(session: Any, tasks: Any) -> None:
            with as_conflict():
                if len(runs) < 3:
                    await session.execute(AGAIN)
    else:

        def after(session: Any, tasks: Any) -> None:  # type: ignore[misc]
            with as_conflict():
                if len(runs) < 3:
                    session.execute(AGAIN)

    app = shared(database, after=after)
    if answered == "handler":
        app.exception_handler(DBAPIError)(lambda request, error: JSONResponse({}, 409))
    assert (await add(app, "tea")).status == 200
    assert (await add(app, "tea")).replayed
    assert (len(runs), database.look()) == (3, ["tea"])


@pytest.mark.parametrize("database", ["sqlite+aiosqlite", "postgresql+asyncpg"], indirect=True)
async def test_a_cancelled_request_rolls_back(database: Database) -> None:
    """A sync handler in a thread runs to its end."""
    began = asyncio.Event()

    async def hang(session: Any, tasks: Any) -> None:
        began.set()
        await asyncio.Event().wait()

    running = asyncio.ensure_future(add(shared(database, after=hang), "tea"))
    await began.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert database.look() == []
    assert (await add(shared(database), "tea")).status == 200


# ---------------------------------------------------------------- traps


async def test_trap_a_commit_in_the_handler_is_refused_and_undone(database: Database) -> None:
    app = shared(database, after=lambda session, tasks: session.commit())
    with pytest.raises(ConfigurationError, match="committed by the handler"):
        await add(app, "tea")
    assert database.look() == []
    assert (await add(shared(database), "tea")).status == 200


async def test_trap_an_isolation_level_that_comes_too_late_is_refused(database: Database) -> None:
    level = {"isolation_level": "SERIALIZABLE"}
    app = shared(database, after=lambda session, tasks: session.connection(execution_options=level))
    with pytest.raises(ConfigurationError, match="has begun the transaction already"):
        await add(app, "tea")
    assert database.look() == []


async def test_a_savepoint_in_the_handler_is_no_trap(database: Database) -> None:
    if database.asynchronous:

        async def nested(session: Any, tasks: Any) -> None:
            async with session.begin_nested():
                await session.execute(INSERT, {"value": "cup"})
    else:

        def nested(session: Any, tasks: Any) -> None:  # type: ignore[misc]
            with session.begin_nested():
                session.execute(INSERT, {"value": "cup"})

    assert (await add(shared(database, after=nested), "tea")).status == 200
    assert database.look() == ["cup", "tea"]
    assert "outside_commit" not in database.seen.names


@each_row("way", ["caught", "flushed", "rolled-back", "rolled-back-and-raised"])
async def test_a_refusal_after_a_caught_error_is_no_trap(database: Database, way: str) -> None:
    """A handler that rolls back takes the record along, so that its retry runs again: nothing of it is stored."""

    def refuse(session: Session) -> Response:
        try:
            if way == "flushed":
                session.add_all([Good(value="cup"), Good(value="cup")])
                session.flush()
            else:
                session.execute(INSERT, {"value": way})
        except sqlalchemy.exc.IntegrityError:
            if way.startswith("rolled"):
                session.rollback()
            if way.endswith("raised"):
                raise HTTPException(409) from None
            return Response(status_code=409)
        raise AssertionError("the value was there already")

    async def arefuse(session: AsyncSession) -> Response:
        return await session.run_sync(refuse)

    after = arefuse if database.asynchronous else refuse
    app = shared(database, after=lambda session, tasks: after(session))
    first, again = await add(app, way), await add(app, way)
    assert (first.status, again.status, again.replayed) == (409, 409, not way.startswith("rolled"))
    goes_on = way == "caught" and database.sessions.kw["bind"].dialect.name == "sqlite"
    assert (way in database.look()) is goes_on


@each_row("refused", [False, True])
async def test_hooks_of_a_commit_are_called_once_and_for_work_that_is_left(database: Database, refused: bool) -> None:
    """SQLAlchemy calls them for a savepoint too."""
    told: list[str] = []

    def listen(session: Any, tasks: Any) -> None:
        session = getattr(session, "sync_session", session)
        sqlalchemy.event.listen(session, "after_commit", lambda session: told.append("mail"))
        if refused:
            raise HTTPException(409)
        audit = "cup" + uuid4().hex
        sqlalchemy.event.listen(session, "before_commit", lambda session: session.execute(INSERT, {"value": audit}))

    app, value = shared(database, after=listen), uuid4().hex
    for _ in range(2):
        assert (await add(app, value)).status == (409 if refused else 200)
    assert len(told) == (0 if refused else 1)
    rows = database.look()
    assert [value in rows, len([row for row in rows if row.startswith("cup")])] == (
        [False, 1] if refused else [True, 1]
    )


async def test_trap_a_background_task_on_the_session_is_refused_by_name(database: Database) -> None:
    sessions: list[Any] = []

    def later(session: Any, tasks: BackgroundTasks) -> None:
        sessions.append(session)
        tasks.add_task(session.execute, INSERT, {"value": "late"})

    app = shared(database, after=later)
    with pytest.raises(ConfigurationError, match="after its response had been committed"):
        await add(app, "tea")
    assert database.look() == ["tea"]
    assert not sessions[0].in_transaction(), "no connection is kept by what was refused"
    assert (await add(app, "tea")).replayed


@copied
@pytest.mark.parametrize("database", ["postgresql+asyncpg"], indirect=True)
@pytest.mark.parametrize("scope", ["request", "function"])
async def test_trap_a_dependency_that_commits_a_session_of_its_own_is_told(database: Database, scope: Any) -> None:
    """One colour will do, and SQLite lets nobody else write."""

    async def own() -> AsyncIterator[None]:
        async with database.sessions() as session:
            yield
            await session.execute(INSERT, {"value": "own"})
            await session.commit()

    app = shared(database, dependencies=[Depends(own, scope=scope)])
    assert (await add(app, "tea")).status == 200
    assert database.look() == ["own", "tea"]
    when = "after the response" if scope == "request" else "before the response"
    assert database.seen.fields("outside_commit") == {"when": when}


async def test_a_commit_to_another_database_is_no_trap(database: Database, tmp_path: Path) -> None:
    other = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'other.db'}")

    def elsewhere(session: Any, tasks: Any) -> None:
        with sessionmaker(other).begin() as mine:
            mine.execute(text("CREATE TABLE notes (value TEXT)"))

    assert (await add(shared(database, after=elsewhere), "tea")).status == 200
    assert "outside_commit" not in database.seen.names
    other.dispose()


async def test_the_session_needs_a_key_and_a_transaction(database: Database, place: Place) -> None:
    idempotency = Idempotency(place.boundary(), required=False, principal="shared")
    router = APIRouter(route_class=idempotency.route_class)

    @router.post("/goods")
    async def handle(session: Any = Depends(idempotency.session)) -> None: ...

    app = FastAPI()
    app.include_router(router)
    with pytest.raises(ConfigurationError, match="no key"):
        await post(app, None, path="/goods")
    if not place.transactional:
        with pytest.raises(ConfigurationError, match="no transaction"):
            await post(app, path="/goods")


@copied
async def test_k6_a_route_that_an_included_router_gets_later_is_seen(place: Place) -> None:
    async def plain() -> str:
        return "done"

    included, inner = APIRouter(prefix="/in"), APIRouter(prefix="/ner")
    app = FastAPI()
    included.include_router(inner)
    app.include_router(included)
    app.post("/plain")(plain)
    app.add_middleware(IdempotencyMiddleware, boundary=place.boundary(), principal="shared")
    assert (await post(app, None, path="/plain")).status == 200
    for router, path in ((inner, "/in/ner/late"), (included, "/in/late"), (app, "/late")):
        router.post("/late")(policy("required")(plain))  # type: ignore[attr-defined]
        assert (await post(app, None, path=path)).code == "key-missing"
