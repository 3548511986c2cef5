"""The runner's client: what goes out and what is read, byte for byte."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from retrysafe.conformance import wire
from retrysafe.conformance.wire import ServerAddress, Silent, WireConnection, WireRequest, address
from tests.tables import each_row

pytestmark = pytest.mark.slow


@contextmanager
def answering(*pieces: bytes, hold: bool = False) -> Iterator[tuple[WireConnection, list[bytes]]]:
    """A connection to a server that takes what comes, sends the pieces, and closes (or, with ``hold``, doesn't)."""
    got: list[bytes] = []
    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            peer, _ = listening.accept()
            with peer:
                got.append(peer.recv(65_536))
                with suppress(ConnectionError):  # a client with a whole response closes, though more is sent
                    for piece in pieces:
                        peer.sendall(piece)
                if hold:
                    done.wait(60)

        thread = threading.Thread(target=serve)
        thread.start()
        connection = WireConnection(address(f"http://127.0.0.1:{listening.getsockname()[1]}"), 0.2 if hold else 10)
        try:
            yield connection, got
        finally:
            done.set()
            connection.close()
            thread.join()


ASK = WireRequest("POST", "/a%2Fb", (("X", '"'), ("X", "ä")), b"{}")


def test_a_request_goes_out_as_it_is() -> None:
    with answering(b"HTTP/1.1 204 No Content\r\n\r\n") as (connection, got):
        assert connection.ask(ASK).status == 204
    head, _, body = got[0].partition(b"\r\n\r\n")
    assert head.split(b"\r\n")[0] == b"POST /a%2Fb HTTP/1.1"
    assert head.split(b"\r\n")[2:] == [b'X: "', b"X: \xe4", b"Content-Length: 2"]
    assert body == b"{}"


def test_lines_are_kept_apart_and_in_order() -> None:
    with answering(b"HTTP/1.1 200 OK\r\nLink: a\r\nB: 1\r\nlink:\tb \r\nContent-Length: 0\r\n\r\n") as (connection, _):
        response = connection.ask(ASK)
    assert response.fields[:3] == (("Link", "a"), ("B", "1"), ("link", "b"))
    assert (response.all("LINK"), response.one("link"), response.one("c")) == (["a", "b"], "a, b", None)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
COUNTED = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "body", "whole"),
    [
        (COUNTED + b"abcd", b"abcd", True),
        (COUNTED + b"abcdHTTP/1.1", b"abcd", True),
        (COUNTED + b"ab", b"ab", False),
        (CHUNKED + b"2\r\nab\r\n1;x=y\r\nc\r\n0\r\nTrailer: 1\r\n\r\n", b"abc", True),
        (CHUNKED + b"2\r\nab\r\n", b"ab", False),
        (CHUNKED + b"4\r\nab", b"", False),
        (b"HTTP/1.1 200 OK\r\n\r\nabcd", b"abcd", True),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + COUNTED + b"abcd", b"abcd", True),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 4\r\n\r\n", b"", True),
    ],
)
def test_bodies_end_where_their_framing_says(sent: bytes, body: bytes, whole: bool) -> None:
    for pieces in ([sent], [sent[i : i + 1] for i in range(len(sent))]):
        with answering(*pieces) as (connection, _):
            response = connection.ask(ASK)
        assert (response.body, response.whole) == (body, whole)


def test_the_answer_to_head_has_no_body() -> None:
    with answering(COUNTED, hold=True) as (connection, _):
        assert connection.ask(WireRequest("HEAD", "/")).body == b""


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\nContent-", COUNTED + b"ab"])
def test_silence_is_told(sent: bytes) -> None:
    with answering(sent, hold=True) as (connection, _), pytest.raises(Silent):
        connection.ask(ASK)


@pytest.mark.parametrize("sent", [b"", b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 200 OK\r\nContent-"])
def test_a_connection_that_breaks_off_before_a_response_is_an_error(sent: bytes) -> None:
    with answering(sent) as (connection, _), pytest.raises(ConnectionError):
        connection.ask(ASK)


def test_pieces_come_as_they_arrive() -> None:
    with answering(CHUNKED + b"2\r\nab\r\n", hold=True) as (connection, _):
        connection.send(ASK.encode("h"))
        assert connection.begin().status == 200
        assert next(connection.pieces()) == b"ab"


@each_row(
    ("url", "found", "again"),
    [
        ("http://h", ServerAddress("http", "h", 80, ""), "http://h"),
        ("https://h/", ServerAddress("https", "h", 443, ""), "https://h"),
        ("http://h:8080/api/", ServerAddress("http", "h", 8080, "/api"), "http://h:8080/api"),
        ("http://[::1]:80/x", ServerAddress("http", "::1", 80, "/x"), "http://[::1]/x"),
    ],
)
def test_addresses(url: str, found: ServerAddress, again: str) -> None:
    assert address(url) == found
    assert str(found) == again


# ---------------------------------------------------------------- what a server may take


class Slowly:
    """A server's side of a connection: one piece for each read, and so many seconds before it."""

    def __init__(self, pieces: Iterator[bytes], seconds: float = 0.0) -> None:
        self.now, self.read = 0.0, 0
        self._pieces, self._seconds = pieces, seconds
        self._timeout = 0.0

    def settimeout(self, seconds: float) -> None:
        self._timeout = seconds

    def recv(self, most: int) -> bytes:
        if self._seconds > self._timeout:
            self.now += self._timeout
            raise TimeoutError
        self.now += self._seconds
        piece = next(self._pieces, b"")
        self.read += len(piece)
        return piece

    def sendall(self, data: bytes) -> None:
        self.now += 0.01

    def close(self) -> None:
        """Nothing is open."""


def speaking(pieces: Iterator[bytes], seconds: float = 0.0) -> tuple[WireConnection, Slowly]:
    peer = Slowly(pieces, seconds)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        connection = WireConnection(
            ServerAddress("http", "127.0.0.1", listening.getsockname()[1], ""), 10.0, clock=lambda: peer.now
        )
    connection._socket.close()
    connection._socket = peer  # type: ignore[assignment]
    return connection, peer


def flow(begin: bytes, more: bytes) -> Iterator[bytes]:
    yield begin
    while True:
        yield more


HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
DRIPS = {
    "a head": (HEAD, b"X: y\r\n"),
    "a line": (HEAD, b"X"),
    "interim responses": (b"HTTP/1.1 102 Processing\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "chunks": (CHUNKED, b"1\r\nx\r\n"),
    "a body with a length": (HEAD + b"Content-Length: 100000\r\n\r\n", b"x"),
    "a body to the end": (HEAD + b"\r\n", b"x"),
    "trailers": (CHUNKED + b"0\r\n", b"X: y\r\n"),
}


@pytest.mark.parametrize("which", DRIPS)
def test_one_step_has_an_end_however_the_server_drips(which: str) -> None:
    connection, peer = speaking(flow(*DRIPS[which]), seconds=0.5)
    with pytest.raises(Silent):
        connection.ask(ASK)
    assert peer.now <= 10.02


FLOODS = {
    "a head": (HEAD, b"X: y\r\n" * 1000),
    "a line": (HEAD, b"X" * 1000),
    "chunks": (CHUNKED, b"1000\r\n" + b"x" * 4096 + b"\r\n"),
    "one chunk": (CHUNKED + b"fffffffffff\r\n", b"x" * 4096),
    "a length": (HEAD + b"Content-Length: 99999999999\r\n\r\n", b"x" * 4096),
    "a body to the end": (HEAD + b"\r\n", b"x" * 4096),
}


@pytest.mark.parametrize("which", FLOODS)
def test_a_flood_is_not_read(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_MOST_BODY", 1 << 20)
    connection, peer = speaking(flow(*FLOODS[which]))
    if which == "one chunk":
        assert not connection.ask(ASK).whole
    else:
        with pytest.raises(ConnectionError, match="more than"):
            connection.ask(ASK)
    assert peer.read < (1 << 20) + (1 << 17)


def test_a_head_of_many_lines_is_read_in_linear_time() -> None:
    """As bytes that are moved: a line is taken from a buffer, which is not copied for each."""
    connection, peer = speaking(iter([HEAD + b"X: y\r\n" * 10_000 + b"Content-Length: 0\r\n\r\n"]))
    assert len(connection.ask(ASK).all("X")) == 10_000
    assert peer.read < wire._MOST_HEAD
