"""Where a message ends, and what belongs to it: nothing of one request may become part of another."""

from __future__ import annotations

import shutil
import subprocess
import threading
from typing import Any

import pytest

from retrysafe.gateway import Gateway, Settings
from tests.conftest import absent
from tests.gateway.test_conformance import served
from tests.gateway.upstreams import OK, Front, Upstream, always, before

SMUGGLED = b"DELETE /accounts/7 HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n"


def read(connection: Any) -> bytes:
    got = b""
    while data := connection.recv(65_536):
        got += data
    return got


def head(*fields: bytes, length: int = len(SMUGGLED), line: bytes = b"POST /orders HTTP/1.1") -> bytes:
    return b"\r\n".join([line, b"Host: h", *fields, b"Content-Length: %d" % length, b"", b""])


def said(front: Front, *segments: bytes) -> bytes:
    """What is answered to segments that do not arrive together, until the connection is closed."""
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


@pytest.mark.parametrize("cut", [None, 0, 7, -5], ids=["one", "after the head", "in the body", "in the head"])
@pytest.mark.parametrize("offer", OFFERS)
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


def test_a_chunked_body_and_several_offers_on_one_connection() -> None:
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(SMUGGLED), SMUGGLED)
    one = b"PUT /a HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: h2c\r\nTransfer-Encoding: chunked\r\n\r\n"
    with before(always(OK)) as (front, upstream):
        said(front, (one + chunked) * 3 + LAST)
        assert [seen.line.split()[0] for seen in upstream.seen] == [b"PUT", b"PUT", b"PUT", b"GET"]
        assert [seen.body for seen in upstream.seen[:3]] == [SMUGGLED] * 3


def test_an_offer_on_a_connection_that_is_to_be_closed() -> None:
    begin = head(b"Connection: close, Upgrade", b"Upgrade: h2c")
    with before(always(OK)) as (front, upstream):
        said(front, begin, SMUGGLED)
        assert [(seen.line, seen.body) for seen in upstream.seen] == [(b"POST /orders HTTP/1.1", SMUGGLED)]


@pytest.mark.parametrize("method", [b"GET", b"POST"])
def test_a_websocket_is_refused_and_its_body_is_no_request(method: bytes) -> None:
    offer = (b"Connection: Upgrade", b"Upgrade: websocket")
    with before(always(OK)) as (front, upstream):
        got = said(front, head(*offer, line=method + b" /ws HTTP/1.1") + SMUGGLED)
        assert got.startswith(b"HTTP/1.1 501")
        assert b"upgrade-unsupported" in got
        assert (got.count(b"HTTP/1.1 "), upstream.seen) == (1, [])


def test_behind_a_server_that_ends_such_a_request_with_its_head_it_is_refused() -> None:
    """As uvicorn does by itself."""
    upstream = Upstream(always(OK))
    gateway = Gateway(Settings(upstream.url, "memory://"))
    try:
        with served(gateway, http="httptools") as address:
            got = said(Front(address, gateway), head(*OFFERS["h2c"]) + SMUGGLED, SMUGGLED)
        assert got.startswith(b"HTTP/1.1 501")
        assert (got.count(b"HTTP/1.1 "), upstream.seen) == (1, [])
    finally:
        upstream.close()


@pytest.mark.parametrize("target", [b"/", b"shop.example:443"])
def test_after_connect_nothing_is_read(target: bytes) -> None:
    with before(always(OK)) as (front, upstream):
        got = said(front, b"CONNECT %b HTTP/1.1\r\nHost: h\r\n\r\n" % target + SMUGGLED)
        assert got.startswith((b"HTTP/1.1 501", b"HTTP/1.1 400"))
        assert got.count(b"HTTP/1.1 ") == 1
        assert not upstream.seen


def test_what_curl_sends_to_ask_for_http_2() -> None:
    if shutil.which("curl") is None:
        absent("no curl: what it sends with --http2 is written out in the tests beside this one")
    with before(always(OK)) as (front, upstream):
        url = f"http://127.0.0.1:{front.port}/orders"
        command = ["curl", "-sS", "--http2", "--max-time", "20", "-d", "amount=7", "-H", "Idempotency-Key: k1", url]
        for _ in range(2):
            assert subprocess.run(command, capture_output=True, check=True).stdout == b"ok"
        assert [seen.body for seen in upstream.seen] == [b"amount=7"]


def test_trailers_are_no_fields() -> None:
    begin = b"POST /orders HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nConnection: %b\r\n\r\n"
    trailers = b"2\r\n{}\r\n0\r\nIdempotency-Key: evil\r\nX-User: admin\r\nX-Last: 1\r\n\r\n"
    with before(always(OK)) as (front, upstream):
        said(front, begin % b"keep-alive" + trailers + begin % b"close" + trailers)
        said(front, begin % b"close", trailers)
        assert [seen.body for seen in upstream.seen] == [b"{}"] * 3
        for seen in upstream.seen:
            assert not [name for name in (b"idempotency-key", b"x-user", b"x-last") if seen.all(name)]


def test_what_is_no_http_is_refused() -> None:
    with before(always(OK)) as (front, _):
        assert said(front, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").startswith(b"HTTP/1.1 400")


HOSTS = {
    "none": b"POST /orders HTTP/1.1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
    "two": b"POST /orders HTTP/1.1\r\nHost: a\r\nHost: b\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
    "the same twice": b"GET /orders HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n",
}


@pytest.mark.parametrize("which", HOSTS)
def test_a_request_has_one_host(which: str) -> None:
    with before(always(OK)) as (front, upstream):
        assert said(front, HOSTS[which]).startswith(b"HTTP/1.1 400")
        assert not upstream.seen
        assert said(front, b"GET / HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200"), "HTTP/1.0 knows no Host"


def test_a_transfer_coding_that_nobody_undoes_is_refused() -> None:
    begin = b"POST /orders HTTP/1.1\r\nHost: h\r\nConnection: close\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"
    with before(always(OK)) as (front, upstream):
        got = said(front, begin + b"2\r\n{}\r\n0\r\n\r\n")
        assert (got[:12], upstream.seen) == (b"HTTP/1.1 400", [])


def test_no_second_key_passes_with_an_underscore() -> None:
    with before(always(OK)) as (front, upstream):
        extra = (b"Idempotency-Key: k1", b"Idempotency_Key: evil", b"X_Forwarded_For: 1.2.3.4", b"X_Own: 1")
        said(front, head(b"Connection: close", *extra, length=0))
        (seen,) = upstream.seen
        assert not seen.all(b"idempotency_key")
        assert not seen.all(b"x_forwarded_for")
        assert seen.all(b"x_own") == [b"1"]


@pytest.mark.parametrize(("host", "code"), [("keep", b"422"), ("upstream", b"200")])
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
