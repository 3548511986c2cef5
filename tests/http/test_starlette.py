"""Starlette: the middleware, the decorator, routes with a policy of their own, the principal from ``request.user``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, BaseUser, SimpleUser, requires
from starlette.endpoints import HTTPEndpoint
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route, Router

from retrysafe import ConfigurationError, current
from retrysafe.http.starlette import IdempotencyMiddleware, idempotent, policy, user
from tests.http.conftest import Place
from tests.http.wire import Exchanged, post
from tests.tables import each_row

ANN, BOB = [("x-user", "ann")], [("x-user", "bob")]


class Named(SimpleUser):
    @property
    def identity(self) -> str:
        return self.username


class ByHeader(AuthenticationBackend):
    async def authenticate(self, conn: Any) -> tuple[AuthCredentials, BaseUser] | None:
        name = conn.headers.get("x-user")
        return None if name is None else (AuthCredentials(["authenticated"]), Named(name))


AUTHENTICATION = Middleware(AuthenticationMiddleware, backend=ByHeader())


class Runs:
    """Handlers that count."""

    def __init__(self) -> None:
        self.count = 0

    def next(self) -> Response:
        self.count += 1
        return PlainTextResponse(str(self.count))

    async def plain(self, request: Request) -> Response:
        return self.next()

    def sync(self, request: Request) -> Response:
        current().key_for("bank")
        return self.next()


def routes_of(runs: Runs) -> list[Any]:
    async def off(request: Request) -> Response:
        return runs.next()

    async def strict(request: Request) -> Response:
        return runs.next()

    async def teapot(request: Request) -> Response:
        runs.count += 1
        raise HTTPException(418)

    return [
        Route("/plain", runs.plain, methods=["POST"]),
        Route("/sync", runs.sync, methods=["POST"]),
        Route("/off", policy("off")(off), methods=["POST"]),
        Mount(
            "/sub", routes=[Route("/strict/{name}", policy("required", key_policy="uuid")(strict), methods=["POST"])]
        ),
        Route("/teapot", teapot, methods=["POST"]),
    ]


async def bodies(app: Any, path: str, key: str | None = "k", times: int = 2, **request: Any) -> list[bytes]:
    return [(await post(app, key, path=path, **request)).body for _ in range(times)]


@each_row("path", ["/plain", "/sync"])
async def test_r2_the_whole_application(place: Place, path: str) -> None:
    app = Starlette(
        routes=routes_of(Runs()),
        middleware=[Middleware(IdempotencyMiddleware, boundary=place.boundary(), principal="shared")],
    )
    assert await bodies(app, path) == [b"1", b"1"]


@each_row("path, led_to", [("/orders/", "/orders"), ("/sub/items", "/sub/items/")])
async def test_r31_a_retry_begins_again_before_the_redirect_of_a_slash(path: str, led_to: str, place: Place) -> None:
    """The router leads both on; the guard has no part in it."""
    runs = Runs()
    mounted = Mount("/sub", routes=[Route("/items/", runs.plain, methods=["POST"])])
    app = Starlette(routes=[Route("/orders", runs.plain, methods=["POST"]), mounted])
    app.add_middleware(IdempotencyMiddleware, boundary=place.boundary(), principal="shared")
    for _ in range(2):
        redirected = await post(app, f"k{path}", path=path)
        assert (redirected.status, str(redirected.header("location")).endswith(led_to)) == (307, True)
        assert (await post(app, f"k{path}", path=led_to)).body == b"1"
    assert (await post(app, f"k{path}", path="/none/")).status == 422, "a path of no route is guarded"


async def test_a_routes_policy_wins_over_the_middleware(place: Place) -> None:
    app = Starlette(
        routes=routes_of(Runs()),
        middleware=[Middleware(IdempotencyMiddleware, boundary=place.boundary(), principal="shared")],
    )
    assert await bodies(app, "/off") == [b"1", b"2"]
    assert (await post(app, None, path="/sub/strict/a")).code == "key-missing"
    assert (await post(app, "guessable", path="/sub/strict/a")).code == "key-invalid"
    key = "0b8f7a1e-6a3c-4c57-8d5f-2f1f0e9b7c11"
    assert await bodies(app, "/sub/strict/a", key) == [b"3", b"3"]


async def test_a_4xx_that_was_raised_is_stored(place: Place) -> None:
    runs = Runs()
    app = Starlette(
        routes=routes_of(runs),
        middleware=[Middleware(IdempotencyMiddleware, boundary=place.boundary(), principal="shared")],
    )
    first, again = await post(app, path="/teapot"), await post(app, path="/teapot")
    assert (first.status, again.status, again.replayed, runs.count) == (418, 418, True, 1)


async def test_a_4xx_that_a_class_of_handlers_raised_is_stored(place: Place) -> None:
    runs = Runs()

    @idempotent(place.boundary(), principal="shared")
    class Endpoint(HTTPEndpoint):
        async def post(self, request: Request) -> Response:
            runs.next()
            raise HTTPException(412)

    app = Starlette(routes=[Route("/orders", Endpoint)])
    first, again = await post(app), await post(app)
    assert (first.status, again.status, again.replayed, runs.count) == (412, 412, True, 1)


class Broken(Exception):
    pass


@each_row("handled", [False, True])
@each_row("sent", [0, 2])
async def test_r16_a_stream_that_breaks_off_beneath_a_middleware_is_a_failure(
    place: Place, handled: bool, sent: int
) -> None:
    """Starlette's own middleware ends such a stream like a whole one, and raises the error after that."""
    runs = Runs()

    async def streaming(request: Request) -> Response:
        runs.count += 1

        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(sent):
                yield b"x"
            if runs.count == 1:
                raise Broken
            yield b"done"

        return StreamingResponse(chunks(), 201)

    async def dispatch(request: Request, call_next: Any) -> Response:
        return await call_next(request)  # type: ignore[no-any-return]

    def answer(request: Request, error: Exception) -> Response:
        return PlainTextResponse("broken")

    app = Starlette(
        routes=[Route("/", streaming, methods=["POST"])],
        exception_handlers={Broken: answer} if handled else {},
        middleware=[
            Middleware(IdempotencyMiddleware, boundary=place.boundary(), principal="shared"),
            Middleware(BaseHTTPMiddleware, dispatch=dispatch),
        ],
    )
    key = f"{handled}-{sent}"
    with pytest.raises((Broken, RuntimeError)):
        await post(app, key, path="/")
    answers = [await post(app, key, path="/") for _ in range(2)]
    assert [(one.status, one.replayed, one.body) for one in answers] == [
        (201, replayed, b"x" * sent + b"done") for replayed in (False, True)
    ]


@each_row("where", ["Starlette", "middleware"])
async def test_a_2xx_that_answers_an_exception_beneath_a_middleware_is_stored(place: Place, where: str) -> None:
    runs = Runs()

    async def declined(request: Request) -> Response:
        runs.next()
        raise Broken

    async def dispatch(request: Request, call_next: Any) -> Response:
        try:
            return await call_next(request)  # type: ignore[no-any-return]
        except Broken:
            return PlainTextResponse("declined")

    def answer(request: Request, error: Exception) -> Response:
        return PlainTextResponse("declined")

    app = Starlette(
        routes=[Route("/", declined, methods=["POST"])],
        exception_handlers={Broken: answer} if where == "Starlette" else {},
        middleware=[
            Middleware(IdempotencyMiddleware, boundary=place.boundary(), principal="shared"),
            Middleware(BaseHTTPMiddleware, dispatch=dispatch),
        ],
    )
    assert await bodies(app, "/", where) == [b"declined"] * 2
    assert runs.count == 1


async def test_k8_the_principal_is_the_user(place: Place) -> None:
    guard = Middleware(IdempotencyMiddleware, boundary=place.boundary(), principal=user)
    app = Starlette(routes=routes_of(Runs()), middleware=[AUTHENTICATION, guard])
    assert await bodies(app, "/plain", headers=ANN) == [b"1", b"1"]
    assert await bodies(app, "/plain", headers=BOB) == [b"2", b"2"]
    assert (await post(app, path="/plain")).code == "principal-missing"


def decorated(place: Place, runs: Runs) -> Starlette:
    guard = idempotent(place.boundary(), principal=user)

    @guard
    @requires("authenticated", status_code=401)
    async def create(request: Request) -> Response:
        """Create."""
        assert request.user.identity
        current()
        return runs.next()

    @guard
    class Endpoint(HTTPEndpoint):
        async def post(self, request: Request) -> Response:
            return runs.next()

    assert (create.__name__, create.__doc__) == ("create", "Create.")  # type: ignore[attr-defined]
    return Starlette(
        routes=[
            Route("/orders", create, methods=["POST"]),
            Route("/endpoint", Endpoint),
            Route(
                "/wrapped",
                runs.plain,
                methods=["POST"],
                middleware=[
                    Middleware(IdempotencyMiddleware, boundary=place.boundary(), required=True, principal="shared")
                ],
            ),
            Route("/free", runs.plain, methods=["POST"]),
        ],
        middleware=[AUTHENTICATION],
    )


async def test_k6_a_decorated_route(place: Place) -> None:
    app = decorated(place, Runs())
    assert (await post(app, None, path="/orders", headers=ANN)).code == "key-missing"
    assert await bodies(app, "/orders", headers=ANN) == [b"1", b"1"]
    assert await bodies(app, "/orders", headers=BOB) == [b"2", b"2"]
    assert await bodies(app, "/endpoint", "other", headers=ANN) == [b"3", b"3"]
    assert (await post(app, None, path="/wrapped")).code == "key-missing"
    assert await bodies(app, "/wrapped") == [b"4", b"4"]
    assert await bodies(app, "/free") == [b"5", b"6"]


async def test_routes_that_guard_themselves_win_over_the_middleware(place: Place) -> None:
    app = decorated(place, Runs())
    outer = place.boundary()
    app.add_middleware(IdempotencyMiddleware, boundary=outer, principal="shared")
    for path in ("/orders", "/wrapped", "/endpoint"):
        await bodies(app, path, f"key of {path}".replace(" ", "-"), headers=ANN)
    assert outer.name not in {occurrence.boundary for occurrence in place.seen.told}
    assert await bodies(app, "/free") == [b"4", b"4"]


class Strict(HTTPEndpoint):
    @policy("required")
    async def post(self, request: Request) -> Response:
        return PlainTextResponse("done")


@policy("required")
async def strict(request: Request) -> Response:
    return PlainTextResponse("done")


@each_row("method", ["PUT", "DELETE"])
async def test_k6_a_route_that_wants_a_key_itself_wants_it_for_every_unsafe_method(place: Place, method: str) -> None:
    async def plain(request: Request) -> Response:
        return PlainTextResponse("done")

    boundary = place.boundary()
    app = Starlette(
        routes=[
            Route("/declared", strict, methods=[method]),
            Route("/decorated", idempotent(boundary, principal="shared")(plain), methods=[method]),
            Route("/plain", plain, methods=[method]),
        ],
        middleware=[Middleware(IdempotencyMiddleware, boundary=boundary, required=True, principal="shared")],
    )
    for path in ("/declared", "/decorated"):
        assert (await post(app, None, path=path, method=method)).code == "key-missing"
        assert (await post(app, path, path=path, method=method)).body == b"done"
        assert (await post(app, path, path=path, method=method)).replayed
    assert (await post(app, None, path="/plain", method=method)).body == b"done"


@each_row("path", ["/strict", "/class"])
@each_row("around", ["application", "outside", "mount", "mounted", "router", "route", "decorator"])
async def test_a_handlers_policy_counts_wherever_the_middleware_stands(place: Place, around: str, path: str) -> None:
    guarding = Middleware(IdempotencyMiddleware, boundary=place.boundary(), principal="shared")

    def here(name: str) -> list[Middleware]:
        return [guarding] if name == around else []

    routes = [Route("/strict", strict, methods=["POST"]), Route("/class", Strict)]
    if around == "route":
        routes = [Route("/strict", strict, methods=["POST"], middleware=[guarding])]
        routes += [Route("/class", Strict, middleware=[guarding])]
    if around == "decorator":
        handler: Any = idempotent(place.boundary(), required=False, principal="shared")(strict)
        routes = [Route(path, handler, methods=["POST"])]
    inner: Any = Router(routes=routes, middleware=here("router"))
    if around == "mounted":
        inner = Starlette(routes=routes, middleware=[guarding])
    app: Any = Starlette(routes=[Mount("/m", app=inner, middleware=here("mount"))], middleware=here("application"))
    if around == "outside":
        app = IdempotencyMiddleware(app, place.boundary(), principal="shared")
    assert (await post(app, None, path=f"/m{path}")).code == "key-missing"
    assert [(await post(app, path=f"/m{path}")).body for _ in range(2)] == [b"done", b"done"]


async def refuses(app: Any, path: str) -> bool:
    return (await post(app, None, path=path)).status == 400


@each_row("where", ["application", "mount", "mounted", "empty"])
async def test_k6_a_route_that_comes_later_is_seen(place: Place, where: str) -> None:
    inner = Starlette(routes=[Route("/inner", Runs().plain, methods=["POST"])])
    mount = Mount("/m", routes=[Route("/inner", Runs().plain, methods=["POST"])])
    empty = Mount("/empty", app=Router())
    app = Starlette(
        routes=[Route("/plain", Runs().plain, methods=["POST"]), mount, Mount("/app", app=inner), empty],
        middleware=[Middleware(IdempotencyMiddleware, boundary=place.boundary(), principal="shared")],
    )
    assert await bodies(app, "/plain") == [b"1", b"1"]
    late = Route("/late", strict, methods=["POST"])
    routes, path = {
        "application": (app.router.routes, "/late"),
        "mount": (mount.routes, "/m/late"),
        "mounted": (inner.router.routes, "/app/late"),
        "empty": (empty.routes, "/empty/late"),
    }[where]
    routes.append(late)
    assert await refuses(app, path)
    routes[-1] = Route("/late", Runs().plain, methods=["POST"])
    assert not await refuses(app, path)


async def test_k6_a_guard_that_a_mounted_application_gets_later_is_seen(place: Place) -> None:
    inner = Starlette(routes=[Route("/inner", Runs().plain, methods=["POST"])])
    app = Starlette(
        routes=[Route("/plain", Runs().plain, methods=["POST"]), Mount("/app", app=inner)],
        middleware=[Middleware(IdempotencyMiddleware, boundary=place.boundary(), principal="shared")],
    )
    assert await bodies(app, "/plain") == [b"1", b"1"]
    inner.add_middleware(IdempotencyMiddleware, boundary=place.boundary(), required=True, principal="shared")
    assert await refuses(app, "/app/inner")


async def test_k6_a_route_before_another_one_hides_what_is_said_of_that(place: Place) -> None:
    app = Starlette(
        routes=[Route("/{any}", Runs().plain, methods=["POST"]), Route("/strict", strict, methods=["POST"])],
        middleware=[Middleware(IdempotencyMiddleware, boundary=place.boundary(), principal="shared")],
    )
    assert not await refuses(app, "/strict")
    app.router.routes.reverse()
    assert await refuses(app, "/strict")


async def test_k6_a_route_of_another_kind_is_asked_where_it_leads(place: Place) -> None:
    class Own(Route):
        def matches(self, scope: Any) -> Any:
            match, child = super().matches(scope)
            return match, {**child, "endpoint": strict}

    app = Starlette(
        routes=[Own("/own", Runs().plain, methods=["POST"])],
        middleware=[Middleware(IdempotencyMiddleware, boundary=place.boundary(), principal="shared")],
    )
    assert await refuses(app, "/own")


async def test_r26_r27_the_order_of_middleware_and_what_browsers_see(place: Place) -> None:
    cors = Middleware(
        CORSMiddleware,
        allow_origins=["https://shop.example"],
        allow_methods=["POST"],
        allow_headers=["Idempotency-Key"],
        expose_headers=["Idempotent-Replayed", "Idempotency-Replay", "Retry-After"],
    )
    guard = Middleware(IdempotencyMiddleware, boundary=place.boundary(), required=True, principal=user)
    app = Starlette(routes=routes_of(Runs()), middleware=[cors, AUTHENTICATION, guard])
    origin = ("origin", "https://shop.example")
    asked = [origin, ("access-control-request-method", "POST"), ("access-control-request-headers", "idempotency-key")]
    preflight = await post(app, None, path="/plain", method="OPTIONS", headers=asked)
    assert preflight.status == 200
    assert "Idempotency-Key" in (preflight.header("access-control-allow-headers") or "")
    for answer in [await post(app, path="/plain", headers=[*ANN, origin]) for _ in range(2)]:
        assert "Idempotent-Replayed" in (answer.header("access-control-expose-headers") or "")
        assert answer.header("access-control-allow-origin") == "https://shop.example"
    refused = await post(app, None, path="/plain", headers=[*ANN, origin])
    assert refused.header("access-control-allow-origin") == "https://shop.example"


@each_row("mark", [lambda: policy("never"), lambda: policy("off", required=True)])  # type: ignore[arg-type]
def test_a_policy_that_cannot_be_kept_is_refused(mark: Any) -> None:
    with pytest.raises(ConfigurationError, match="policy"):
        mark()


async def test_json_of_a_decorated_route_alone(place: Place) -> None:
    @idempotent(place.boundary(), principal="shared")
    async def create(request: Request) -> Response:
        return JSONResponse(await request.json())

    answers: list[Exchanged] = [await post(create, body=b'{"a": 1}') for _ in range(2)]
    assert [answer.body for answer in answers] == [b'{"a":1}', b'{"a":1}']
