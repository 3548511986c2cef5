"""The traffic through the gateway: bytes, fields, bodies of any size, connections."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retrysafe.gateway.settings import Settings, Timeouts
from retrysafe.gateway.upstream import Upstream as Connections
from retrysafe.gateway.upstream import UpstreamExchange
from tests.gateway.processes import GatewayProcess, Service
from tests.gateway.upstreams import OK, Asked, Front, Upstream, always, before
from tests.tables import each_row

pytestmark = pytest.mark.slow

TARGETS = ["/a%2Fb", "/a/b/", "//a", "/a/../b", "/a/%2e%2E/b", "/a;x=1?b=%20&a=1&a=2&c", "/?a=%C3%A9"]


@each_row("target", TARGETS)
@each_row("key", [None, "order-1"])
def test_path_and_query_pass_byte_by_byte(target: str, key: str | None) -> None:
    guarded = b"" if key is None else b"Idempotency-Key: order-1\r\n"
    with before(always(OK)) as (front, upstream):
        request = b"POST %s HTTP/1.1\r\nHost: h\r\nConnection: close\r\n%bContent-Length: 0\r\n\r\n"
        with front.raw(request % (target.encode(), guarded)) as connection:
            assert _read(connection).startswith(b"HTTP/1.1 200")
        assert upstream.seen[0].line == b"POST %s HTTP/1.1" % target.encode()


@each_row("target", [b"/a\xff", "/é".encode(), "/?b=é".encode()])
def test_a_target_that_is_no_uri_is_refused(target: bytes) -> None:
    with before(always(OK)) as (front, upstream):
        with front.raw(b"GET %b HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n" % target) as connection:
            assert _read(connection).startswith(b"HTTP/1.1 400")
        assert not upstream.seen


def _read(connection: Any) -> bytes:
    got = b""
    while data := connection.recv(65_536):
        got += data
    return got


def test_hop_by_hop_fields_end_at_the_gateway_both_ways() -> None:
    answer = (
        b"HTTP/1.1 200 OK\r\nConnection: X-Theirs, close\r\nX-Theirs: 1\r\nKeep-Alive: timeout=5\r\nTrailer: X-T\r\n"
        b"Upgrade: h2c\r\nX-Kept: 1\r\nLink: <a>\r\nLink: <b>\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"2\r\nok\r\n0\r\nX-T: trailer\r\n\r\n"
    )
    with before(always(answer)) as (front, upstream):
        request = (
            b"POST /orders HTTP/1.1\r\nHost: shop.example\r\nConnection: close, X-Mine, content-length, host\r\n"
            b"X-Mine: 1\r\nKeep-Alive: 1\r\nTE: trailers\r\nProxy-Connection: x\r\nUpgrade: h2c\r\nX-Kept: 1\r\n"
            b"Accept: a\r\nAccept: b\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n{}"
        )
        with front.raw(request) as connection:
            got = _read(connection)
    seen = upstream.seen[0]
    gone = (b"connection", b"x-mine", b"keep-alive", b"te", b"proxy-connection", b"upgrade", b"expect", b"trailer")
    assert {name.lower() for name, _ in seen.fields}.isdisjoint(gone)
    assert (seen.all(b"x-kept"), seen.all(b"accept")) == ([b"1"], [b"a", b"b"])
    assert (seen.all(b"host"), seen.body) == ([b"shop.example"], b"{}")
    interim, _, rest = got.partition(b"\r\n\r\n")
    assert interim == b"HTTP/1.1 100 Continue"
    head = rest.partition(b"\r\n\r\n")[0].lower()
    assert b"x-kept: 1" in head
    assert head.count(b"link: ") == 2
    for name in (b"x-theirs", b"keep-alive", b"trailer", b"upgrade", b"x-t:"):
        assert name not in head
    assert b"2\r\nok\r\n0\r\n\r\n" in rest


def test_a_client_is_told_and_not_believed() -> None:
    lying = {"X_Forwarded_For": "1.2.3.4", "Forwarded": "for=1.2.3.4", "X_Forwarded_Proto": "https"}
    with before(always(OK)) as (front, upstream):
        response = front.ask(Via="1.0 theirs", **lying)
        seen = upstream.seen[0]
        assert seen.all(b"via") == [b"1.0 theirs", b"1.1 gateway"]
        assert seen.all(b"x-forwarded-for") == [b"127.0.0.1"]
        assert seen.all(b"x-forwarded-proto") == [b"http"]
        host = f"127.0.0.1:{front.port}".encode()
        assert seen.all(b"x-forwarded-host") == [host]
        assert seen.all(b"forwarded") == [b'for=127.0.0.1;host="%s";proto=http' % host]
        assert response.all("via") == ["1.1 gateway"]
        assert len(response.all("date")) == 1
    with before(always(OK), trust_forwarded=True, host="upstream") as (front, upstream):
        front.ask(Connection="X-Forwarded-Proto, close", **lying)
        seen = upstream.seen[0]
        assert seen.all(b"x-forwarded-for") == [b"1.2.3.4", b"127.0.0.1"]
        assert seen.all(b"x-forwarded-proto") == [b"https"]
        assert seen.all(b"host") == [upstream.url.removeprefix("http://").encode()]


@each_row(("how", "shown"), [("quoted", b'"%s"'), ("bare", b"%s"), ("off", None)], ids=["quoted", "bare", "off"])
def test_the_key_that_is_sent_on_is_derived(how: str, shown: bytes | None) -> None:
    with before(always(OK), forward_key=how) as (front, upstream):
        front.ask(key="order-1")
        front.ask(path="/elsewhere", key="order-2")
        front.ask(Idempotency_Key="not-guarded", method="PUT")
    first, second, unguarded = (seen.all(b"idempotency-key") for seen in upstream.seen)
    assert unguarded == [b"not-guarded"], "what is not guarded passes as it came"
    if shown is None:
        assert (first, second) == ([], [])
        return
    assert first != second
    (key,) = first
    assert b"order-1" not in key, "clients of two tenants may have the same key, and the upstream must not mix them up"
    assert key == shown % key.strip(b'"')


def test_a_key_in_another_header_is_sent_on_in_it() -> None:
    with before(always(OK), effects="keyed", options={"header": "PayPal-Request-Id"}) as (front, upstream):
        assert front.ask(PayPal_Request_Id="order-1").status == 200
        assert front.ask(PayPal_Request_Id="order-1").all("idempotent-replayed") == ["true"]
    (seen,) = upstream.seen
    (key,) = seen.all(b"paypal-request-id")
    assert b"order-1" not in key
    assert seen.all(b"idempotency-key") == []


def test_a_length_is_told_where_it_is_known() -> None:
    """A guarded request was read to its end before it is sent; another one is sent as it comes."""
    chunked = {"Transfer_Encoding": "chunked"}
    with before(always(OK)) as (front, upstream):
        front.ask(key="order-1", body=b"2\r\n{}\r\n0\r\n\r\n", **chunked)
        front.ask(body=b"2\r\n{}\r\n0\r\n\r\n", **chunked)
        front.ask(body=b"")
    guarded, streamed, empty = upstream.seen
    assert (guarded.all(b"content-length"), guarded.body) == ([b"2"], b"{}")
    assert (streamed.all(b"transfer-encoding"), streamed.body) == ([b"chunked"], b"{}")
    assert (empty.all(b"content-length"), empty.all(b"transfer-encoding")) == ([b"0"], [])


def test_paths_without_bytes_in_the_client_library_are_refused_and_not_sent() -> None:
    with before(always(OK), effects="external") as (front, upstream):
        for _ in range(2):
            with front.raw(
                b"POST /orders HTTP/1.1\r\nHost: h\r\nIdempotency-Key: k1\r\nX-Name: \xff\xfe\r\nConnection: close\r\n"
                b"Content-Length: 0\r\n\r\n"
            ) as connection:
                assert b"request-invalid" in _read(connection)
        assert front.ask(X_Name="Grüße".encode().decode("latin-1")).status == 200
        assert upstream.seen[0].all(b"x-name") == ["Grüße".encode()]
        assert len(upstream.seen) == 1


@each_row("status", [b"204 No Content", b"304 Not Modified"])
def test_responses_without_a_body(status: bytes) -> None:
    with before(always(b"HTTP/1.1 %b\r\nETag: x\r\n\r\n" % status)) as (front, _):
        assert [front.ask(key="order-1").body for _ in range(2)] == [b"", b""]
    with before(always(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n")) as (front, _):
        head = front.ask("HEAD")
        assert (head.all("content-length"), head.body) == (["99"], b"")


def test_interim_responses_are_passed_over() -> None:
    with before(always(b"HTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\n" + OK)) as (front, _):
        first, again = front.ask(key="order-1"), front.ask(key="order-1")
        assert (first.status, first.body) == (200, b"ok")
        assert again.replayed


@pytest.mark.parametrize("fields", [{"Connection": "Upgrade", "Upgrade": "websocket"}])
def test_a_websocket_is_refused_clearly(fields: dict[str, str]) -> None:
    with before(always(OK)) as (front, upstream):
        refused = front.ask("GET", **fields)
        assert (refused.status, refused.code) == (501, "upgrade-unsupported")
        assert not upstream.seen


def test_connections_are_used_again() -> None:
    with before(always(OK)) as (front, upstream):
        for number in range(5):
            assert front.ask(key=f"order-{number}").status == 200
        assert upstream.connections == 1


def test_responses_of_the_upstream_are_not_followed_unpacked_or_remembered() -> None:
    moved = (
        b"HTTP/1.1 302 Found\r\nLocation: /x\r\nSet-Cookie: a=1\r\n"
        b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\n\x1f\x8b\0"
    )
    with before(always(moved)) as (front, upstream):
        for _ in range(2):
            response = front.ask()
            assert (response.status, response.body, response.all("set-cookie")) == (302, b"\x1f\x8b\0", ["a=1"])
        assert [seen.line for seen in upstream.seen] == [b"POST /orders HTTP/1.1"] * 2
        assert not any(seen.all(b"cookie") for seen in upstream.seen)


def test_nothing_that_the_client_did_not_send_is_added() -> None:
    with (
        before(always(OK)) as (front, upstream),
        front.raw(
            b"POST /orders HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
        ) as connection,
    ):
        _read(connection)
        names = [name.lower() for name, _ in upstream.seen[0].fields]
    told = [b"via", b"x-forwarded-proto", b"x-forwarded-host", b"x-forwarded-for", b"forwarded"]
    assert sorted(names) == sorted([b"host", b"content-length", *told])


def test_a_slow_client_is_no_silent_upstream() -> None:
    """The limit for silence rests while the client gives no bytes, or takes none."""
    size = 8 << 20

    def large(asked: Asked) -> None:
        asked.request()
        asked.say(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size)

    with (
        before(large, timeouts=Timeouts(read=1.5)) as (front, _),
        front.raw(b"POST /orders HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 2\r\n\r\n") as connection,
    ):
        threading.Event().wait(2)
        connection.sendall(b"{}")
        threading.Event().wait(2)
        assert len(_read(connection).partition(b"\r\n\r\n")[2]) == size


async def test_a_connection_that_serves_another_request_is_not_cut() -> None:
    """The response was read to its end, but could not be recorded: the connection is somebody else's by then."""
    other_began, go = threading.Event(), threading.Event()

    def behave(asked: Asked) -> None:
        asked.request()
        asked.say(OK)
        if asked.request() is not None:
            other_began.set()
            go.wait(60)
            asked.say(OK)

    upstream = Upstream(behave)
    connections = Connections(Settings(upstream=upstream.url, store="memory://", principal="shared", connections=1))
    others: list[asyncio.Task[None]] = []

    async def run(send: Any) -> None:
        async def head(status: int, headers: Any) -> None:
            pass

        exchange = UpstreamExchange(connections, Timeouts(), asyncio.Event().wait, send)  # type: ignore[arg-type]
        await exchange.run("POST", connections.url(b"/", b""), [], head, body=False, abandons=False)

    got: list[bytes] = []

    async def take(message: Any) -> None:
        got.append(message["body"])

    async def not_recorded(message: Any) -> None:
        if not message["more_body"]:
            others.append(asyncio.create_task(run(take)))
            await asyncio.to_thread(other_began.wait)
            raise LookupError("the store is gone")

    try:
        with pytest.raises(LookupError):
            await run(not_recorded)
        go.set()
        await others[0]
        assert b"".join(got) == b"ok"
        assert upstream.connections == 1
    finally:
        await connections.close()
        upstream.close()


# ---------------------------------------------------------------- bodies of any size

LARGE = 96 << 20
MOST = 40 << 20
"""Bytes by which a gateway may grow while it passes bodies that are more than twice as large."""


@pytest.fixture
def large(node: str, tmp_path: Path) -> Iterator[tuple[Service, GatewayProcess, Path]]:
    file = tmp_path / "gateway.toml"
    file.write_text('principal = "shared"\n[defaults]\nbody_limit = "200 MiB"\n')
    with (
        Service(tmp_path / "ledger") as service,
        GatewayProcess(
            "--upstream", service.url, "--store", f"sqlite:///{tmp_path / 'keys.db'}", "--config", str(file)
        ) as gateway,
    ):
        yield service, gateway, Path(f"/proc/{gateway.process.pid}/status")


@pytest.mark.fault(66)
@pytest.mark.parametrize("key", [None, "order-1"], ids=["streamed", "guarded"])
def test_huge_bodies_pass_both_ways_in_bounded_memory(
    large: tuple[Service, GatewayProcess, Path], key: str | None
) -> None:
    _, gateway, status = large
    front = Front(gateway.url, None)  # type: ignore[arg-type]
    assert front.ask(path="/big?size=1").status == 200
    usual = _peak(status)
    pieces = (b"x" * 65_536 for _ in range(LARGE // 65_536))
    response = front.ask(path=f"/big?size={LARGE}", body=pieces, key=key, Content_Length=str(LARGE))
    assert (response.status, len(response.body), response.all("x-got")) == (200, LARGE, [str(LARGE)])
    assert _peak(status) - usual < MOST


def _peak(status: Path) -> int:
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024
