"""aiohttp, over real connections."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from retrysafe import Boundary, current, wait
from retrysafe.http.aiohttp import idempotency, idempotent
from tests.tables import each_row

pytestmark = pytest.mark.slow

Do = Callable[[web.Request], Awaitable[web.StreamResponse]]
MODES = ["keyed", "transactional"]


class Got(NamedTuple):
    """The client's view of a response."""

    status: int
    body: bytes
    headers: Any

    @property
    def replayed(self) -> bool:
        return self.headers.get("Idempotent-Replayed") == "true"


class App:
    """An application whose handler counts how often it ran, and does what it is told."""

    def __init__(self, boundary: Boundary, url: str, session: aiohttp.ClientSession) -> None:
        self.boundary = boundary
        self.ran = 0
        self.do: Do = self.plain
        self.url = url
        self.session = session

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.ran += 1
        return await self.do(request)

    async def plain(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"n": self.ran, "got": await request.text()}, status=201)

    async def post(self, path: str = "/pay", key: str | None = "k", data: Any = b"x", **headers: str) -> Got:
        if key is not None:
            headers["Idempotency-Key"] = key
        async with self.session.post(self.url + path, data=data, headers=headers) as response:
            return Got(response.status, await response.read(), response.headers)


@asynccontextmanager
async def serving(tmp_path: Path, effects: str = "keyed", terms: Any = None, **options: Any) -> AsyncIterator[App]:
    terms = {"store": f"sqlite:///{tmp_path}/keys.db", **(terms or {})}
    boundary = Boundary("api", effects=effects, **terms)  # type: ignore[arg-type]
    application = web.Application(middlewares=[idempotency(boundary, **{"principal": "shared", **options})])
    async with aiohttp.ClientSession() as session, TestServer(application) as server:
        app = App(boundary, str(server.make_url("")).rstrip("/"), session)
        application.router._frozen = False
        application.router.add_route("*", "/{path:.*}", app.handle)
        yield app
    await boundary.aclose()


@pytest.mark.parametrize("effects", MODES)
async def test_r2_a_retry_gets_the_first_response(tmp_path: Path, effects: str) -> None:
    async with serving(tmp_path, effects) as app:
        first, again = await app.post(key='"k"'), await app.post()
        assert (first.status, first.replayed) == (201, False)
        assert (again.status, again.body, again.replayed) == (201, first.body, True)
        assert again.headers["Content-Type"] == first.headers["Content-Type"]
        assert app.ran == 1


async def test_r4_r6_lines_stay_lines_and_cookies_are_not_replayed(tmp_path: Path) -> None:
    async def links(request: web.Request) -> web.StreamResponse:
        response = web.Response(text="done")
        response.headers.add("Link", "</a>")
        response.headers.add("Link", "</b>")
        response.set_cookie("session", "secret")
        return response

    async with serving(tmp_path) as app:
        app.do = links
        first, again = await app.post(), await app.post()
        assert first.headers.getall("Link") == again.headers.getall("Link") == ["</a>", "</b>"]
        assert "Set-Cookie" in first.headers
        assert "Set-Cookie" not in again.headers


async def test_r6_cookies_are_replayed_if_allowed(tmp_path: Path) -> None:
    async def cookies(request: web.Request) -> web.StreamResponse:
        response = web.Response()
        response.set_cookie("a", "1")
        response.set_cookie("b", "2")
        return response

    async with serving(tmp_path, secrets=["Set-Cookie"]) as app:
        app.do = cookies
        first, again = await app.post(), await app.post()
        assert len(again.headers.getall("Set-Cookie")) == 2
        assert first.headers.getall("Set-Cookie") == again.headers.getall("Set-Cookie")


@pytest.mark.parametrize(
    ("lines", "code"), [([("Idempotency-Key", "a"), ("Idempotency-Key", "b")], 400), ([("Idempotency-Key", '"a')], 400)]
)
async def test_k3_k5_a_broken_key_is_refused(tmp_path: Path, lines: list[tuple[str, str]], code: int) -> None:
    async with serving(tmp_path) as app:
        async with app.session.post(app.url + "/pay", headers=lines) as response:
            assert response.status == code
            assert (await response.json())["code"] == "key-invalid"
        assert app.ran == 0


async def test_k6_k7_guarded_routes(tmp_path: Path) -> None:
    async with serving(tmp_path, routes={"/pay": "required", "/off": "off"}) as app:
        assert (await app.post(key=None)).status == 400
        assert (await app.post("/other", key=None)).status == 201
        assert not (await app.post("/off")).replayed
        assert not (await app.post("/off")).replayed
        async with app.session.get(app.url + "/pay") as response:
            assert response.status == 201


async def test_f1_f2_another_request_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as app:
        await app.post("/a%2Fb?x=1")
        for path, data in (("/a/b?x=1", b"x"), ("/a%2Fb?x=2", b"x"), ("/a%2Fb?x=1", b"y")):
            assert (await app.post(path, data=data)).status == 422
        assert app.ran == 1


async def test_f4_a_form_with_a_fresh_boundary_is_the_same_request_and_is_read_by_the_handler(tmp_path: Path) -> None:
    async def upload(request: web.Request) -> web.StreamResponse:
        form = await request.post()
        return web.Response(text=str(form["field"]))

    async with serving(tmp_path) as app:
        app.do = upload
        for _ in range(2):
            with aiohttp.MultipartWriter("form-data") as form:
                form.append("value").set_content_disposition("form-data", name="field")
            got = await app.post(data=form)
            assert (got.status, got.body) == (200, b"value")
        assert got.replayed


async def test_k8_keys_of_principals(tmp_path: Path) -> None:
    async def who(request: web.Request) -> str | None:
        return request.headers.get("User")

    async with serving(tmp_path, principal=who) as app:
        bodies = [(await app.post(User=user)).body for user in ("ann", "bob", "ann")]
        assert bodies[0] == bodies[2] != bodies[1]
        assert (await app.post()).status == 403


@pytest.mark.parametrize("effects", MODES)
async def test_r1_a_simultaneous_duplicate(tmp_path: Path, effects: str) -> None:
    began, gate = asyncio.Event(), asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        began.set()
        await gate.wait()
        return web.Response(text="slow")

    store = None if effects == "keyed" else {"concurrency": wait(0.05)}
    async with serving(tmp_path, effects, store) as app:
        app.do = slow
        first = asyncio.create_task(app.post())
        await began.wait()
        got = await app.post()
        gate.set()
        assert got.status in (409, 503), "SQLite has one writer: a transactional duplicate may find it busy"
        assert int(got.headers["Retry-After"]) >= 1
        assert (await first).body == b"slow"
        assert (await app.post()).replayed


@pytest.mark.parametrize("raised", [False, True])
async def test_r25_refusals_are_stored_and_5xx_free_the_key(tmp_path: Path, raised: bool) -> None:
    async with serving(tmp_path) as app:
        for kind, runs in ((web.HTTPNotFound, 1), (web.HTTPUnauthorized, 2), (web.HTTPServiceUnavailable, 2)):
            before = app.ran

            async def refuse(request: web.Request, kind: Any = kind) -> web.StreamResponse:
                if raised:
                    raise kind(text="no")
                return web.Response(status=kind.status_code, text="no")

            app.do = refuse
            first, again = await app.post(key=kind.__name__), await app.post(key=kind.__name__)
            assert first.status == again.status == kind.status_code
            assert first.body == again.body == b"no"
            assert app.ran - before == runs


async def test_r16_an_exception_rolls_a_transaction_back(tmp_path: Path) -> None:
    async def write(request: web.Request) -> web.StreamResponse:
        tx = current().tx
        tx.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER)")
        tx.execute("INSERT INTO orders VALUES (1)")
        if app.ran == 1:
            raise RuntimeError("broken")
        return web.Response(text="done")

    async with serving(tmp_path, "transactional") as app:
        app.do = write
        assert [(await app.post()).status for _ in range(3)] == [500, 200, 200]
        assert app.ran == 2
        with app.boundary.claim("count") as claim:
            assert claim.tx.execute("SELECT count(*) FROM orders").fetchall() == [(1,)]


async def test_a_serialization_failure_that_is_answered_by_a_409_runs_the_handler_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wanted(Exception):
        pass

    async def conflict(request: web.Request) -> web.StreamResponse:
        try:
            if app.ran < 3:
                raise Wanted
        except Wanted as error:
            raise web.HTTPConflict from error
        return web.Response(text="done")

    async with serving(tmp_path, "transactional") as app:
        backend = app.boundary._settings.backend
        monkeypatch.setattr(backend, "restarts", lambda error: isinstance(error, Wanted))
        app.do = conflict
        assert [(await app.post()).body for _ in "12"] == [b"done"] * 2
        assert app.ran == 3


async def stream(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"one ")
    await response.write(b"two")
    return response


async def test_r11_responses_sent_by_the_handler_are_recorded_without_their_body(tmp_path: Path) -> None:
    async with serving(tmp_path) as app:
        app.do = stream
        first, again = await app.post(), await app.post()
        assert first.body == b"one two"
        assert (again.status, again.body, again.headers["Idempotency-Replay"]) == (200, b"", "omitted")
        assert app.ran == 1


@each_row("effects, ends", [("keyed", True), ("keyed", False), ("external", False)])
async def test_r16_a_body_that_is_made_while_it_is_sent_is_the_handlers_work(
    tmp_path: Path, effects: str, ends: bool
) -> None:
    async def made(request: web.Request) -> web.StreamResponse:
        async def chunks() -> AsyncIterator[bytes]:
            yield b"one "
            if app.ran == 1 and not ends:
                raise RuntimeError
            yield b"two"

        response = web.Response(body=chunks(), status=202, headers={"X-Made": "yes"})
        response.set_cookie("seen", "1")
        return response

    async with serving(tmp_path, effects) as app:
        app.do = made
        if not ends:
            with pytest.raises(aiohttp.ClientError):
                await app.post()
        if effects == "external":
            assert (await app.post()).status == 409
            return
        first, again = await app.post(), await app.post()
        assert (first.status, first.body, first.headers["X-Made"]) == (202, b"one two", "yes")
        assert first.headers["Set-Cookie"].startswith("seen=1")
        assert (again.status, again.body, again.headers["Idempotency-Replay"]) == (202, b"", "omitted")


async def test_r17_a_body_that_is_made_while_it_is_sent_ends_without_its_client(tmp_path: Path) -> None:
    left, ended = asyncio.Event(), asyncio.Event()

    async def made(request: web.Request) -> web.StreamResponse:
        async def chunks() -> AsyncIterator[bytes]:
            yield b"one "
            await left.wait()
            assert request.transport is not None
            request.transport.abort()
            for _ in range(3):
                yield b"two"
            ended.set()

        return web.Response(body=chunks())

    async with serving(tmp_path, terms={"concurrency": wait(10)}) as app:
        app.do = made
        async with app.session.post(f"{app.url}/pay", data=b"x", headers={"Idempotency-Key": "k"}) as response:
            assert await response.content.readany() == b"one "
        left.set()
        await asyncio.wait_for(ended.wait(), 10)
        again = await app.post()
        assert (again.headers["Idempotency-Replay"], app.ran) == ("omitted", 1)


async def test_r11_in_a_transaction_it_is_broken_off_and_rolled_back(tmp_path: Path) -> None:
    async with serving(tmp_path, "transactional") as app:
        app.do = stream
        with pytest.raises(aiohttp.ClientError):
            await app.post()
        app.do = app.plain
        assert not (await app.post()).replayed


async def test_r12_a_body_over_the_limit(tmp_path: Path) -> None:
    async with serving(tmp_path, body_limit=10) as app:
        assert (await app.post(data=b"x" * 11)).status == 413
        assert app.ran == 0


async def test_r12_no_temporary_file_is_left_open(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        async with serving(tmp_path, body_memory=10) as app:
            assert (await app.post(data=b"x" * 99)).status == (await app.post(data=b"x" * 99)).status == 201
            assert (await app.post(data=b"y" * 99)).status == 422
        gc.collect()
    assert [str(one.message) for one in caught if "TemporaryFile" in str(one.message)] == []


async def test_r17_a_client_that_leaves_gets_its_response_later(tmp_path: Path) -> None:
    began, gate, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        began.set()
        await gate.wait()
        ended.set()
        return web.Response(text="slow")

    async with serving(tmp_path, terms={"concurrency": wait(10)}) as app:
        app.do = slow
        first = asyncio.create_task(app.post())
        await began.wait()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        gate.set()
        await ended.wait()
        again = await app.post()
        assert (again.body, again.replayed, app.ran) == (b"slow", True, 1)


async def test_a_single_handler_can_be_guarded(tmp_path: Path) -> None:
    boundary = Boundary("api", store=f"sqlite:///{tmp_path}/keys.db")
    ran = 0

    @idempotent(boundary, principal="shared")
    async def pay(request: web.Request) -> web.StreamResponse:
        nonlocal ran
        ran += 1
        return web.Response(text=current().key_for("bank"))

    application = web.Application()
    application.router.add_post("/pay", pay)
    async with aiohttp.ClientSession() as session, TestServer(application) as server:
        app = App(boundary, str(server.make_url("")).rstrip("/"), session)
        assert (await app.post(key=None)).status == 400
        assert (await app.post()).body == (await app.post()).body
    assert ran == 1
    await boundary.aclose()


async def test_a_handler_may_be_guarded_inside_a_guarded_application(tmp_path: Path) -> None:
    async with serving(tmp_path) as app:
        app.do = idempotent(app.boundary, principal="shared")(app.plain)
        assert (await app.post()).status == 201
        assert (await app.post()).replayed
