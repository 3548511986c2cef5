"""Deliveries to real endpoints that answer, refuse, hang up, or say nothing: what is sent, how often, what is known."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any, NamedTuple

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks.webhooks import Webhook

from retrysafe import Boundary, ConfigurationError
from retrysafe.protocol.backoff import Backoff
from retrysafe.webhooks import Receiver, StandardWebhooks, WebhookEvent
from retrysafe.webhooks.delivering import Tried, judge, retry_after
from retrysafe.webhooks.sender import AsyncSender, Delivery, Endpoint, Message, Sender
from tests.http.observing import Recorder
from tests.ports import free_port
from tests.tables import each_row
from tests.webhooks.providers import NOW, STANDARD
from tests.webhooks.servers import serving

SECRETS = STANDARD.secrets
COLOURS = pytest.mark.parametrize("colour", ["sync", "async"])
MESSAGE = Message.of("order.paid", {"order": 17, "name": "Ångström"}, id="msg_1", at=datetime.fromtimestamp(NOW, UTC))
CUT, SILENT = "cut", "silent"


class Got(NamedTuple):
    """One request as it was on the wire."""

    headers: dict[str, str]
    body: bytes


class Wire:
    """An endpoint that answers with these bytes, one after the other; or hangs up, or says nothing."""

    def __init__(self, *answers: str) -> None:
        self.got: list[Got] = []
        self._answers = list(answers)
        self._silent: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}/hooks?token=secret"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while self._answers:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return  # the test has failed, and nobody comes any more
            with connection.makefile("rb") as lines:
                head = iter(lines.readline, b"\r\n")
                next(head)
                pairs = (line.decode("latin-1").rstrip("\r\n").partition(": ") for line in head)
                headers = {name.lower(): value for name, _, value in pairs}
                body = lines.read(int(headers["content-length"]))
            self.got.append(Got(headers, body))
            answer = self._answers.pop(0)
            if answer == SILENT:
                self._silent.append(connection)
                continue
            if answer != CUT:
                connection.sendall(answer.encode())
            connection.close()

    def close(self) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join(60)
        for connection in self._silent:
            connection.close()
        self._listening.close()


def answer(status: int, *fields: str) -> str:
    return "\r\n".join([f"HTTP/1.1 {status} X", *fields, "content-length: 0", "connection: close", "", ""])


class Sending:
    """A sender of either colour, whose time passes only in its pauses."""

    def __init__(self, colour: str, **options: Any) -> None:
        self.now = float(NOW)
        self.pauses: list[float] = []
        self.seen = Recorder()
        self.colour = colour
        self.hooks: dict[str, list[Any]] = {}
        self.cookies = httpx.Cookies()
        self.options = {
            "clock": lambda: self.now,
            "monotonic": lambda: self.now,
            "chance": lambda: 0.5,
            "observers": [self.seen],
            **options,
        }

    def _slept(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    async def _aslept(self, seconds: float) -> None:
        self._slept(seconds)

    def send(self, url: str, secrets: Any = SECRETS[0], message: Message = MESSAGE, **earlier: Any) -> Delivery:
        endpoint = Endpoint(url, secrets)
        if self.colour == "sync":
            with httpx.Client(trust_env=False, event_hooks=self.hooks) as client:
                self.cookies = client.cookies
                return Sender(client, sleep=self._slept, **self.options).send(message, endpoint, **earlier)

        async def send() -> Delivery:
            async with httpx.AsyncClient(trust_env=False, event_hooks=self.hooks) as client:
                self.cookies = client.cookies
                return await AsyncSender(client, sleep=self._aslept, **self.options).send(message, endpoint, **earlier)

        return asyncio.run(send())


@pytest.fixture
def wires() -> Iterator[list[Wire]]:
    made: list[Wire] = []
    yield made
    for wire in made:
        wire.close()


@pytest.mark.slow
@COLOURS
def test_one_id_and_body_over_all_attempts_and_a_time_and_signature_of_each(wires: list[Wire], colour: str) -> None:
    wires.append(wire := Wire(answer(500), answer(404), answer(503), answer(204)))
    sending = Sending(colour)
    assert sending.send(wire.url, SECRETS) == Delivery("delivered", "msg_1", 4, 204)
    assert {got.body for got in wire.got} == {MESSAGE.body}
    assert {got.headers["webhook-id"] for got in wire.got} == {"msg_1"}
    assert sending.pauses == [0.5, 1.0, 2.0]
    times = [int(got.headers["webhook-timestamp"]) for got in wire.got]
    assert times == [NOW, NOW, NOW + 1, NOW + 3]
    for time, got in zip(times, wire.got, strict=True):
        signed = [Webhook(one).sign("msg_1", datetime.fromtimestamp(time, UTC), got.body.decode()) for one in SECRETS]
        assert got.headers["webhook-signature"] == " ".join(signed)
        assert got.headers["content-type"] == "application/json"
    assert json.loads(MESSAGE.body)["data"]["name"] == "Ångström"


@pytest.mark.slow
@COLOURS
def test_an_endpoint_that_is_gone_is_not_asked_again(wires: list[Wire], colour: str) -> None:
    wires.append(wire := Wire(answer(410)))
    assert Sending(colour).send(wire.url) == Delivery("gone", "msg_1", 1, 410)


@pytest.mark.slow
@COLOURS
def test_attempts_are_bounded_and_a_redirect_is_a_failure(wires: list[Wire], colour: str) -> None:
    wires.append(wire := Wire(answer(307, "location: /elsewhere"), answer(500), answer(400)))
    sending = Sending(colour, max_attempts=3)
    assert sending.send(wire.url) == Delivery("gave up", "msg_1", 3, 400, "", 2.0)
    assert len(wire.got) == 3


def _impatient_once(sending: Sending) -> Sending:
    """Only the first request waits for a short time: a second one is answered, however long that takes."""
    waits = iter([0.2])

    def hurries(request: httpx.Request) -> None:
        request.extensions["timeout"] = {**request.extensions["timeout"], "read": next(waits, 60.0)}

    async def ahurries(request: httpx.Request) -> None:
        hurries(request)

    sending.hooks = {"request": [hurries if sending.colour == "sync" else ahurries]}
    return sending


@pytest.mark.slow
@COLOURS
@pytest.mark.parametrize("silence", [CUT, SILENT])
def test_an_attempt_without_an_answer_leaves_doubt_that_only_a_success_takes_away(
    wires: list[Wire], colour: str, silence: str
) -> None:
    wires.append(wire := Wire(silence, answer(500)))
    found = _impatient_once(Sending(colour, max_attempts=2)).send(wire.url)
    assert (found.outcome, found.status, found.doubtful) == ("unknown", 500, True)
    wires.append(wire := Wire(silence, answer(200)))
    assert _impatient_once(Sending(colour)).send(wire.url) == Delivery("delivered", "msg_1", 2, 200)
    wires.append(wire := Wire(silence))
    found = Sending(colour, max_attempts=1, timeout=0.2 if silence == SILENT else 30.0).send(wire.url)
    assert (found.outcome, found.status) == ("unknown", None)
    assert found.reason == ("ReadTimeout" if silence == SILENT else "RemoteProtocolError")


@pytest.mark.slow
@COLOURS
@pytest.mark.parametrize("location", ["http://[::1", "http://a:99999999999/", "//", "http://xn--a..x/"])
def test_a_redirect_to_nowhere_is_an_answer(wires: list[Wire], colour: str, location: str) -> None:
    """httpx raises of it what it raises of an endpoint that hung up, or of a URL that it did not call."""
    wires.append(wire := Wire(answer(302, f"location: {location}", "retry-after: 7")))
    assert Sending(colour, max_attempts=1).send(wire.url) == Delivery("gave up", "msg_1", 1, 302, "", 7.0)


@pytest.mark.slow
@COLOURS
def test_exceptions_of_a_clients_own_hooks_are_not_the_answer(wires: list[Wire], colour: str) -> None:
    def raises(response: httpx.Response) -> None:
        raise LookupError(f"a hook does not like {response.status_code}")

    async def araises(response: httpx.Response) -> None:
        raises(response)

    wires.append(wire := Wire(answer(500), answer(200)))
    sending = Sending(colour)
    sending.hooks = {"response": [raises if colour == "sync" else araises]}
    assert sending.send(wire.url) == Delivery("delivered", "msg_1", 2, 200)
    sending.hooks = {"request": sending.hooks["response"]}
    with pytest.raises(AttributeError):  # before anything was sent: the client's owner's error
        sending.send(wire.url)


@pytest.mark.slow
@COLOURS
def test_endpoints_leave_no_cookies(wires: list[Wire], colour: str) -> None:
    wires.append(wire := Wire(answer(500, "set-cookie: theirs=1; Path=/"), answer(200, "set-cookie: theirs=2; Path=/")))
    sending = Sending(colour)
    assert sending.send(wire.url).outcome == "delivered"
    assert [got.headers.get("cookie") for got in wire.got] == [None, None]
    assert list(sending.cookies.jar) == []


@pytest.mark.slow
async def test_an_endpoint_that_drips_its_answer_keeps_an_async_sender_to_its_deadline() -> None:
    """Every byte comes in time, and the last one never."""
    left = asyncio.Event()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nX: ")
        try:
            with suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(60):
                    while not reader.at_eof():
                        writer.write(b"x")
                        await writer.drain()
                        with suppress(TimeoutError):
                            await asyncio.wait_for(reader.read(1000), 0.02)
        finally:
            left.set()
        writer.write(b"\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    endpoint = Endpoint(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", SECRETS[0])
    async with asyncio.timeout(120), server, httpx.AsyncClient(trust_env=False) as client:
        sent = await AsyncSender(client, deadline=2, timeout=2, observers=()).send(MESSAGE, endpoint)
        assert (sent.outcome, sent.reason) == ("unknown", "TimeoutError")
        await left.wait()


@COLOURS
@pytest.mark.parametrize("outcome", ["delivered", "gone"])
def test_final_deliveries_are_not_sent_again(colour: str, outcome: Any) -> None:
    """There is no endpoint that could be asked."""
    final = Delivery(outcome, "msg_1", 3, 200)
    assert Sending(colour).send("http://127.0.0.1:1/", earlier=final) == final
    with pytest.raises(ConfigurationError, match="earlier="):
        Sending(colour).send("http://127.0.0.1:1/", earlier=final._replace(id="msg_2"))


@pytest.mark.slow
@COLOURS
def test_an_attempt_that_certainly_did_not_arrive_leaves_no_doubt(colour: str) -> None:
    found = Sending(colour, max_attempts=2).send(f"http://127.0.0.1:{free_port()}/")
    assert (found.outcome, found.reason, found.attempts, found.doubtful) == ("gave up", "ConnectError", 2, False)


@pytest.mark.slow
@COLOURS
def test_a_body_without_an_end_is_not_read(wires: list[Wire], colour: str) -> None:
    wires.append(wire := Wire("HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\nabc"))
    assert Sending(colour).send(wire.url).outcome == "delivered"


@pytest.mark.slow
@COLOURS
def test_retry_after_is_waited_for_and_not_beyond_the_deadline(wires: list[Wire], colour: str) -> None:
    wires.append(wire := Wire(answer(503, "retry-after: 7"), answer(429, "retry-after: 3600")))
    sending = Sending(colour, deadline="1m")
    assert sending.send(wire.url) == Delivery("gave up", "msg_1", 2, 429, "", 3600.0)
    assert sending.pauses == [7.0]


@pytest.mark.slow
@COLOURS
def test_a_relay_calls_once_per_attempt_and_hands_on_what_it_got(wires: list[Wire], colour: str) -> None:
    """Back-off and doubt go on where they were, also from what was stored as JSON."""
    wires.append(wire := Wire(CUT, answer(500), answer(500), answer(200)))
    sending, earlier = Sending(colour, max_attempts=1), None
    seen = []
    for _ in range(4):
        earlier = sending.send(wire.url, earlier=earlier)
        seen.append((earlier.outcome, earlier.attempts, earlier.retry_after))
        earlier = Delivery(*json.loads(json.dumps(earlier)))
    assert seen == [("unknown", 1, 0.5), ("unknown", 2, 1.0), ("unknown", 3, 2.0), ("delivered", 4, None)]
    assert sending.pauses == []


@pytest.mark.slow
def test_events_name_no_path_no_secret_and_no_id(wires: list[Wire]) -> None:
    wires.append(wire := Wire(answer(500), answer(200)))
    sending = Sending("sync")
    sending.send(wire.url)
    port = wire.url.split(":")[2].partition("/")[0]
    where = {"destination": f"http://127.0.0.1:{port}"}
    assert [(told.name, told.fields) for told in sending.seen.told] == [
        ("delivery_retried", {**where, "attempts": 1, "status": 500, "pause": 0.5}),
        ("delivery_ended", {**where, "attempts": 2, "status": 200, "outcome": "delivered"}),
    ]
    assert "secret" not in str(sending.seen.told)
    assert "msg_1" not in str(sending.seen.told)
    assert SECRETS[0] not in repr(Endpoint(wire.url, SECRETS))


@pytest.mark.slow
@pytest.mark.parametrize("door", ["wsgi", "asgi"])
async def test_our_receiver_handles_once_what_our_sender_sends_twice(door: str) -> None:
    """The first answer is lost on its way, so the sender cannot know; the id lets the receiver know."""
    boundary = Boundary("ours", store="memory://", window="7d", observers=())
    receiver = Receiver(boundary, StandardWebhooks(SECRETS[0]), clock=lambda: NOW)
    handled: list[Any] = []
    receiver.on("order.paid")(lambda event: handled.append(event.data["data"]["order"]))
    async with serving(door, {"hooks": receiver}) as port, httpx.AsyncClient(trust_env=False) as client:
        sender = AsyncSender(client, clock=lambda: NOW, observers=())
        for _ in range(2):
            sent = await sender.send(MESSAGE, Endpoint(f"http://127.0.0.1:{port}/hooks", SECRETS[0]))
            assert sent.outcome == "delivered"
    assert handled == [17]


# ------------------------------------------------------------ pure decisions


FAILURE = st.none() | st.sampled_from([102, 301, 400, 404, 429, 500, 503, 599])


@given(
    failed=st.lists(FAILURE, max_size=6),
    last=FAILURE | st.sampled_from([200, 204, 299, 410]),
    chance=st.floats(0, 0.999),
)
def test_outcomes(failed: list[int | None], last: int | None, chance: float) -> None:
    statuses = [*failed, last]
    found: Delivery | None = None
    for status in statuses:
        found = judge(Tried(status), MESSAGE, found, Backoff(1.0, 4.0), chance)
    assert found is not None
    assert found.attempts == len(statuses)
    if last is not None and 200 <= last < 300:
        assert (found.outcome, found.retry_after) == ("delivered", None)
    elif last == 410:
        assert (found.outcome, found.retry_after) == ("gone", None)
    else:
        assert found.outcome == ("unknown" if None in statuses else "gave up")
        assert found.retry_after is not None
        assert 0 <= found.retry_after <= min(4.0, 2.0 ** (len(statuses) - 1))


def test_retry_after_as_seconds_or_a_date_that_the_answers_own_clock_corrects() -> None:
    at = datetime.fromtimestamp(NOW, UTC)
    assert retry_after(None, None, NOW) is None
    assert retry_after(" 7 ", None, NOW) == 7
    assert retry_after("-7", None, NOW) is None
    assert retry_after("soon", None, NOW) is None
    assert retry_after("٧", None, NOW) is None
    asked = judge(Tried(503, retry_after("9" * 30, None, NOW)), MESSAGE, None, Backoff(1.0, 4.0), 0.5)
    assert asked.retry_after == 86400
    until = format_datetime(at.replace(second=30, minute=0), usegmt=True)
    server = format_datetime(at.replace(second=20, minute=0), usegmt=True)
    assert retry_after(until, server, NOW + 999) == 10
    assert retry_after(until, None, at.replace(second=25, minute=0).timestamp()) == 5
    assert retry_after(until, "nonsense", NOW + 10**6) == 0


@each_row("id", ["", "a.b", "a b", "é", "a\n"])
def test_an_id_that_could_be_taken_for_another_is_refused(id: str) -> None:
    with pytest.raises(ConfigurationError, match="id="):
        Message(id, b"{}")


def test_options_that_a_sender_cannot_keep_are_refused() -> None:
    for url in ("ftp://x/", "/hooks", "http://", "http://x:port/"):
        with pytest.raises(ConfigurationError, match="url="):
            Endpoint(url, SECRETS[0])
    with pytest.raises(ConfigurationError, match="secrets="):
        Endpoint("https://example.com/", "")
    with httpx.Client() as client, pytest.raises(ConfigurationError, match="max_attempts="):
        Sender(client, max_attempts=0)
    with pytest.raises(ValueError, match="not JSON compliant"):
        Message.of("x", float("nan"))
    assert Message.of("x", 1).id != Message.of("x", 1).id


@each_row(
    "headers",
    [
        {"Webhook-Id": "x"},
        {"webhook-signature": "x"},
        {"Content-Length": "0"},
        {"Transfer-Encoding": "chunked"},
        {"CONNECTION": "close"},
        {"X-A": "1", "x-a": "2"},
        {"x": "a\r\nb: c"},
        {"x": "é"},
        {"x": 1},
        {"x y": "1"},
        {"": "1"},
        {":path": "/"},
    ],
)
def test_fields_that_would_change_what_is_sent_are_refused(headers: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="headers="):
        Endpoint("https://example.com/", SECRETS[0], headers)


def test_fields_of_an_endpoint_replace_ours_whatever_their_case() -> None:
    endpoint = Endpoint("https://u:pw@example.com/secret", SECRETS[0], {"Content-Type": "a/b", "X-Team": "pay"})
    sent = endpoint.signed(MESSAGE, NOW)
    assert len(sent) == len({name.lower() for name in sent}) == 6
    assert (sent["content-type"], sent["x-team"]) == ("a/b", "pay")
    assert repr(endpoint) == "Endpoint('https://example.com')"


def test_an_event_that_was_sent_is_the_event_that_was_received() -> None:
    boundary = Boundary("ours", store="memory://", window="7d", observers=())
    receiver = Receiver(boundary, StandardWebhooks(SECRETS), clock=lambda: NOW)
    for secret in SECRETS:
        event = receiver.verify(Endpoint("https://example.com/", secret).signed(MESSAGE, NOW), MESSAGE.body)
        assert isinstance(event, WebhookEvent)
        assert (event.id, event.type, event.timestamp, event.key) == ("msg_1", "order.paid", NOW, "msg_1")
