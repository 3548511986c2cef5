"""An upstream that fails in every way: what the client is told, what becomes of the key; nothing is repeated."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from retrysafe.gateway import Route, Settings, Timeouts
from retrysafe.gateway.failures import UpstreamFailed
from retrysafe.gateway.upstream import Upstream as Connections
from retrysafe.gateway.upstream import UpstreamExchange
from retrysafe.http import respond
from tests.gateway.upstreams import OK, Asked, Behaviour, Upstream, always, answering, before, in_front_of
from tests.ports import free_port
from tests.tables import each_row

pytestmark = pytest.mark.slow

CREATED = b"HTTP/1.1 201 Created\r\nContent-Length: 4\r\n\r\ndone"
IMPATIENT = Timeouts(connect=30, read=1.5)


def silent(asked: Asked) -> None:
    asked.request()
    asked.connection.recv(1)  # until the gateway hangs up


def lost_after(*failing: Behaviour) -> Behaviour:
    """Fails on the first connections, one way after the other; then answers."""
    waiting = list(failing)

    def behave(asked: Asked) -> None:
        (waiting.pop(0) if waiting else always(CREATED))(asked)

    return behave


LOST = {
    "cut": (answering(b""), "upstream-lost", 502, "connection_terminated", {}),
    "reset": (lambda asked: _reset(asked), "upstream-lost", 502, "connection_terminated", {}),
    "truncated": (
        answering(b"HTTP/1.1 201 Created\r\nContent-Length: 100\r\n\r\npart"),
        "upstream-lost",
        502,
        "http_response_incomplete",
        {},
    ),
    "chunks cut": (
        answering(b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n"),
        "upstream-lost",
        502,
        "http_response_incomplete",
        {},
    ),
    "no HTTP": (answering(b"220 mail.example ESMTP\r\n\r\n"), "upstream-lost", 502, "http_protocol_error", {}),
    "an upgrade": (
        answering(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"),
        "upstream-lost",
        502,
        "http_upgrade_failed",
        {},
    ),
    "silent": (silent, "upstream-timeout", 504, "connection_read_timeout", {"timeouts": IMPATIENT}),
    "silent within its body": (
        lambda asked: (asked.request(), asked.say(CREATED[:-2]), asked.connection.recv(1)),
        "upstream-timeout",
        504,
        "connection_read_timeout",
        {"timeouts": IMPATIENT},
    ),
    "too slow in all": (
        lambda asked: _dripping(asked),
        "upstream-timeout",
        504,
        "http_response_timeout",
        {"timeouts": Timeouts(total=1.5)},
    ),
}


def _reset(asked: Asked) -> None:
    asked.request()
    asked.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    asked.connection.close()


def _dripping(asked: Asked) -> None:
    """A byte now and then, so that it is never silent for long."""
    asked.request()
    asked.say(b"HTTP/1.1 201 Created\r\nX-Slow: ")
    while True:
        asked.say(b"x")
        threading.Event().wait(0.05)


def test_the_answer_that_an_operator_gave_is_no_error_of_the_gateways() -> None:
    with before(answering(b""), effects="external") as (front, _):
        assert front.ask(key="order-1").code == "upstream-lost"
        boundary = front.gateway.guards.boundary
        assert boundary.resolve("order-1", "completed", result=respond(201, {"paid": 7}), operation="http")
        found = front.ask(key="order-1")
        assert (found.status, found.replayed, found.all("proxy-status")) == (201, True, [])


@pytest.mark.parametrize("effects", ["external", "keyed"])
@pytest.mark.parametrize("how", LOST)
def test_an_answer_that_is_lost_leaves_the_key_as_the_effects_want_it(how: str, effects: str) -> None:
    behaviour, code, status, error, terms = LOST[how]
    settings: dict[str, Any] = {**terms, "effects": effects}
    with before(lost_after(behaviour), **settings) as (front, upstream):
        lost = front.ask(key="order-1")
        assert (lost.status, lost.code, lost.error) == (status, code, f"gateway; error={error}")
        again = front.ask(key="order-1")
        if effects == "external":
            assert (again.status, again.code) == (409, "outcome-unknown")
            assert len(upstream.seen) == 1, "what may have been done is not sent again"
            return
        assert (again.status, again.body, again.replayed) == (201, b"done", False)
        keys = {tuple(seen.all(b"idempotency-key")) for seen in upstream.seen}
        assert len(upstream.seen) == 2
        assert len(keys) == 1, "the upstream can recognise what it is sent again"
        assert front.ask(key="order-1").replayed


@each_row("effects", ["external", "keyed"])
def test_a_request_that_was_not_sent_leaves_its_key_free(effects: str) -> None:
    with in_front_of(f"http://127.0.0.1:{free_port()}", effects=effects) as front:
        refused = front.ask(key="order-1")
        assert (refused.status, refused.code) == (502, "upstream-unavailable")
        assert refused.error == "gateway; error=connection_refused"
        assert refused.all("retry-after") == ["1"]
        assert front.ask(key="order-1").code == "upstream-unavailable", "and not unknown"


def test_waiting_for_a_free_connection_in_vain_is_no_attempt() -> None:
    came, go = threading.Event(), threading.Event()

    def hanging(asked: Asked) -> None:
        while asked.request() is not None:
            came.set()
            go.wait(60)
            asked.say(CREATED)

    settings = {"effects": "external", "connections": 1, "timeouts": Timeouts(connect=1.5)}
    with before(hanging, **settings) as (front, upstream):
        first = threading.Thread(target=lambda: front.ask(key="order-1"))
        first.start()
        assert came.wait(60)
        late = front.ask(key="order-2")
        assert (late.status, late.code, late.error) == (
            504,
            "upstream-unavailable",
            "gateway; error=connection_timeout",
        )
        go.set()
        first.join()
        assert front.ask(key="order-2").status == 201
        assert len(upstream.seen) == 2


def test_a_host_that_nobody_knows() -> None:
    with in_front_of("http://host.invalid:1", effects="external") as front:
        assert front.ask(key="order-1").error == "gateway; error=dns_error"
        assert front.ask(key="order-1").code == "upstream-unavailable"


@each_row("method", ["POST", "PUT", "DELETE", "GET"])
def test_no_request_is_repeated_by_the_gateway_itself(method: str) -> None:
    """Not even where HTTP says that it may be: the connection was kept, and is closed when the next request comes."""
    closing = threading.Event()

    def once(asked: Asked) -> None:
        asked.request()
        asked.say(OK)
        if asked.request() is not None:  # the second request on this connection is read, and not answered
            closing.set()

    with before(once) as (front, upstream):
        assert front.ask(method).status == 200
        assert front.ask(method).status == 502
        assert closing.is_set()
        assert (len(upstream.seen), upstream.connections) == (2, 1)


def test_an_upstream_that_takes_no_more_bytes_is_silent() -> None:
    """And its connection is cut: bytes that wait to be sent must not follow when the request was given up."""
    told, ports = threading.Event(), []

    def deaf(asked: Asked) -> None:
        ports.append(asked.connection.getpeername()[1])
        asked.head()
        told.wait(240)  # longer than is looked whether the gateway lets go by itself

    body = b"x" * (32 << 20)
    with before(deaf, timeouts=IMPATIENT, effects="external") as (front, _):
        try:
            stuck = front.ask(key="order-1", body=body)
            assert (stuck.status, stuck.error) == (504, "gateway; error=connection_read_timeout")
            assert _is_cut(ports[0])
            assert front.ask(key="order-1", body=body).code == "outcome-unknown"
        finally:
            told.set()


def _is_cut(port: int) -> bool:
    """Tell whether the gateway lets go of its connection from this port, within seconds."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        connections = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        if not any(fields[1].endswith(f":{port:04X}") and fields[3] == "01" for fields in connections):
            return True
        threading.Event().wait(0.02)
    return False


def test_a_bad_gateway_of_the_upstream_is_told_apart_from_one_of_the_gateway() -> None:
    theirs = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 4\r\n\r\nno!\n"
    with before(always(theirs), effects="keyed", options={"on_5xx": "store"}) as (front, upstream):
        first, again = front.ask(key="order-1"), front.ask(key="order-1")
        assert (first.status, first.body, first.error) == (502, b"no!\n", "gateway; received-status=502")
        assert again.replayed
        assert again.body == b"no!\n"
    with before(lost_after(answering(b"")), effects="keyed", options={"on_5xx": "store"}) as (front, upstream):
        assert front.ask(key="order-1").code == "upstream-lost"
        assert front.ask(key="order-1").body == b"done", "an error of the gateway's own is never stored"
        assert len(upstream.seen) == 2


def test_statuses_by_which_the_upstream_says_that_nothing_was_done() -> None:
    busy = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
    failed = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n"
    with before(answering(busy, CREATED, failed), effects="external", unexecuted=frozenset({503})) as (front, _):
        assert [front.ask(key="order-1").status for _ in range(2)] == [503, 201]
        assert front.ask(key="order-2").status == 500
        assert front.ask(key="order-2").code == "outcome-unknown"


def test_a_response_that_breaks_when_bytes_have_left_is_not_ended() -> None:
    first = b"x" * 70_000
    half = b"HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n" + first

    def broken(asked: Asked) -> None:
        asked.request()
        asked.say(half)
        asked.say(b"y" * 70_000)

    with (
        before(broken, effects="external") as (front, _),
        front.raw(
            b"POST /orders HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nIdempotency-Key: k1\r\n\r\n"
        ) as connection,
    ):
        got = b""
        while data := connection.recv(65_536):
            got += data
        head, _, body = got.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        assert len(body) < 200_000
        assert front.ask(key="k1", body=b"", Host="h").code == "outcome-unknown"


def test_when_the_client_leaves_what_nobody_guards_is_broken_off() -> None:
    came, left = threading.Event(), threading.Event()

    def waiting(asked: Asked) -> None:
        asked.request()
        came.set()
        if asked.connection.recv(1) == b"":
            left.set()

    with before(waiting) as (front, _):
        with front.raw(b"POST /orders HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}"):
            assert came.wait(60)
        assert left.wait(60)


def test_when_the_client_leaves_within_its_body_nothing_is_completed() -> None:
    ended: list[bytes] = []
    over = threading.Event()

    def reading(asked: Asked) -> None:
        asked.head()
        while data := asked.connection.recv(65_536):
            ended.append(data)
        over.set()

    with before(reading) as (front, _):
        with front.raw(b"POST /orders HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\nhalf"):
            pass
        assert over.wait(60) or not ended
        assert len(b"".join(ended)) < 1000


@pytest.mark.fault(19)
def test_a_client_that_leaves_within_a_guarded_body_has_claimed_nothing() -> None:
    with before(always(CREATED), effects="external") as (front, upstream):
        with front.raw(
            b"POST /orders HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\nIdempotency-Key: order-1\r\n\r\nhalf"
        ):
            pass
        answer = front.ask(key="order-1")
        assert (answer.status, answer.replayed) == (201, False)
        assert len(upstream.seen) == 1


def test_r17_when_the_client_leaves_what_is_guarded_is_recorded() -> None:
    came, go, answered = threading.Event(), threading.Event(), threading.Event()

    def waiting(asked: Asked) -> None:
        asked.request()
        came.set()
        go.wait(60)
        asked.say(CREATED)
        answered.set()

    with before(waiting, effects="external", concurrency=30.0) as (front, upstream):
        with front.raw(
            b'POST /orders HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nIdempotency-Key: "order-1"\r\n\r\n{}'
        ):
            assert came.wait(60)
        go.set()
        assert answered.wait(60)
        again = front.ask(key="order-1", Host="h")
        assert (again.status, again.body, again.replayed) == (201, b"done", True)
        assert len(upstream.seen) == 1


def test_an_event_stream_ends_with_its_client() -> None:
    left = threading.Event()

    def events(asked: Asked) -> None:
        asked.request()
        asked.say(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n")
        if asked.connection.recv(1) == b"":
            left.set()

    with before(events, effects="external") as (front, _):
        with front.raw(
            b'POST /orders HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nIdempotency-Key: "order-1"\r\n\r\n{}'
        ) as client:
            got = b""
            while b"data: 1" not in got:
                got += client.recv(65_536)
        assert left.wait(60)


def test_an_upstream_is_closed_in_the_end() -> None:
    upstream = Upstream(always(OK))
    with in_front_of(upstream.url) as front:
        assert front.ask().status == 200
    upstream.close()


# ---------------------------------------------------------------- what comes unasked, and what cannot be passed on

LATE = {
    "a response": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nstale",
    "a late 408": b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
    "no HTTP": b"bye\r\n",
}


@each_row("late", LATE)
@each_row("method", ["POST", "DELETE"])
def test_unasked_bytes_on_a_kept_connection_answer_no_request(late: str, method: str) -> None:
    """Another connection is taken, for the request was certainly not sent on this one."""
    connections: list[socket.socket] = []

    def behave(asked: Asked) -> None:
        connections.append(asked.connection)
        always(CREATED)(asked)

    with before(behave, effects="external") as (front, upstream):
        assert front.ask(method, key="order-1").status == 201
        connections[0].sendall(LATE[late])
        second = front.ask(method, key="order-2")
        assert (second.status, second.body) == (201, b"done")
        assert (len(upstream.seen), upstream.connections) == (2, 2)
        if method == "POST":
            assert front.ask(method, key="order-2").body == b"done"


async def test_an_upstream_that_speaks_first_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no other connection is tried: it would be greeted as well."""
    upstream = Upstream(lambda asked: (asked.say(CREATED), asked.request()))
    connections = Connections(Settings(upstream=upstream.url, store="memory://", principal="shared"))
    connect = connections.session.connector.connect  # type: ignore[union-attr]

    async def late(*given: Any, **named: Any) -> Any:
        connection = await connect(*given, **named)
        while not connection.protocol.should_close:  # type: ignore[union-attr]  # noqa: ASYNC110
            await asyncio.sleep(0)
        return connection

    monkeypatch.setattr(connections.session.connector, "connect", late)
    exchange = UpstreamExchange(connections, Timeouts(), None, None)  # type: ignore[arg-type]
    try:
        with pytest.raises(UpstreamFailed) as error:
            await exchange.run("POST", connections.url(b"/", b""), [], None, body=False, abandons=False)  # type: ignore[arg-type]
        assert not error.value.failed.sent
        assert (upstream.seen, upstream.connections) == ([], 1)
    finally:
        await connections.close()
        upstream.close()


UNWRITABLE = {
    "status 099": b"HTTP/1.1 099 What\r\nContent-Length: 2\r\n\r\nok",
    "status 600": b"HTTP/1.1 600 What\r\nContent-Length: 2\r\n\r\nok",
    "status 999": b"HTTP/1.1 999 What\r\nContent-Length: 2\r\n\r\nok",
    "a control character": b"HTTP/1.1 200 OK\r\nX-Odd: a\x01b\r\nContent-Length: 2\r\n\r\nok",
    "DEL": b"HTTP/1.1 200 OK\r\nX-Odd: a\x7fb\r\nContent-Length: 2\r\n\r\nok",
}


@each_row("what", UNWRITABLE)
def test_responses_that_cannot_be_passed_on_are_not_recorded(what: str) -> None:
    with before(lost_after(answering(UNWRITABLE[what])), effects="keyed") as (front, upstream):
        odd = front.ask(key="order-1")
        assert (odd.status, odd.code, odd.error) == (502, "upstream-lost", "gateway; error=http_protocol_error")
        assert front.ask(key="order-1").body == b"done"
        assert len(upstream.seen) == 2


@each_row("status", [b"204 No Content", b"205 Reset Content", b"304 Not Modified"])
def test_a_length_where_there_is_no_body(status: bytes) -> None:
    """A 304 may tell the length that a 200 would have had."""
    answer = b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n" % (status, 0 if status.startswith(b"205") else 99)
    asking = b"POST /orders HTTP/1.1\r\nHost: h\r\n%bContent-Length: 0\r\n\r\n"
    with (
        before(always(answer)) as (front, _),
        front.raw(asking % b"" + asking % b"Idempotency-Key: k1\r\n" + asking % b"Connection: close\r\n") as connection,
    ):
        got = b""
        while data := connection.recv(65_536):
            got += data
        assert got.count(b"HTTP/1.1 %b" % status) == 3, "its connection serves on"


def test_a_connection_that_is_not_there_within_total_was_not_used() -> None:
    came, go = threading.Event(), threading.Event()

    def hanging(asked: Asked) -> None:
        while asked.request() is not None:
            came.set()
            go.wait(60)
            asked.say(CREATED)

    routes = (Route("POST /hasty", timeouts=Timeouts(connect=30, total=1.5)),)
    with before(hanging, connections=1, routes=routes) as (front, _):
        first = threading.Thread(target=lambda: front.ask(key="order-1"))
        first.start()
        assert came.wait(60)
        late = front.ask(path="/hasty", key="order-2")
        go.set()
        first.join()
        assert (late.status, late.code) == (504, "upstream-unavailable")
        assert front.ask(path="/hasty", key="order-2").status == 201
