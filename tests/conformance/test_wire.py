"""The runner's client: what goes out and what is read, byte for byte."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from retrysafe.conformance.wire import Address, Connection, Request, Silent, address


@contextmanager
def answering(*pieces: bytes, hold: bool = False) -> Iterator[tuple[Connection, list[bytes]]]:
    """A connection to a server that takes what comes, sends the pieces, and closes (or, with ``hold``, doesn't)."""
    got: list[bytes] = []
    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            peer, _ = listening.accept()
            with peer:
                got.append(peer.recv(65_536))
                for piece in pieces:
                    peer.sendall(piece)
                if hold:
                    done.wait(60)

        thread = threading.Thread(target=serve)
        thread.start()
        connection = Connection(Address("http", "127.0.0.1", listening.getsockname()[1], ""), 0.2 if hold else 10)
        try:
            yield connection, got
        finally:
            done.set()
            connection.close()
            thread.join()


ASK = Request("POST", "/a%2Fb", (("X", '"'), ("X", "ä")), b"{}")


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
        assert connection.ask(Request("HEAD", "/")).body == b""


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


@pytest.mark.parametrize(
    ("url", "found", "again"),
    [
        ("http://h", Address("http", "h", 80, ""), "http://h"),
        ("https://h/", Address("https", "h", 443, ""), "https://h"),
        ("http://h:8080/api/", Address("http", "h", 8080, "/api"), "http://h:8080/api"),
        ("http://[::1]:80/x", Address("http", "::1", 80, "/x"), "http://[::1]/x"),
    ],
)
def test_addresses(url: str, found: Address, again: str) -> None:
    assert address(url) == found
    assert str(found) == again
