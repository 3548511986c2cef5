"""The contract over raw ASGI, each rule by its ID, on every store, leased and transactional."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any
from uuid import uuid4

import anyio
import pytest
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import StreamingResponse

from retrysafe import ConfigurationError, current, wait
from retrysafe.http.asgi import IdempotencyMiddleware
from retrysafe.http.asgi import serve_guarded as deferring
from retrysafe.http.guard import Guard
from retrysafe.http.nested import EXCHANGE
from tests.http.conftest import Place
from tests.http.places import LEASED, MEMORY, POSTGRESQL_LEASED, POSTGRESQL_TRANSACTIONAL, SEVERAL_AT_ONCE
from tests.http.wire import Connection, Exchanged, Message, post
from tests.tables import each_row

START = {"type": "http.response.start", "status": 201, "headers": [(b"content-type", b"text/plain")]}
Handler = Callable[[Any, Any, Any], Awaitable[None]]


class App:
    """An application that counts its runs and answers as it is told."""

    def __init__(self, handler: Handler | None = None) -> None:
        self.runs = 0
        self.handler = handler

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.runs += 1
        if self.handler is not None:
            await self.handler(scope, receive, send)
            return
        await send({**START, "headers": [*START["headers"], (b"x-run", str(self.runs).encode())]})  # type: ignore[misc]
        await send({"type": "http.response.body", "body": b"run %d" % self.runs})


def sending(*messages: Message) -> App:
    async def handler(scope: Any, receive: Any, send: Any) -> None:
        for message in messages:
            await send(message)

    return App(handler)


def chunk(body: bytes, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}


class Paused:
    """A handler that waits until it is let go."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.go = asyncio.Event()
        self.app = App(self._handle)

    async def _handle(self, scope: Any, receive: Any, send: Any) -> None:
        self.began.set()
        await self.go.wait()
        await send(START)
        await send(chunk(b"done", more=False))


def guarded(app: Any, place: Place, *, terms: dict[str, Any] | None = None, **options: Any) -> IdempotencyMiddleware:
    return IdempotencyMiddleware(app, place.boundary(**(terms or {})), **{"principal": "shared", **options})


async def pipelined(app: Any, *headers: list[tuple[str, str]]) -> list[Exchanged]:
    """Requests with one key, of which each is served in the context in which the response before it ends."""
    connections = [Connection(app, "k", headers=lines) for lines in headers]
    tasks: list[asyncio.Task[Exchanged]] = []

    def following(number: int) -> Any:
        def on_send(message: Message) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body") and number < len(connections):
                tasks.append(asyncio.ensure_future(connections[number].run()))

        return on_send

    for number, connection in enumerate(connections, 1):
        connection.on_send = following(number)
    await connections[0].run()
    return [connections[0].answer, *[await task for task in tasks]]


# ---------------------------------------------------------------- keys


@each_row(
    "headers",
    [[("idempotency-key", "a"), ("idempotency-key", "b")], [("idempotency-key", "a,b")]],
    ids=["lines", "comma"],
)
async def test_k3_two_keys_are_refused(place: Place, headers: Any) -> None:
    app = App()
    answer = await post(guarded(app, place), None, headers=headers)
    assert (answer.status, answer.code, app.runs) == (400, "key-invalid", 0)


@each_row("key", ["", '""', "k" * 256, "k y"])
async def test_k4_an_impossible_key_is_refused_before_the_body_is_read(place: Place, key: str) -> None:
    app = App()
    request = Connection(guarded(app, place), key)
    answer = await request.run()
    assert (answer.status, answer.code, app.runs, request.reads) == (400, "key-invalid", 0, 0)
    assert place.seen.told == []


async def test_k6_a_missing_key_passes_or_is_refused(place: Place) -> None:
    app = App()
    assert (await post(guarded(app, place), None)).status == 201
    assert (await post(guarded(app, place, required=True), None)).code == "key-missing"
    assert app.runs == 1


@each_row("method", ["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"])
async def test_k7_other_methods_pass_untouched(place: Place, method: str) -> None:
    app = App()
    middleware = guarded(app, place, required=True)
    for _ in range(2):
        answer = await post(middleware, "k", method=method)
        assert (answer.status, answer.header("idempotent-replayed")) == (201, None)
    assert app.runs == 2


async def test_k7_other_scopes_pass_untouched(place: Place) -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope, receive, send))

    scope: dict[str, Any] = {"type": "websocket"}
    await guarded(app, place, required=True)(scope, print, repr)  # type: ignore[arg-type]
    assert seen[0][0] is scope
    assert seen[0][1:] == (print, repr)


async def test_k7_an_application_starts_and_ends_as_it_would_without_the_middleware(place: Place) -> None:
    came, sent = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}], list[Any]()
    asked, scope = iter(came), {"type": "lifespan", "state": {}}

    async def app(given: Any, receive: Any, send: Any) -> None:
        assert given is scope
        assert [await receive(), await send({"type": "lifespan.startup.complete"}), await receive()] == [
            came[0], None, came[1]
        ]  # fmt: skip
        await send({"type": "lifespan.shutdown.complete"})

    async def receive() -> Any:
        return next(asked)

    async def send(message: Any) -> None:
        sent.append(message)

    await guarded(app, place, required=True)(scope, receive, send)
    assert [message["type"] for message in sent] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


@pytest.mark.fault(74)
async def test_k8_keys_of_two_principals_never_meet(place: Place) -> None:
    app = App()

    async def who(scope: Any) -> str | None:
        return dict(scope["headers"]).get(b"x-user", b"").decode() or None

    middleware = guarded(app, place, principal=who)
    ann, bob, ann_again = [await post(middleware, headers=[("x-user", user)]) for user in ("ann", "bob", "ann")]
    assert (ann.body, bob.body, ann_again.body) == (b"run 1", b"run 2", b"run 1")
    nobody = await post(middleware)
    assert (nobody.status, nobody.code, app.runs) == (403, "principal-missing", 2)


async def test_k9_a_refreshed_token_is_still_the_same_principal(place: Place) -> None:
    app = App()
    middleware = guarded(app, place, principal=lambda scope: 7)
    await post(middleware, headers=[("authorization", "Bearer old")])
    assert (await post(middleware, headers=[("authorization", "Bearer new")])).replayed
    assert app.runs == 1


# ---------------------------------------------------------------- fingerprints


@pytest.mark.fault(73)
@each_row(
    ("first", "second"),
    [
        ({"path": "/a", "raw_path": b"/a%2Fb"}, {"path": "/a", "raw_path": b"/a/b"}),
        ({"path": "/a/"}, {"path": "/a"}),
        ({"query": b"a=1&a=2"}, {"query": b"a=2&a=1"}),
        ({"body": b'{"a":1}'}, {"body": b'{"a": 1}'}),
        ({"method": "POST"}, {"method": "PATCH"}),
        ({"headers": [("if-match", '"1"')]}, {"headers": [("if-match", '"2"')]}),
        ({"headers": [("content-type", "text/plain")]}, {"headers": [("content-type", "text/html")]}),
    ],
    ids=["escaped", "slash", "query", "bytes", "method", "if-match", "type"],
)
async def test_f1_f2_another_request_with_the_same_key_is_refused(place: Place, first: Any, second: Any) -> None:
    app = App()
    middleware = guarded(app, place)
    await post(middleware, **first)
    answer = await post(middleware, **second)
    assert (answer.status, answer.code, app.runs) == (422, "key-reused", 1)
    assert (await post(middleware, **first)).replayed, "F6: the record is unchanged"


async def test_f2_without_a_raw_path_the_decoded_one_counts(place: Place) -> None:
    app = App()
    middleware = guarded(app, place)
    await post(middleware, path="/ä b", raw_path=None)
    assert (await post(middleware, path="/ä b", raw_path=b"/%C3%A4%20b")).replayed
    assert (await post(middleware, path="/ä b", raw_path=b"/%C3%A4%20b?with=query")).replayed


async def test_f5_traces_and_tokens_do_not_count(place: Place) -> None:
    app = App()
    middleware = guarded(app, place)
    answers = [
        await post(middleware, headers=[("traceparent", number), ("date", number), ("authorization", number)])
        for number in "12"
    ]
    assert (app.runs, answers[1].status, answers[1].body) == (1, answers[0].status, answers[0].body)


@SEVERAL_AT_ONCE
async def test_f6_a_mismatch_is_told_while_the_first_still_runs(place: Place) -> None:
    paused = Paused()
    middleware = guarded(paused.app, place)
    first = asyncio.ensure_future(post(middleware))
    await paused.began.wait()
    other = await post(middleware, body=b"another")
    assert other.code == ("in-progress" if place.transactional else "key-reused")
    paused.go.set()
    assert (await first).status == 201


# ---------------------------------------------------------------- one runs


@pytest.mark.fault(77)
@SEVERAL_AT_ONCE
async def test_r1_of_many_at_once_one_runs(place: Place) -> None:
    paused = Paused()
    middleware = guarded(paused.app, place)
    first = asyncio.ensure_future(post(middleware))
    await paused.began.wait()
    for refused in await asyncio.gather(*(post(middleware) for _ in range(5))):
        assert (refused.status, refused.code) == (409, "in-progress")
        assert int(refused.header("retry-after") or 0) >= 1
    paused.go.set()
    assert (await first).status == 201
    assert (await post(middleware)).replayed
    assert paused.app.runs == 1


async def test_r1_a_retry_that_a_server_serves_in_the_context_of_the_first(place: Place) -> None:
    app = App()
    middleware = guarded(app, place)
    answers = await pipelined(middleware, [], [], [])
    assert [(one.body, one.replayed) for one in answers] == [(b"run 1", False), (b"run 1", True), (b"run 1", True)]
    assert app.runs == 1


async def test_r1_a_retry_in_the_context_of_one_that_was_not_let_in(place: Place) -> None:
    guard = Guard(place.boundary(), {}, "shared")
    runs = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal runs
        if (b"x-user", b"ann") in scope["headers"]:
            await scope[EXCHANGE].begin_for(None)
            runs += 1
        await send(START)
        await send(chunk(b"done", more=False))

    async def deferred(scope: Any, receive: Any, send: Any) -> None:
        await deferring(guard, app, scope, receive, send, None)

    answers = await pipelined(deferred, [], [("x-user", "ann")], [("x-user", "ann")])
    assert ([one.replayed for one in answers], runs) == ([False, False, True], 1)


@pytest.mark.fault(77)
@SEVERAL_AT_ONCE
async def test_r1_duplicates_can_wait(place: Place) -> None:
    paused = Paused()
    middleware = guarded(paused.app, place, terms={"concurrency": wait(20)})
    first = asyncio.ensure_future(post(middleware))
    await paused.began.wait()
    others = [asyncio.ensure_future(post(middleware)) for _ in range(3)]
    await place.seen.until("waiting")
    paused.go.set()
    assert [answer.body for answer in await asyncio.gather(first, *others)] == [b"done"] * 4
    assert paused.app.runs == 1


# ---------------------------------------------------------------- replays


async def test_r2_r4_r30_a_retry_gets_the_same_response(place: Place) -> None:
    headers = [(b"link", b"<a>"), (b"Link", b"<b>"), (b"etag", b'"1"'), (b"location", b"/1"), (b"x-b", b"\xe4")]
    app = sending({**START, "headers": headers}, chunk(b"\x00\xff", more=False))
    middleware = guarded(app, place)
    first = await Connection(middleware, "k").run()
    again = await Connection(middleware, '"k"; a=1').run()
    assert (first.status, again.status, first.body, again.body) == (201, 201, b"\x00\xff", b"\x00\xff")
    stored = [(name.lower(), value) for name, value in headers]
    assert first.started[0]["headers"] == stored
    assert again.started[0]["headers"][: len(stored)] == stored
    assert again.header("cache-control") == "no-store"
    assert (again.replayed, again.header("content-length"), app.runs) == (True, "2", 1)


async def test_r5_r6_fields_of_one_connection_and_secrets_are_not_stored(place: Place) -> None:
    names = ["connection", "x-named", "keep-alive", "transfer-encoding", "date", "set-cookie", "www-authenticate"]
    headers = [(name.encode(), b"x-named" if name == "connection" else b"x") for name in names]
    middleware = guarded(sending({**START, "headers": headers}, chunk(b"x", more=False)), place)
    first = await post(middleware)
    assert [name for name, _ in first.lines] == names
    assert {name for name, _ in (await post(middleware)).lines} == {
        "cache-control",
        "idempotent-replayed",
        "content-length",
    }


async def test_r6_an_allowed_cookie_is_kept_line_by_line(place: Place) -> None:
    cookies = [(b"set-cookie", b"a=1"), (b"set-cookie", b"b=2")]
    middleware = guarded(sending({**START, "headers": cookies}, chunk(b"x", more=False)), place, secrets=["set-cookie"])
    await post(middleware)
    assert (await post(middleware)).lines[:2] == [("set-cookie", "a=1"), ("set-cookie", "b=2")]


@each_row(("status", "body"), [(204, b""), (303, b""), (200, b""), (200, bytes(range(256)))])
async def test_r7_any_body_is_replayed(place: Place, status: int, body: bytes) -> None:
    middleware = guarded(sending({**START, "status": status}, chunk(body, more=False)), place)
    await post(middleware)
    again = await post(middleware)
    assert (again.status, again.body, again.replayed) == (status, body, True)
    assert again.header("content-length") == (None if status == 204 else str(len(body)))


@each_row(
    "chunks",
    [
        [chunk(b"all", more=False)],
        [chunk(b"all"), chunk(b"", more=False)],
        [chunk(b""), chunk(b"al"), chunk(b"l"), chunk(b""), chunk(b"", more=False)],
        [chunk(b"", more=False)],
    ],
    ids=["one", "empty end", "several", "no body"],
)
async def test_r8_the_record_is_there_before_the_client_can_see_the_end(place: Place, chunks: list[Message]) -> None:
    length = sum(len(part["body"]) for part in chunks)
    start = {**START, "headers": [(b"content-length", str(length).encode())]}
    boundary = place.boundary()
    middleware = IdempotencyMiddleware(sending(start, *chunks), boundary, principal="shared")
    seen_at: list[bool] = []
    request = Connection(middleware, "k")

    def on_send(message: Message) -> None:
        received = sum(len(sent.get("body", b"")) for sent in [*request.answer.bodies, message])
        whole = received == length and (length > 0 or message["type"] == "http.response.start")
        if whole or place.transactional:
            seen_at.append("completed" in place.seen.names)

    request.on_send = on_send
    await request.run()
    assert seen_at
    assert all(seen_at)
    assert (await post(middleware)).body == b"all"[:length]


async def test_r10_a_streamed_response_is_captured_through_middleware(place: Place) -> None:
    async def dispatch(request: Any, call_next: Any) -> Any:
        response = await call_next(request)
        response.headers["x-inner"] = "1"
        return response

    async def stream() -> Any:
        for part in (b"a", b"b", b"c"):
            yield part

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        current().token  # noqa: B018 - the claim is visible in the task of the inner middleware
        await StreamingResponse(stream())(scope, receive, send)

    app = App(handler)
    middleware = guarded(BaseHTTPMiddleware(app, dispatch), place)
    first, again = await post(middleware), await post(middleware)
    assert (first.body, again.body, again.header("x-inner"), app.runs) == (b"abc", b"abc", "1", 1)


async def test_r10_inside_of_a_middleware_with_tasks_of_its_own(place: Place) -> None:
    async def dispatch(request: Any, call_next: Any) -> Any:
        return await call_next(request)

    app = App()
    middleware = BaseHTTPMiddleware(guarded(app, place), dispatch)
    first, again = await post(middleware), await post(middleware)
    assert (first.body, again.body, app.runs) == (b"run 1", b"run 1", 1)


async def test_r10_a_response_sent_from_another_task(place: Place) -> None:
    async def handler(scope: Any, receive: Any, send: Any) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send, START)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send, chunk(b"x", more=False))

    app = App(handler)
    middleware = guarded(app, place)
    first, again = await post(middleware), await post(middleware)
    assert (first.body, again.body, app.runs) == (b"x", b"x", 1)


# ---------------------------------------------------------------- large and endless responses


@each_row("kind", ["large", "events"])
async def test_r11_a_response_that_is_not_kept(place: Place, kind: str) -> None:
    content_type = b"Text/Event-Stream; charset=utf-8" if kind == "events" else b"text/plain"
    parts = [chunk(b"x" * 10) for _ in range(3)]
    app = sending({**START, "headers": [(b"content-type", content_type)]}, *parts, chunk(b"", more=False))
    middleware = guarded(app, place, response_limit=16 if kind == "large" else 100)
    first = await post(middleware)
    if place.transactional:
        assert (first.status, first.code) == (501, "response-unsupported")
        assert "completed" not in place.seen.names
        return
    assert (first.status, first.body, first.complete) == (201, b"x" * 30, True)
    again = await post(middleware)
    assert (again.status, again.body, again.header("idempotency-replay"), app.runs) == (201, b"", "omitted", 1)


@LEASED
async def test_r11_a_live_response_arrives_as_it_is_sent(place: Place) -> None:
    go = asyncio.Event()

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        await send({**START, "headers": [(b"content-type", b"text/event-stream")]})
        await send(chunk(b"1"))
        await go.wait()
        await send(chunk(b"2"))
        await send(chunk(b"", more=False))

    request = Connection(guarded(App(handler), place), "k")
    running = asyncio.ensure_future(request.run())
    await request.until(lambda: request.answer.body == b"1")
    go.set()
    assert (await running).body == b"12"


@LEASED
async def test_r11_an_endless_response_ends_when_its_client_leaves(place: Place) -> None:
    async def handler(scope: Any, receive: Any, send: Any) -> None:
        await send({**START, "headers": [(b"content-type", b"text/event-stream")]})
        while True:
            await send(chunk(b"tick"))
            await asyncio.sleep(0)

    request = Connection(guarded(App(handler), place), "k")
    running = asyncio.ensure_future(request.run())
    await request.sent.wait()
    request.left.set()
    with pytest.raises(OSError, match="gone"):
        await running


@LEASED
async def test_r17_a_response_that_is_not_kept_comes_to_its_end_without_its_client(place: Place) -> None:
    async def handler(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        await send(chunk(b"x" * 20))
        listening = asyncio.ensure_future(_left(receive))
        for _ in range(20):
            await send(chunk(b"x"))
            await asyncio.sleep(0)
        assert not listening.done()
        listening.cancel()
        await send(chunk(b"", more=False))

    middleware = guarded(App(handler), place, response_limit=16)
    request = Connection(middleware, "k")
    running = asyncio.ensure_future(request.run())
    await request.sent.wait()
    request.left.set()
    with suppress(OSError):
        await running
    again = await post(middleware)
    assert (again.status, again.header("idempotency-replay")) == (201, "omitted")


async def _left(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def test_r11_large_can_be_an_error(place: Place) -> None:
    app = sending(START, chunk(b"x" * 20, more=False))
    answer = await post(guarded(app, place, response_limit=16, on_large="error"))
    assert (answer.status, answer.code) == (501, "response-unsupported")


async def test_r8_another_task_cannot_send_past_a_response_that_is_being_recorded(place: Place) -> None:
    async def handler(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        stray = (send({**START, "status": 500}), send(chunk(b"stray", more=False)))
        await asyncio.gather(send(chunk(b"x", more=False)), *stray, return_exceptions=True)

    answer = await post(guarded(App(handler), place))
    assert [message["type"] for message in answer.messages[:2]] == ["http.response.start", "http.response.body"]
    assert (answer.started[0]["status"], answer.bodies[0]["body"]) == (201, b"x")


async def test_r16_a_task_that_outlives_its_failed_handler_sends_nothing(place: Place) -> None:
    failed, refused = asyncio.Event(), asyncio.Event()

    async def outlive(send: Any) -> None:
        await failed.wait()
        with suppress(RuntimeError):
            await send(START)
        refused.set()

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        scope["tasks"].append(asyncio.ensure_future(outlive(send)))
        raise ValueError("broken")

    request = Connection(guarded(App(handler), place), "k", tasks=[])
    with pytest.raises(ValueError, match="broken"):
        await request.run()
    failed.set()
    await refused.wait()
    assert request.answer.messages == []


async def test_a_deferred_claim_that_was_refused_is_not_passed_by_asking_again(place: Place) -> None:
    runs = 0

    async def stubborn(scope: Any, receive: Any, send: Any) -> None:
        nonlocal runs
        with suppress(Exception):
            await scope[EXCHANGE].begin_for("ann")
        await scope[EXCHANGE].begin_for("ann")
        runs += 1
        await send(START)
        await send(chunk(b"x", more=False))

    guard = Guard(place.boundary(), {}, lambda scope: None)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await deferring(guard, stubborn, scope, receive, send, None)

    assert (await post(app)).body == b"x"
    assert (await post(app)).replayed
    assert (await post(app, body=b"another")).code == "key-reused"
    assert runs == 1


async def test_an_application_that_swallows_a_refusal_still_hears_of_the_disconnect(place: Place) -> None:
    async def stubborn(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        with suppress(BaseException):
            await send(START)
            await send(chunk(b"x" * 20, more=False))
        request.left.set()
        assert (await receive())["type"] == "http.disconnect"
        ended.set()

    ended = asyncio.Event()
    request = Connection(guarded(App(stubborn), place, response_limit=16, on_large="error"), "k")
    with suppress(OSError):  # the client has gone, so the refusal cannot be sent
        await asyncio.wait_for(request.run(), 60)
    assert ended.is_set()


# ---------------------------------------------------------------- requests


async def echo(scope: Any, receive: Any, send: Any) -> None:
    body, more = b"", True
    while more:
        message = await receive()
        assert message["type"] == "http.request"
        body, more = body + message["body"], message["more_body"]
    await send(START)
    await send(chunk(body, more=False))


@each_row("body", [[b""], [b"a", b"b"], [b"x" * 50, b"y" * 50], [b"a", b""]], ids=range(4))
async def test_r12_a_large_request_is_spooled(place: Place, body: list[bytes]) -> None:
    middleware = guarded(App(echo), place, body_memory=16)
    assert (await post(middleware, body=body)).body == b"".join(body)
    assert (await post(middleware, body=b"".join(body))).replayed


@pytest.mark.fault(66)
@each_row("declared", [True, False])
async def test_r12_a_request_over_the_limit_is_refused(place: Place, declared: bool) -> None:
    app = App(echo)
    headers = [("content-length", "64")] if declared else []
    request = Connection(guarded(app, place, body_limit=32), "k", headers=headers, body=[b"x" * 32, b"x" * 32])
    answer = await request.run()
    assert (answer.status, answer.code, app.runs) == (413, "request-too-large", 0)
    assert request.reads == (0 if declared else 2)


class Slow(Connection):
    """A client that sends half of its body, and the rest when it is let go."""

    go: asyncio.Event
    waiting: asyncio.Event

    async def receive(self) -> Message:
        if self.reads == 1:
            self.waiting.set()
            await self.go.wait()
        return await super().receive()


@SEVERAL_AT_ONCE
@pytest.mark.fault(76)
async def test_r12_a_client_that_sends_slowly_keeps_no_key_meanwhile(place: Place) -> None:
    """A client that trickles a body in (slowloris) has claimed nothing: the same key is served to others at once."""
    app = App()
    middleware = guarded(app, place)
    slow = Slow(middleware, "k", body=[b"{", b"}"])
    slow.go, slow.waiting = asyncio.Event(), asyncio.Event()
    trickling = asyncio.ensure_future(slow.run())
    await slow.waiting.wait()
    assert place.seen.told == []
    quick = await post(middleware)
    assert (quick.status, quick.replayed, app.runs) == (201, False, 1)
    slow.go.set()
    answer = await trickling
    assert (answer.status, answer.replayed, answer.body, app.runs) == (201, True, quick.body, 1)


@pytest.mark.fault(65)
@each_row("canonical", [False, True])
async def test_r25_json_that_cannot_be_parsed(place: Place, canonical: bool) -> None:
    """The application's 400 is its answer like any 4xx; the layer's own, where it parses by itself, uses no key up."""

    async def parsing(scope: Any, receive: Any, send: Any) -> None:
        try:
            json.loads((await receive())["body"])
            status = 201
        except ValueError:
            status = 400
        await send({**START, "status": status})
        await send(chunk(b"parsed by the application", more=False))

    app = App(parsing)
    middleware = guarded(app, place, canonical_json=canonical)
    answers = [await post(middleware, body=body) for body in (b'{"a":', b'{"a":', b'{"a": 1}')]
    if canonical:
        assert [(answer.status, answer.code) for answer in answers[:2]] == [(400, "request-invalid")] * 2
        assert (answers[2].status, answers[2].replayed, app.runs) == (201, False, 1)
    else:
        assert [(answer.status, answer.replayed) for answer in answers[:2]] == [(400, False), (400, True)]
        assert answers[0].body == answers[1].body == b"parsed by the application"
        assert (answers[2].status, answers[2].code, app.runs) == (422, "key-reused", 1)


async def test_r13_after_the_body_the_server_is_heard(place: Place) -> None:
    told: list[str] = []

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["body"] == b"{}"
        await send(START)
        await send(chunk(b"x", more=False))
        told.append((await receive())["type"])
        told.append((await receive())["type"])

    request = Connection(guarded(App(handler), place), "k")
    running = asyncio.ensure_future(request.run())
    await request.sent.wait()
    assert told == []
    request.left.set()
    await running
    assert told == ["http.disconnect", "http.disconnect"]
    assert request.reads == 2


async def test_r13_a_stream_is_not_cut_short_by_a_client_that_left(place: Place) -> None:
    """Starlette listens for the disconnect while it streams, before version 2.4 of the ASGI specification."""

    async def stream() -> Any:
        for part in (b"a", b"b"):
            yield part
            await asyncio.sleep(0)

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        await StreamingResponse(stream())(scope, receive, send)

    app = App(handler)
    middleware = guarded(app, place)
    request = Connection(middleware, "k", asgi={"version": "3.0", "spec_version": "2.3"})
    request.chunks = [b"{}"]
    gone = asyncio.ensure_future(request.run())
    request.left.set()
    with suppress(OSError):  # the server's, when the end of the response is sent
        await gone
    assert (await post(middleware)).body == b"ab"
    assert app.runs == 1


async def test_r14_extensions_that_pass_around_are_taken_away(place: Place) -> None:
    seen: list[Any] = []

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        seen.append(sorted(scope["extensions"]))
        await send(START)
        await send(chunk(b"x", more=False))

    offered = ["http.response.pathsend", "http.response.zerocopysend", "http.response.trailers", "tls"]
    request = Connection(guarded(App(handler), place), "k", extensions={name: {} for name in offered})
    await request.run()
    assert seen == [["tls"]]
    assert sorted(request.scope["extensions"]) == sorted(offered)


async def test_r14_a_message_that_passes_around_is_an_error(place: Place) -> None:
    app = sending(START, {"type": "http.response.pathsend", "path": "/etc/passwd"})
    with pytest.raises(RuntimeError, match="pathsend"):
        await post(guarded(app, place))


async def test_r14_interim_responses_go_out_live_and_are_not_stored(place: Place) -> None:
    hint: Message = {"type": "http.response.early_hint", "links": [b"<a>"]}
    app = sending(hint, START, chunk(b"x", more=False))
    middleware = guarded(app, place)
    first, again = await post(middleware), await post(middleware)
    assert first.messages[0] == hint
    assert [message["type"] for message in again.messages] == ["http.response.start", "http.response.body"]


async def test_r14_after_an_interim_response_a_refusal_can_still_be_sent(place: Place) -> None:
    hint: Message = {"type": "http.response.early_hint", "links": [b"<a>"]}
    app = sending(hint, START, chunk(b"x" * 20, more=False))
    answer = await post(guarded(app, place, response_limit=16, on_large="error"))
    assert answer.status == 501


# ---------------------------------------------------------------- errors


async def test_r15_a_background_task_that_raises_changes_nothing(place: Place) -> None:
    async def handler(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        await send(chunk(b"x", more=False))
        raise RuntimeError("in the background")

    app = App(handler)
    middleware = guarded(app, place)
    request = Connection(middleware, "k")
    with pytest.raises(RuntimeError, match="in the background"):
        await request.run()
    assert request.answer.complete
    assert (await post(middleware)).replayed
    assert app.runs == 1


@each_row("sent", [[], [START], [START, chunk(b"partial")]], ids=["before", "start", "partial"])
async def test_r16_an_exception_is_raised_again_and_frees_the_key(place: Place, sent: list[Message]) -> None:
    fails = True

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        for message in sent:
            await send(message)
        if fails:
            raise LookupError("no")
        if not sent:
            await send(START)
        await send(chunk(b"whole", more=False))

    middleware = guarded(App(handler), place)
    request = Connection(middleware, "k")
    with pytest.raises(LookupError):
        await request.run()
    assert not request.answer.complete
    assert place.seen.names[-1] == ("rolled_back" if place.transactional else "released")
    fails = False
    second = await post(middleware)
    assert second.body.endswith(b"whole")
    assert second.header("idempotent-replayed") is None


@LEASED
async def test_r16_external_work_that_raised_is_unknown(place: Place) -> None:
    async def handler(scope: Any, receive: Any, send: Any) -> None:
        raise LookupError

    middleware = guarded(App(handler), place, terms={"effects": "external"})
    with pytest.raises(LookupError):
        await post(middleware)
    answer = await post(middleware)
    assert (answer.status, answer.code) == (409, "outcome-unknown")


@each_row("sent", [[], [START], [START, chunk(b"partial")]], ids=["nothing", "start", "partial"])
async def test_r16_an_application_that_never_ends_its_response(place: Place, sent: list[Message]) -> None:
    with pytest.raises(RuntimeError, match="without a complete response"):
        await post(guarded(sending(*sent), place))
    assert place.seen.names[-1] == ("rolled_back" if place.transactional else "released")


@each_row("sent", [[chunk(b"x", more=False)], [START, START]], ids=["no start", "two starts"])
async def test_r16_messages_out_of_order_are_an_error(place: Place, sent: list[Message]) -> None:
    with pytest.raises(RuntimeError, match="The application"):
        await post(guarded(sending(*sent), place))


async def test_r16_a_5xx_is_a_failure(place: Place) -> None:
    app = sending({**START, "status": 503}, chunk(b"sorry", more=False))
    middleware = guarded(app, place)
    for run in (1, 2):
        answer = await post(middleware)
        assert (answer.status, answer.body, app.runs) == (503, b"sorry", run)


async def test_r16_a_5xx_can_be_stored(place: Place) -> None:
    app = sending({**START, "status": 503}, chunk(b"sorry", more=False))
    middleware = guarded(app, place, on_5xx="store")
    first, again = await post(middleware), await post(middleware)
    assert (first.status, again.status, again.replayed, app.runs) == (503, 503, True, 1)


@each_row(("status", "stored"), [(400, True), (404, True), (422, True), (401, False), (429, False)])
async def test_a_4xx_is_stored_unless_a_retry_may_fare_better(place: Place, status: int, stored: bool) -> None:
    app = sending({**START, "status": status}, chunk(b"no", more=False))
    middleware = guarded(app, place)
    await post(middleware)
    assert ((await post(middleware)).header("idempotent-replayed") is not None) is stored
    assert app.runs == (1 if stored else 2)


@pytest.mark.fault(6)
async def test_r17_the_result_is_recorded_although_the_client_left(place: Place) -> None:
    paused = Paused()
    middleware = guarded(paused.app, place)
    request = Connection(middleware, "k")
    running = asyncio.ensure_future(request.run())
    await paused.began.wait()
    request.left.set()
    paused.go.set()
    with suppress(OSError):  # the server's, when the end of the response is sent
        await running
    again = await post(middleware)
    assert (again.body, again.replayed, paused.app.runs) == (b"done", True, 1)


@pytest.mark.fault(6)
async def test_r17_a_client_that_left_before_it_saw_any_of_it_gets_the_same_bytes(place: Place) -> None:
    headers = [(b"content-type", b"application/octet-stream"), (b"etag", b'"\xe4"')]
    app = sending({**START, "headers": headers}, chunk(b"\x00\xff"), chunk(b"\xfe\n", more=False))
    middleware = guarded(app, place)
    request = Connection(middleware, "k")
    request.left.set()  # all that is sent is lost
    with suppress(OSError):
        await request.run()
    again = await post(middleware)
    assert (again.status, again.body, again.replayed, app.runs) == (201, b"\x00\xff\xfe\n", True, 1)
    assert again.started[0]["headers"][:2] == headers


@pytest.mark.fault(6)
@each_row("gone", [OSError, RuntimeError], ids=["asyncio", "uvloop"])
async def test_r17_a_client_that_left_in_the_middle_of_its_response(place: Place, gone: type[Exception]) -> None:
    began, go = asyncio.Event(), asyncio.Event()

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        await send(chunk(b"a"))
        await send(chunk(b"b"))
        began.set()
        await go.wait()
        await send(chunk(b"c"))
        await send(chunk(b"d"))
        await send(chunk(b"", more=False))

    app = App(handler)
    middleware = guarded(app, place)
    request = Connection(middleware, "k")
    running = asyncio.ensure_future(request.run())
    await began.wait()
    if not place.transactional:
        await request.until(lambda: bool(request.answer.body))
    request.gone = gone("the client has gone")
    request.left.set()
    go.set()
    with suppress(gone):
        await running
    assert (await post(middleware)).body == b"abcd"
    assert app.runs == 1


@pytest.mark.fault(19)
async def test_r17_a_client_that_left_before_the_end_of_its_body(place: Place) -> None:
    app = App()
    request = Connection(guarded(app, place, body_memory=1), "k", body=[b"aaaa", b"bbbb"], leaves_after=1)
    answer = await request.run()
    assert (answer.messages, app.runs, place.seen.told) == ([], 0, [])


async def test_r18_a_cancelled_handler_frees_its_key(place: Place) -> None:
    paused = Paused()
    middleware = guarded(paused.app, place)
    running = asyncio.ensure_future(post(middleware))
    await paused.began.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    paused.go.set()
    assert (await post(middleware)).status == 201
    assert paused.app.runs == 2


async def test_r18_cancelled_by_a_cancel_scope_around_it(place: Place) -> None:
    paused = Paused()
    middleware = guarded(paused.app, place)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(middleware, *_connected(middleware))
        await paused.began.wait()
        tasks.cancel_scope.cancel()
    paused.go.set()
    assert (await post(middleware)).status == 201


def _connected(app: Any) -> tuple[Any, Any, Any]:
    request = Connection(app, "k")
    return request.scope, request.receive, request.send


@each_row("awaits", range(14))
async def test_r18_cancelled_at_every_await(place: Place, awaits: int) -> None:
    """Whenever the request is cancelled, the key is free or its response is stored; it never stays locked."""
    app = App(echo)
    middleware = guarded(app, place)
    await post(middleware, str(uuid4()))
    running = asyncio.ensure_future(post(middleware))
    for _ in range(awaits):
        await asyncio.sleep(0)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    again = await post(middleware)
    assert again.status == 201


@LEASED
async def test_r20_an_original_that_lost_its_lease_is_not_sent_as_success(place: Place) -> None:
    async def handler(scope: Any, receive: Any, send: Any) -> None:
        claim = current()
        claim._held.lose()  # type: ignore[union-attr]  # as the heartbeat does
        await asyncio.Event().wait()

    answer = await post(guarded(App(handler), place))
    assert (answer.status, answer.code) == (409, "in-progress")
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@LEASED
async def test_r20_a_handler_that_finds_its_lease_lost_is_answered_as_such(place: Place) -> None:
    async def handler(scope: Any, receive: Any, send: Any) -> None:
        claim = current()
        claim._held.until = 0.0  # type: ignore[union-attr]  # as after a pause, before the heartbeat beats again
        claim.ensure_held()

    answer = await post(guarded(App(handler), place))
    assert (answer.status, answer.code) == (409, "in-progress")


@LEASED
async def test_r20_a_lost_lease_is_recognised_in_a_group(place: Place) -> None:
    async def late() -> None:
        claim = current()
        claim._held.until = 0.0  # type: ignore[union-attr]  # as after a pause, before the heartbeat beats again
        claim.ensure_held()

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(late())

    answer = await post(guarded(App(handler), place))
    assert (answer.status, answer.code) == (409, "in-progress")


async def test_r23_a_retry_with_if_match_is_replayed(place: Place) -> None:
    current_tag = ['"1"']

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        fresh = dict(scope["headers"])[b"if-match"].decode() == current_tag[0]
        current_tag[0] = '"2"'
        await send({**START, "status": 200 if fresh else 412})
        await send(chunk(b"", more=False))

    middleware = guarded(App(handler), place)
    answers = [await post(middleware, headers=[("if-match", '"1"')]) for _ in range(2)]
    assert [answer.status for answer in answers] == [200, 200]


async def test_r25_answers_of_the_layer_are_not_stored(place: Place) -> None:
    app = App()
    middleware = guarded(app, place, body_limit=4)
    assert (await post(middleware, body=b"too large")).status == 413
    assert (await post(middleware, body=b"ok")).status == 201
    assert app.runs == 1


@MEMORY
async def test_r25_a_silent_store_refuses_or_lets_pass(place: Place) -> None:
    app = App()
    place.store = "redis://127.0.0.1:1"
    answer = await post(guarded(app, place))
    assert (answer.status, answer.code, answer.header("retry-after"), app.runs) == (503, "store-unavailable", "1", 0)
    passed = await post(guarded(app, place, on_store_error="open"))
    assert (passed.status, app.runs) == (201, 1)


# ---------------------------------------------------------------- what the handler has, and what it leaves


async def test_the_claim_is_visible_in_the_handler_and_not_after_it(place: Place) -> None:
    seen: list[Any] = []

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        seen.append(current().tx is not None)
        seen.append(await asyncio.to_thread(lambda: current().key_for("bank")))
        assert scope[EXCHANGE].claim is current()
        await send(START)
        await send(chunk(b"x", more=False))
        with pytest.raises(ConfigurationError):
            current()

    await post(guarded(App(handler), place))
    assert seen[0] is place.transactional
    assert isinstance(seen[1], str)
    with pytest.raises(ConfigurationError):
        current()


async def test_notes_of_routers_in_the_scope_are_seen_around(place: Place) -> None:
    async def handler(scope: Any, receive: Any, send: Any) -> None:
        scope["endpoint"] = "create"
        await send(START)
        await send(chunk(b"x", more=False))

    for key in ("k", None):
        request = Connection(guarded(App(handler), place), key)
        await request.run()
        assert request.scope["endpoint"] == "create"
        assert EXCHANGE not in request.scope


async def test_the_outermost_of_two_middlewares_guards(place: Place) -> None:
    app = App()
    middleware = guarded(guarded(app, place), place)
    first, again = await post(middleware), await post(middleware)
    assert (first.body, again.body, again.replayed) == (b"run 1", b"run 1", True)


@pytest.mark.fault(23)
@POSTGRESQL_TRANSACTIONAL
async def test_the_application_is_run_again_when_the_database_wants_it(place: Place) -> None:
    """FAULTS 23: a serialization failure; the whole request again, with its body."""
    from psycopg.errors import SerializationFailure

    bodies: list[bytes] = []

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        bodies.append((await receive())["body"])
        if len(bodies) < 3:
            raise SerializationFailure
        await send(START)
        await send(chunk(b"third", more=False))

    answer = await post(guarded(App(handler), place), body=b"the body")
    assert (answer.body, bodies) == (b"third", [b"the body"] * 3)
    assert place.seen.names.count("restarted") == 2


@POSTGRESQL_TRANSACTIONAL
async def test_the_application_is_run_again_when_somebody_made_a_500_of_the_error(place: Place) -> None:
    from psycopg.errors import SerializationFailure

    app = App()

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        if app.runs == 1:
            scope[EXCHANGE].error = SerializationFailure()
            await send({**START, "status": 500})
            await send(chunk(b"error", more=False))
        else:
            await send(START)
            await send(chunk(b"second", more=False))

    app.handler = handler
    assert (await post(guarded(app, place))).body == b"second"


@POSTGRESQL_LEASED
async def test_a_leased_request_is_ended_once_when_a_500_tells_of_such_an_error(place: Place) -> None:
    from psycopg.errors import SerializationFailure

    left: list[Any] = []

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        claim, leave = current(), current().__aexit__
        claim.__aexit__ = lambda *error: left.append(error) or leave(*error)  # type: ignore[method-assign, func-returns-value]
        scope[EXCHANGE].error = SerializationFailure()
        await send({**START, "status": 500})
        await send(chunk(b"error", more=False))

    assert (await post(guarded(App(handler), place))).body == b"error"
    assert len(left) == 1


@pytest.mark.slow
@pytest.mark.fault(24)
@POSTGRESQL_TRANSACTIONAL
async def test_restarts_are_bounded(place: Place) -> None:
    from psycopg.errors import SerializationFailure

    async def handler(scope: Any, receive: Any, send: Any) -> None:
        raise SerializationFailure

    app = App(handler)
    answer = await post(guarded(app, place))
    assert (answer.status, answer.code, app.runs) == (503, "store-unavailable", 6)
