"""The end of a message, and its parts: nothing of one request may become part of another."""

from __future__ import annotations

import shutil
import subprocess
import threading
from contextlib import suppress
from ipaddress import ip_network
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from retrysafe.gateway import Gateway, Settings, TrustedHeader
from retrysafe.gateway.protocol import Limits, Protocol
from tests.conftest import absent
from tests.gateway.test_conformance import served
from tests.gateway.upstreams import OK, Front, Upstream, always, before
from tests.tables import each_row

SMUGGLED = b"DELETE /accounts/7 HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n"


def read(connection: Any) -> bytes:
    """Return all that comes; a server that closes before it has read everything resets the connection."""
    got = b""
    with suppress(ConnectionResetError):
        while data := connection.recv(65_536):
            got += data
    return got


def head(*fields: bytes, length: int = len(SMUGGLED), line: bytes = b"POST /orders HTTP/1.1") -> bytes:
    return b"\r\n".join([line, b"Host: h", *fields, b"Content-Length: %d" % length, b"", b""])


def said(front: Front, *segments: bytes) -> bytes:
    """Return the answer to segments that do not arrive together, until the connection is closed."""
    with front.raw(segments[0]) as connection:
        for segment in segments[1:]:
            threading.Event().wait(0.03)
            connection.sendall(segment)
        return read(connection)


LAST = b"GET /last HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
OFFERS = {
    "h2c": (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA"),
    "TLS": (b"Connection: keep-alive, Upgrade", b"Upgrade: TLS/1.2"),
    "two lines": (b"Upgrade: a", b"connection: UPGRADE", b"Upgrade: b"),
}


@pytest.mark.slow
@each_row("cut", [None, 0, 7, -5], ids=["one", "after the head", "in the body", "in the head"])
@each_row("offer", OFFERS)
def test_the_body_of_a_request_that_offers_an_upgrade_is_its_body(offer: str, cut: int | None) -> None:
    begin = head(*OFFERS[offer], *([] if cut else [b"Idempotency-Key: k1"]))
    whole = begin + SMUGGLED + LAST
    segments = [whole] if cut is None else [whole[: len(begin) + cut], whole[len(begin) + cut :]]
    with before(always(OK)) as (front, upstream):
        got = said(front, *segments)
        assert [seen.line for seen in upstream.seen] == [b"POST /orders HTTP/1.1", b"GET /last HTTP/1.1"]
        assert upstream.seen[0].body == SMUGGLED
        assert not upstream.seen[0].all(b"upgrade")
        assert got.count(b"HTTP/1.1 200") == 2


@pytest.mark.slow
def test_a_chunked_body_and_several_offers_on_one_connection() -> None:
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(SMUGGLED), SMUGGLED)
    one = b"PUT /a HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: h2c\r\nTransfer-Encoding: chunked\r\n\r\n"
    with before(always(OK)) as (front, upstream):
        said(front, (one + chunked) * 3 + LAST)
        assert [seen.line.split()[0] for seen in upstream.seen] == [b"PUT", b"PUT", b"PUT", b"GET"]
        assert [seen.body for seen in upstream.seen[:3]] == [SMUGGLED] * 3


@pytest.mark.slow
def test_an_offer_on_a_connection_that_is_to_be_closed() -> None:
    begin = head(b"Connection: close, Upgrade", b"Upgrade: h2c")
    with before(always(OK)) as (front, upstream):
        said(front, begin, SMUGGLED)
        assert [(seen.line, seen.body) for seen in upstream.seen] == [(b"POST /orders HTTP/1.1", SMUGGLED)]


@pytest.mark.slow
@each_row("method", [b"GET", b"POST"])
def test_a_websocket_is_refused_and_its_body_is_no_request(method: bytes) -> None:
    offer = (b"Connection: Upgrade", b"Upgrade: websocket")
    with before(always(OK)) as (front, upstream):
        got = said(front, head(*offer, line=method + b" /ws HTTP/1.1") + SMUGGLED)
        assert got.startswith(b"HTTP/1.1 501")
        assert b"upgrade-unsupported" in got
        assert (got.count(b"HTTP/1.1 "), upstream.seen) == (1, [])


@pytest.mark.slow
def test_behind_a_server_that_ends_such_a_request_with_its_head_it_is_refused() -> None:
    """As uvicorn does by itself."""
    upstream = Upstream(always(OK))
    gateway = Gateway(Settings(upstream.url, "memory://", principal="shared"))
    try:
        with served(gateway, http="httptools") as address:
            got = said(Front(address, gateway), head(*OFFERS["h2c"]) + SMUGGLED, SMUGGLED)
        assert b"HTTP/1.1 501".startswith(got[:12])  # of a connection that was reset, nothing may be left
        assert got.count(b"HTTP/1.1 ") <= 1
        assert upstream.seen == []
    finally:
        upstream.close()


@pytest.mark.slow
@each_row("target", [b"/", b"shop.example:443"])
def test_after_connect_nothing_is_read(target: bytes) -> None:
    with before(always(OK)) as (front, upstream):
        got = said(front, b"CONNECT %b HTTP/1.1\r\nHost: h\r\n\r\n" % target + SMUGGLED)
        assert got.startswith((b"HTTP/1.1 501", b"HTTP/1.1 400"))
        assert got.count(b"HTTP/1.1 ") == 1
        assert not upstream.seen


@pytest.mark.slow
def test_curls_request_for_http_2() -> None:
    if shutil.which("curl") is None:
        absent("no curl: what it sends with --http2 is written out in the tests beside this one")
    with before(always(OK)) as (front, upstream):
        url = f"http://127.0.0.1:{front.port}/orders"
        command = ["curl", "-sS", "--http2", "--max-time", "20", "-d", "amount=7", "-H", "Idempotency-Key: k1", url]
        for _ in range(2):
            assert subprocess.run(command, capture_output=True, check=True).stdout == b"ok"
        assert [seen.body for seen in upstream.seen] == [b"amount=7"]


@pytest.mark.slow
def test_trailers_are_no_fields() -> None:
    begin = b"POST /orders HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nConnection: %b\r\n\r\n"
    trailers = b"2\r\n{}\r\n0\r\nIdempotency-Key: evil\r\nX-User: admin\r\nX-Last: 1\r\n\r\n"
    with before(always(OK)) as (front, upstream):
        said(front, begin % b"keep-alive" + trailers + begin % b"close" + trailers)
        said(front, begin % b"close", trailers)
        assert [seen.body for seen in upstream.seen] == [b"{}"] * 3
        for seen in upstream.seen:
            assert not [name for name in (b"idempotency-key", b"x-user", b"x-last") if seen.all(name)]


@pytest.mark.slow
def test_malformed_http_is_refused() -> None:
    with before(always(OK)) as (front, _):
        assert said(front, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").startswith(b"HTTP/1.1 400")


HOSTS = {
    "none": b"POST /orders HTTP/1.1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
    "two": b"POST /orders HTTP/1.1\r\nHost: a\r\nHost: b\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
    "the same twice": b"GET /orders HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n",
}


@pytest.mark.slow
@each_row("which", HOSTS)
def test_a_request_has_one_host(which: str) -> None:
    with before(always(OK)) as (front, upstream):
        assert said(front, HOSTS[which]).startswith(b"HTTP/1.1 400")
        assert not upstream.seen
        assert said(front, b"GET / HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200"), "HTTP/1.0 knows no Host"


@pytest.mark.slow
def test_a_transfer_coding_that_nobody_undoes_is_refused() -> None:
    begin = b"POST /orders HTTP/1.1\r\nHost: h\r\nConnection: close\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"
    with before(always(OK)) as (front, upstream):
        got = said(front, begin + b"2\r\n{}\r\n0\r\n\r\n")
        assert (got[:12], upstream.seen) == (b"HTTP/1.1 400", [])


@pytest.mark.slow
def test_no_second_key_passes_with_an_underscore() -> None:
    with before(always(OK)) as (front, upstream):
        extra = (b"Idempotency-Key: k1", b"Idempotency_Key: evil", b"X_Forwarded_For: 1.2.3.4", b"X_Own: 1")
        said(front, head(b"Connection: close", *extra, length=0))
        (seen,) = upstream.seen
        assert not seen.all(b"idempotency_key")
        assert not seen.all(b"x_forwarded_for")
        assert seen.all(b"x_own") == [b"1"]


@pytest.mark.slow
@each_row(("host", "code"), [("keep", b"422"), ("upstream", b"200")])
def test_the_host_is_part_of_what_a_key_stands_for_where_it_is_passed_on(host: str, code: bytes) -> None:
    """Two sites of one service are told apart by it."""
    asking = (
        b"POST /orders HTTP/1.1\r\nHost: %b\r\nConnection: close\r\nIdempotency-Key: k1\r\nContent-Length: 0\r\n\r\n"
    )
    with before(always(OK), host=host) as (front, upstream):
        assert said(front, asking % b"a.example").startswith(b"HTTP/1.1 200")
        assert said(front, asking % b"b.example").startswith(b"HTTP/1.1 " + code)
        assert b"idempotent-replayed: true" in said(front, asking % b"a.example")
        assert len(upstream.seen) == 1


# ---------------------------------------------------------------- what one client may take


class Clock:
    """The loop of a protocol, whose timers are called by hand and whose requests are served by nobody."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[Timer] = []

    def call_later(self, delay: float, callback: Any) -> Timer:
        self.timers.append(Timer(self.now + delay, callback))
        return self.timers[-1]

    def create_task(self, work: Any, **_: Any) -> Clock:
        work.close()
        return self

    def add_done_callback(self, told: Any) -> None:
        """Nothing is ever done."""

    def pass_(self, seconds: float) -> None:
        until = self.now + seconds
        while due := [one for one in self.timers if not one.cancelled and one.when <= until]:
            first = min(due, key=lambda one: one.when)
            self.timers.remove(first)
            self.now = first.when
            first.callback()
        self.now = until


class Timer:
    def __init__(self, when: float, callback: Any) -> None:
        self.when, self.callback, self.cancelled = when, callback, False

    def cancel(self) -> None:
        self.cancelled = True


class Line:
    """A client's connection, as a transport has it."""

    def __init__(self) -> None:
        self.written = b""
        self.closing = self.aborted = self.paused = False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = self.aborted = True

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def get_extra_info(self, _: str, default: Any = None) -> Any:
        return default


async def nothing(scope: Any, receive: Any, send: Any) -> None:
    """An application that is never run."""


def connected(limits: Limits = Limits(), others: int = 0) -> tuple[Protocol, Line, Clock]:  # noqa: B008
    """A connection that has just been made, beside others."""
    state, clock, line = ServerState(), Clock(), Line()
    state.connections |= {object() for _ in range(others)}  # type: ignore[misc]
    config = uvicorn.Config(nothing, http=Protocol, lifespan="off", timeout_keep_alive=75, log_level="critical")
    protocol = Protocol(config, state, {}, clock)  # type: ignore[arg-type]
    protocol.limits = limits
    protocol.connection_made(line)
    return protocol, line, clock


BEGIN = b"POST /orders HTTP/1.1\r\nHost: h\r\n"
BODY = BEGIN + b"Content-Length: 100000\r\n\r\n"
TOO_LARGE = {
    "one field": BEGIN + b"X: " + b"a" * (1 << 20),
    "a field without an end": BEGIN + b"X" * (1 << 20),
    "many bytes": BEGIN + b"".join(b"X-%d: %b\r\n" % (at, b"a" * 1000) for at in range(100)),
    "many fields": BEGIN + b"".join(b"X-%d: a\r\n" % at for at in range(200)),
    "the target": b"GET /" + b"a" * (1 << 20),
    "blank lines": b"\r\n" * (1 << 20),
    "trailers": BEGIN + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n" + b"X: a\r\n" * 50_000,
    "one trailer": BEGIN + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX: " + b"a" * (1 << 20),
    "an extension of a chunk": BEGIN + b"Transfer-Encoding: chunked\r\n\r\n2;" + b"a" * (1 << 20),
}


@each_row("size", [1 << 18, 1000])
@each_row("which", TOO_LARGE)
def test_p2_heads_and_trailers_are_bounded(which: str, size: int) -> None:
    protocol, line, _ = connected()
    sent = 0
    for at in range(0, len(TOO_LARGE[which]), size):
        if line.closing:
            break
        protocol.data_received(TOO_LARGE[which][at : at + size])
        sent += size
    assert (line.written[:12], line.closing) == (b"HTTP/1.1 431", True)
    assert sent <= protocol.limits.head + (1 << 18) + 2 * (1 << 14)
    assert len(protocol.headers or ()) <= protocol.limits.fields


def test_p2_a_head_at_the_limit_and_any_body_are_read() -> None:
    protocol, line, _ = connected()
    fields = b"".join(b"X-%02d: %b\r\n" % (at, b"a" * 500) for at in range(100))
    request = BEGIN + fields + b"Content-Length: 200000\r\n\r\n" + b"a" * 200_000
    for _ in range(3):
        protocol.data_received(request)
        protocol.cycle.response_complete = True
        protocol.on_response_complete()
    assert (line.written, line.closing) == (b"", False)


def test_p2_a_head_that_does_not_end_in_time_is_refused() -> None:
    protocol, line, clock = connected()
    for byte in BEGIN[:19]:
        protocol.data_received(bytes([byte]))
        clock.pass_(1)
    assert not line.closing
    clock.pass_(1)
    assert (line.written[:12], line.closing) == (b"HTTP/1.1 408", True)


def test_p2_a_client_that_sends_nothing_is_let_go() -> None:
    _, line, clock = connected()
    clock.pass_(74)
    assert not line.closing
    clock.pass_(2)
    assert (line.written, line.closing) == (b"", True)


def test_p2_a_body_that_drips_is_refused_and_one_that_flows_is_not() -> None:
    protocol, line, clock = connected()
    protocol.data_received(BODY)
    for _ in range(19):
        protocol.data_received(b"a")
        clock.pass_(1)
    assert not line.closing
    clock.pass_(2)
    assert (line.written[:12], line.closing) == (b"HTTP/1.1 408", True)
    assert protocol.cycle.disconnected, "nobody waits for the rest"
    protocol, line, clock = connected()
    protocol.data_received(BODY)
    for _ in range(40):
        protocol.data_received(b"a" * 1024)
        clock.pass_(1.5)
    assert not line.closing


def test_p2_a_client_that_has_to_wait_for_us_is_not_late() -> None:
    protocol, line, clock = connected()
    protocol.data_received(BODY + b"a" * 70_000)
    assert line.paused
    clock.pass_(300)
    assert not line.closing
    protocol, line, clock = connected()
    protocol.data_received(BODY.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n"))
    clock.pass_(300)
    assert not line.closing


def test_p2_a_client_that_reads_nothing_is_cut() -> None:
    protocol, line, clock = connected()
    protocol.data_received(BEGIN + b"Content-Length: 0\r\n\r\n")
    protocol.pause_writing()
    clock.pass_(59)
    protocol.resume_writing()
    clock.pass_(100)
    assert not line.closing
    protocol.pause_writing()
    clock.pass_(61)
    assert line.aborted


def test_p2_a_refusal_that_nobody_reads_does_not_keep_its_connection() -> None:
    protocol, line, clock = connected()
    protocol.data_received(b"nonsense\r\n\r\n")
    assert (line.written[:12], line.closing, line.aborted) == (b"HTTP/1.1 400", True, False)
    clock.pass_(61)
    assert line.aborted


def test_p2_too_many_connections_are_refused() -> None:
    _, line, _ = connected(Limits(connections=2), others=1)
    assert not line.closing
    _, line, _ = connected(Limits(connections=2), others=2)
    assert (line.written[:12], line.closing) == (b"HTTP/1.1 503", True)


def test_p2_earlier_requests_are_answered_before_a_connection_is_ended() -> None:
    protocol, line, _ = connected()
    protocol.data_received(BEGIN + b"Content-Length: 0\r\n\r\n")
    protocol.data_received(TOO_LARGE["one field"])
    assert (line.written, line.closing) == (b"", False)
    assert not protocol.cycle.keep_alive
    protocol.data_received(BEGIN + b"Content-Length: 0\r\n\r\n")
    assert len(protocol.pipeline) == 0, "nothing is read behind it"


@pytest.mark.slow
def test_p2_over_a_real_connection() -> None:
    with before(always(OK)) as (front, upstream):
        assert said(front, TOO_LARGE["many fields"]).startswith(b"HTTP/1.1 431")
        assert said(front, head(length=0), LAST).count(b"HTTP/1.1 200") == 2
        assert len(upstream.seen) == 2


# ---------------------------------------------------------------- what a request says of itself


@pytest.mark.slow
@each_row("length", [b"2 ", b"2\t", b" 2 \t "])
def test_blanks_around_a_value_are_no_part_of_it(length: bytes) -> None:
    request = b"POST /orders HTTP/1.1\r\nHost: h\r\nConnection: close\r\nX-A:  b \t\r\nContent-Length:%b\r\n\r\nhi"
    with before(always(OK)) as (front, upstream):
        assert said(front, request % length).startswith(b"HTTP/1.1 200")
        assert (upstream.seen[0].body, upstream.seen[0].all(b"content-length")) == (b"hi", [b"2"])


@pytest.mark.slow
@each_row("length", [b"2 2", b"+2", b"0x2", b"2\x0b", b"2,2", b"", b"\xc2\xb2"])
def test_a_length_that_is_none_is_refused(length: bytes) -> None:
    request = b"POST /orders HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: %b\r\n\r\nhi"
    with before(always(OK)) as (front, upstream):
        assert said(front, request % length).startswith(b"HTTP/1.1 400")
        assert not upstream.seen


@pytest.mark.slow
@each_row(
    ("target", "path"),
    [(b"http://other/a?b=1", b"/a?b=1"), (b"HTTP://other", b"/"), (b"https://other?b=1", b"/?b=1")],
)
@each_row("offer", [b"", b"Connection: Upgrade\r\nUpgrade: h2c\r\n"])
def test_p3_the_authority_of_the_absolute_form_is_the_host(target: bytes, path: bytes, offer: bytes) -> None:
    request = b"POST %b HTTP/1.1\r\nHost: h\r\nConnection: close\r\n%bContent-Length: 0\r\n\r\n" % (target, offer)
    with before(always(OK)) as (front, upstream):
        assert said(front, request).startswith(b"HTTP/1.1 200")
        (seen,) = upstream.seen
        assert (seen.line, seen.all(b"host")) == (b"POST %b HTTP/1.1" % path, [b"other"])
        assert seen.all(b"x-forwarded-host") == [b"other"]


@pytest.mark.slow
@each_row("target", [b"http://ann@other/a", b"ftp://other/a", b"http:///a", b"http://"])
def test_p3_an_absolute_form_that_can_be_read_in_two_ways_is_refused(target: bytes) -> None:
    request = b"POST %b HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 0\r\n\r\n" % target
    with before(always(OK)) as (front, upstream):
        assert said(front, request).startswith(b"HTTP/1.1 400")
        assert not upstream.seen


@pytest.mark.slow
def test_p3_an_absolute_form_needs_one_host_too() -> None:
    for hosts in (b"", b"Host: a\r\nHost: b\r\n"):
        request = b"POST http://other/a HTTP/1.1\r\n%bConnection: close\r\nContent-Length: 0\r\n\r\n" % hosts
        with before(always(OK)) as (front, upstream):
            assert said(front, request).startswith(b"HTTP/1.1 400")
            assert not upstream.seen


# ---------------------------------------------------------------- what only a proxy may tell

CLAIMED = (
    b"Forwarded X-Forwarded-For X-Forwarded-Port X-Forwarded-Prefix X-Forwarded-Anything X-Real-IP True-Client-IP "
    b"CF-Connecting-IP X-Original-URL X-Rewrite-URL X-Forwarded-User X-Forwarded-Email X-Forwarded-Client-Cert "
    b"Client-Cert Client-Cert-Chain X-Client-Cert X-Client-Verify X-SSL-Client-Cert SSL-Client-S-DN X-TLS-Version "
    b"X-ARR-ClientCert X-Amzn-Mtls-Clientcert X-User X-User-Id X-User-Email X-Username Remote-User X-Remote-User "
    b"X-Remote-Groups X-Authenticated-User X-Auth-Request-Email X-WebAuth-User X-Consumer-Username X-Credential-Id "
    b"X-Goog-IAP-JWT-Assertion X-Ms-Client-Principal Tailscale-User-Login X-Account"
).split()
PLAIN = b"X-Auth-Token X-User-Agent X-Request-Id Authorization X-Api-Key Cookie X-Account-Kind X-Sslfree".split()


def told(front: Front, names: list[bytes]) -> None:
    lines = b"".join(b"%b: eve\r\n" % name for name in names)
    said(front, BEGIN + lines + b"Connection: close\r\nContent-Length: 0\r\n\r\n")


@pytest.mark.slow
@each_row("spelt", [b"-", b"_", b"."])
def test_p1_fields_of_proxies_are_not_believed_of_strangers(spelt: bytes) -> None:
    principal = TrustedHeader("X-Account", (ip_network("10.0.0.0/8"),))
    names = [name.replace(b"-", spelt) for name in CLAIMED]
    with before(always(OK), principal=principal) as (front, upstream):
        told(front, [*names, *PLAIN])
        (seen,) = upstream.seen
        assert {name for name, value in seen.fields if value == b"eve"} == {name.lower() for name in PLAIN}


@pytest.mark.slow
def test_p1_names_that_are_listed_are_passed_on() -> None:
    principal = TrustedHeader("X-Account", (ip_network("127.0.0.0/8"),))
    with before(always(OK), principal=principal, trust_headers=("X-Client-Cert", "Remote_User")) as (front, upstream):
        told(front, [*CLAIMED, *(name.replace(b"-", b"_") for name in CLAIMED)])
        listed = {b"x-client-cert", b"remote_user", b"x-account"}
        assert {name for name, value in upstream.seen[0].fields if value == b"eve"} == listed
    with before(always(OK), trust_forwarded=True) as (front, upstream):
        told(front, CLAIMED)
        kept = {name for name, value in upstream.seen[0].fields if value == b"eve"}
        assert {b"x-forwarded-port", b"x-real-ip", b"forwarded"} < kept
        assert not kept & {b"x-forwarded-user", b"x-forwarded-client-cert", b"client-cert", b"remote-user"}
