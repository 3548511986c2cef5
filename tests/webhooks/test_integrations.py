"""The five integrations over sockets: the raw body reaches the receiver in each, and its answer the provider."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from fastapi import FastAPI, Request
from flask import Flask
from starlette.testclient import TestClient

from retrysafe import Boundary, ConfigurationError, Event
from retrysafe.backends.registry import connect
from retrysafe.webhooks import Receiver, WebhookEvent, asgi, flask, starlette, wsgi
from tests.conftest import require
from tests.django.aliases import add_alias, remove_alias, set_up
from tests.http.conftest import Place
from tests.http.places import MEMORY
from tests.webhooks.conftest import WINDOW, Clock, Effects, receiver_of
from tests.webhooks.providers import NOW, PROVIDERS, STRIPE, Delivery, Provider, tampered
from tests.webhooks.servers import DOORS, LOOPS, Answer, post, serving, serving_in_threads

set_up()

from django.db import connections  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*websockets.*:DeprecationWarning")
EVERY_DOOR = pytest.mark.parametrize("door", DOORS)


def receivers_on(place: Place, clock: Clock, effects: Effects, door: str) -> dict[str, Receiver]:
    """A receiver of every provider, whose handler fails once for "evt_fails"."""
    made = {}
    for name, provider in PROVIDERS.items():
        receiver = made[name] = receiver_of(place, provider, clock)
        failed: list[str] = []

        def sync(event: WebhookEvent[Any], failed: list[str] = failed) -> None:
            if event.id == "evt_fails" and not failed:
                failed.append(event.id)
                raise ValueError("at first")
            effects.had(event)

        async def on_a_loop(event: WebhookEvent[Any], failed: list[str] = failed) -> None:
            if event.id == "evt_fails" and not failed:
                failed.append(event.id)
                raise ValueError("at first")
            await effects.ahad(event)

        receiver.on(provider.type)(on_a_loop if door in LOOPS else sync)
    return made


def together(port: int, name: str, provider: Provider) -> list[Answer]:
    """Six deliveries of one event at once."""
    barrier = threading.Barrier(6)

    def deliver(_: int) -> Answer:
        barrier.wait(60)
        return post(port, name, provider.deliver("evt_together"))

    with ThreadPoolExecutor(6) as threads:
        return list(threads.map(deliver, range(6)))


@pytest.mark.slow
@EVERY_DOOR
async def test_one_effect_each_through_every_door(place: Place, effects: Effects, clock: Clock, door: str) -> None:
    """Tampered, out of order, replayed, failing at first, at once, and late."""
    async with serving(door, receivers_on(place, clock, effects, door)) as port:
        for name, provider in PROVIDERS.items():

            async def deliver(delivery: Delivery, name: str = name) -> Answer:
                return await asyncio.to_thread(post, port, name, delivery)

            genuine = provider.deliver()
            assert (await deliver(tampered(genuine))).status == 400
            for id in ("evt_later", provider.event_id):
                first, again = [await deliver(provider.deliver(id)) for _ in range(2)]
                assert (first.status, first.replayed, first.body) == (200, False, b"")
                assert again.replayed
            assert [(await deliver(provider.deliver("evt_fails"))).status for _ in range(3)] == [500, 200, 200]
            answers = await asyncio.to_thread(together, port, name, provider)
            assert {answer.status for answer in answers} <= {200, 503}
            assert sum(answer.status == 200 and not answer.replayed for answer in answers) == 1
            assert all("retry-after" in answer.headers for answer in answers if answer.status == 503)
            clock.now = NOW + 86400
            assert (await deliver(genuine)).status == (400 if provider.signs_time else 200)
            assert (await deliver(provider.deliver(now=NOW + 86400))).replayed
            clock.now = NOW
    each = [provider.event_id for provider in PROVIDERS.values()]
    assert effects.of == sorted(each + ["evt_later", "evt_fails", "evt_together"] * 4)


@pytest.mark.slow
@MEMORY
@EVERY_DOOR
async def test_deliveries_that_no_provider_sends(place: Place, effects: Effects, clock: Clock, door: str) -> None:
    receiver = receiver_of(place, STRIPE, clock, body_limit=4000)
    receiver.on(STRIPE.type)(effects.had)
    genuine = STRIPE.deliver()
    packed = gzip.compress(genuine.body)
    encoded = Delivery({**STRIPE.deliver(body=packed).headers, "Content-Encoding": "gzip"}, packed)
    async with serving(door, {"stripe": receiver}) as port:

        def send(delivery: Delivery, **how: Any) -> Any:
            return asyncio.to_thread(post, port, "stripe", delivery, **how)

        refused = await send(genuine, method="PUT")
        assert (refused.status, "POST" in refused.headers["allow"]) == (405, True)
        if door not in ("flask", "fastapi"):  # their routes refuse it themselves
            assert json.loads(refused.body)["code"] == "method-not-allowed"
        assert (await send(STRIPE.deliver(body=b"{" + b" " * 4000 + b"}"))).status == 413
        refused = await send(encoded)
        assert (refused.status, json.loads(refused.body)["code"]) == (415, "encoding-unsupported")
        assert refused.headers["accept-encoding"] == "identity"
        assert (await send(Delivery(genuine.headers, b""))).status == 400
        if door in LOOPS:
            assert (await send(STRIPE.deliver(body=b"{" + b" " * 4000 + b"}"), chunked=True)).status == 413
            assert (await send(genuine, chunked=True)).status == 200
        else:
            assert (await send(genuine)).status == 200
    assert effects.of == [STRIPE.event_id]


@pytest.mark.slow
@MEMORY
async def test_a_form_arrives_as_it_was_signed(place: Place, clock: Clock) -> None:
    """Frameworks parse forms of their own accord, and what was signed would be gone."""
    from tests.webhooks.providers import SLACK

    body = b"token=x&command=%2Fweather&text=94070+%C3%A9&trigger_id=13345224609.738474920.8088930838d88f008e0"
    signed = SLACK.deliver(body=body)
    delivery = Delivery({**signed.headers, "Content-Type": "application/x-www-form-urlencoded"}, body)
    for door in DOORS:
        receiver = receiver_of(place, SLACK, clock)
        texts: list[str] = []
        receiver.on("/weather")(lambda event, texts=texts: texts.append(event.data["text"]))
        async with serving(door, {"slack": receiver}) as port:
            answers = [await asyncio.to_thread(post, port, "slack", delivery) for _ in range(2)]
        assert [answer.replayed for answer in answers] == [False, True]
        assert texts == ["94070 é"]


# ------------------------------------------------------------ a body that somebody else has read


@MEMORY
def test_flask_a_body_that_was_parsed_is_a_developers_error(place: Place, clock: Clock, effects: Effects) -> None:
    from flask import request

    receiver = receiver_of(place, STRIPE, clock)
    receiver.otherwise(effects.had)
    app = Flask(__name__)
    app.testing = True
    app.add_url_rule("/", view_func=flask.view(receiver), methods=["POST"])
    reads: list[Callable[[], object]] = []

    @app.before_request
    def read() -> None:
        reads[0]()

    delivery = STRIPE.deliver()
    form = Delivery({**delivery.headers, "Content-Type": "application/x-www-form-urlencoded"}, delivery.body)
    reads[:] = [lambda: request.form]
    with pytest.raises(ConfigurationError, match=r"request\.form"):
        app.test_client().post("/", data=form.body, headers=form.headers)
    assert place.seen.names == []
    reads[:] = [lambda: request.get_data()]
    assert app.test_client().post("/", data=delivery.body, headers=delivery.headers).status_code == 200
    assert effects.of == [STRIPE.event_id]


@MEMORY
def test_flask_takes_no_more_than_its_own_limit(place: Place, clock: Clock) -> None:
    app = Flask(__name__)
    app.config["MAX_CONTENT_LENGTH"] = 100
    app.add_url_rule("/", view_func=flask.view(receiver_of(place, STRIPE, clock)), methods=["POST"])
    delivery = STRIPE.deliver()
    assert app.test_client().post("/", data=delivery.body, headers=delivery.headers).status_code == 413


@MEMORY
async def test_django_a_body_that_was_parsed_is_a_developers_error(place: Place, clock: Clock) -> None:
    from django.test import RequestFactory, override_settings

    from retrysafe.webhooks import django

    receiver = receiver_of(place, STRIPE, clock)
    delivery = STRIPE.deliver()

    def request() -> Any:
        headers = {name: value for name, value in delivery.headers.items() if name != "Content-Type"}
        return RequestFactory().post("/", delivery.body, content_type="application/json", headers=headers)

    read = request()
    read.read()  # as REST framework's parsers do
    with pytest.raises(ConfigurationError, match=r"request\.data"):
        django.view(receiver)(read)
    with override_settings(DATA_UPLOAD_MAX_MEMORY_SIZE=100):
        assert django.view(receiver)(request()).status_code == 413
    assert (await django.aview(receiver)(request())).status_code == 200
    assert django.view(receiver)(request()).headers["Idempotent-Replayed"] == "true"


@MEMORY
@pytest.mark.parametrize(("length", "status"), [("9" * 5000, 413), ("²", 400), ("x", 400)])
def test_a_length_that_python_cannot_read_is_refused(place: Place, clock: Clock, length: str, status: int) -> None:
    """Python reads no more than 4300 digits, and more kinds of them than a length has."""
    import io

    from django.test import RequestFactory

    from retrysafe.webhooks import django

    receiver, delivery = receiver_of(place, STRIPE, clock), STRIPE.deliver()
    environ = {"REQUEST_METHOD": "POST", "CONTENT_LENGTH": length, "wsgi.input": io.BytesIO(delivery.body)}
    statuses: list[str] = []
    list(wsgi.WebhookApp(receiver)(environ, lambda line, headers: statuses.append(line) or print))  # type: ignore[func-returns-value]
    assert statuses[0].startswith(str(status))
    request = RequestFactory().post("/", delivery.body, content_type="application/json", CONTENT_LENGTH=length)
    assert django.view(receiver)(request).status_code == status


@MEMORY
async def test_django_a_view_is_no_wrapper_of_a_decorator(place: Place, clock: Clock) -> None:
    """Those of Django 4.2 are sync, also around a coroutine function: the view's coroutine would be the response."""
    from retrysafe.webhooks import django

    receiver = receiver_of(place, STRIPE, clock)
    for made in (django.view(receiver), django.aview(receiver)):
        assert not hasattr(made, "__wrapped__")
        assert made.csrf_exempt is True  # type: ignore[attr-defined]


@MEMORY
def test_starlette_a_stream_that_was_read_is_a_developers_error(place: Place, clock: Clock) -> None:
    receiver, delivery = receiver_of(place, STRIPE, clock), STRIPE.deliver()
    app = FastAPI()

    @app.post("/")
    async def hook(request: Request) -> Any:
        async for _ in request.stream():
            pass
        return await starlette.receive(receiver, request)

    with pytest.raises(ConfigurationError, match=r"request\.stream"):
        TestClient(app).post("/", content=delivery.body, headers=delivery.headers)
    assert place.seen.names == []


@MEMORY
def test_starlette_a_body_that_was_read_whole_is_still_there(place: Place, clock: Clock) -> None:
    receiver = receiver_of(place, STRIPE, clock)
    app = FastAPI()

    @app.post("/")
    async def hook(request: Request) -> Any:
        assert await request.body()
        return await starlette.receive(receiver, request)

    delivery = STRIPE.deliver()
    assert TestClient(app).post("/", content=delivery.body, headers=delivery.headers).status_code == 200


@MEMORY
async def test_a_client_that_leaves_before_the_end_of_its_body_is_nobody(place: Place, clock: Clock) -> None:
    receiver = receiver_of(place, STRIPE, clock)
    receiver.otherwise(lambda event: pytest.fail("half a body"))
    delivery = STRIPE.deliver()
    messages = [{"type": "http.request", "body": delivery.body, "more_body": True}, {"type": "http.disconnect"}]
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    lines = [(name.lower().encode(), value.encode()) for name, value in delivery.headers.items()]

    async def receive(left: list[Any]) -> Any:
        return left.pop(0)

    scope = {"type": "http", "method": "POST", "path": "/", "headers": lines}
    left = list(messages)
    await asgi.WebhookApp(receiver)(scope, lambda: receive(left), send)
    left = list(messages)
    await starlette.receive(receiver, Request(scope, lambda: receive(left)))
    assert sent == []
    assert place.seen.names == []
    with pytest.raises(RuntimeError, match="serves HTTP"):
        await asgi.WebhookApp(receiver)({"type": "websocket"}, lambda: receive(left), send)


@pytest.mark.fault(66)
@MEMORY
async def test_a_body_of_any_size_is_read_no_further_than_its_limit(place: Place, clock: Clock) -> None:
    receiver = receiver_of(place, STRIPE, clock, body_limit=1000)
    chunks = 0

    async def receive() -> Any:
        nonlocal chunks
        chunks += 1
        return {"type": "http.request", "body": b"x" * 400, "more_body": chunks < 100}

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
    await asgi.WebhookApp(receiver)(scope, receive, send)
    assert (sent[0]["status"], chunks) == (413, 3)
    chunks = 0
    assert (await starlette.receive(receiver, Request(scope, receive))).status_code == 413
    assert chunks == 3


@MEMORY
def test_wsgi_half_a_body_is_refused(place: Place, clock: Clock) -> None:
    import io

    receiver = receiver_of(place, STRIPE, clock)
    environ = {"REQUEST_METHOD": "POST", "CONTENT_LENGTH": "100", "wsgi.input": io.BytesIO(b"{")}
    statuses: list[str] = []
    list(wsgi.WebhookApp(receiver)(environ, lambda status, headers: statuses.append(status) or print))  # type: ignore[func-returns-value]
    assert statuses == ["400 Bad Request"]


# ------------------------------------------------------------ Django's own database


@pytest.mark.slow
@MEMORY
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_django_the_orm_and_the_record_commit_together(place: Place, clock: Clock, kind: str) -> None:
    """On an alias with ATOMIC_REQUESTS, whose transaction would commit after the record, and undo neither."""
    with alias_of(kind, ATOMIC_REQUESTS=True) as alias:
        connect(alias).migrate()
        with connections[alias].cursor() as cursor:
            cursor.execute("CREATE TABLE paid (event varchar(50))")
        boundary = Boundary("django", store=alias, effects="transactional", window=WINDOW, observers=[place.seen])
        receiver = Receiver(boundary, STRIPE.receiver_scheme(), clock=clock)
        failures = [ValueError("after the row was written")]

        @receiver.on(STRIPE.type)
        def handle(event: WebhookEvent[Any]) -> None:
            with connections[alias].cursor() as cursor:
                cursor.execute("INSERT INTO paid VALUES (%s)", [event.id])
            if failures:
                raise failures.pop()

        with serving_in_threads("django", {"stripe": receiver}) as port:
            answers = [post(port, "stripe", STRIPE.deliver()) for _ in range(3)]
        assert [(answer.status, answer.replayed) for answer in answers] == [(500, False), (200, False), (200, True)]
        with connections[alias].cursor() as cursor:
            cursor.execute("SELECT event FROM paid")
            assert cursor.fetchall() == [(STRIPE.event_id,)]
            cursor.execute("DROP TABLE paid")
        boundary.close()


@pytest.mark.slow
def test_django_what_a_handler_did_under_atomic_requests_is_undone_when_it_fails(clock: Clock) -> None:
    """With the record elsewhere, the handler's transaction ends before its record says that it is done."""
    with alias_of("sqlite", ATOMIC_REQUESTS=True) as alias:
        with connections[alias].cursor() as cursor:
            cursor.execute("CREATE TABLE paid (event varchar(50))")
        open_when_completed: list[bool] = []

        def observe(told: Event) -> None:
            if told.name == "completed":
                open_when_completed.append(connections[alias].in_atomic_block)

        boundary = Boundary("elsewhere", store="memory://", window=WINDOW, observers=[observe])
        receiver = Receiver(boundary, STRIPE.receiver_scheme(), clock=clock)
        failures = [ValueError("after the row was written")]

        @receiver.on(STRIPE.type)
        def handle(event: WebhookEvent[Any]) -> None:
            assert connections[alias].in_atomic_block
            with connections[alias].cursor() as cursor:
                cursor.execute("INSERT INTO paid VALUES (%s)", [event.id])
            if failures:
                raise failures.pop()

        with serving_in_threads("django", {"stripe": receiver}) as port:
            assert [post(port, "stripe", STRIPE.deliver()).status for _ in range(3)] == [500, 200, 200]
        assert open_when_completed == [False]
        with connections[alias].cursor() as cursor:
            cursor.execute("SELECT event FROM paid")
            assert cursor.fetchall() == [(STRIPE.event_id,)]


@contextmanager
def alias_of(kind: str, **settings: Any) -> Iterator[str]:
    """An alias of its own."""
    if kind == "postgresql":
        require(kind)
    alias = add_alias(kind, **settings)
    try:
        yield alias
    finally:
        remove_alias(alias)
