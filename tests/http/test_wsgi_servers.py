"""The WSGI middleware behind real servers: what each makes of a request, and what a crash leaves."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.http.apps import wsgi_shop

pytestmark = pytest.mark.slow

SERVERS = ["gunicorn-sync", "gunicorn-gthread", "werkzeug", "waitress"]


class Answer(NamedTuple):
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def replayed(self) -> bool:
        return ("idempotent-replayed", "true") in self.headers


class Shop:
    """A running server."""

    def __init__(self, server: str, place: Path) -> None:
        self.place = place
        for pipe in ("working", "gone"):
            os.mkfifo(place / pipe)
        listening = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = listening.getsockname()[1]
        command = [sys.executable, "-m", "tests.http.apps.wsgi_shop", server, str(listening.fileno())]
        environment = os.environ | {"SHOP_PLACE": str(place), "SHOP_STORE": f"sqlite:///{place / 'keys.db'}"}
        self._process = subprocess.Popen(command, env=environment, pass_fds=[listening.fileno()])
        listening.close()

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)

    def post(
        self,
        key: str,
        *,
        path: str = "/orders",
        body: bytes | Iterable[bytes] = b"one",
        more: Iterable[tuple[str, str]] = (),
    ) -> Answer:
        connection = self.connect()
        try:
            connection.putrequest("POST", path)
            for name, value in [("Idempotency-Key", key), *more]:
                connection.putheader(name, value)
            chunked = not isinstance(body, bytes)
            connection.putheader(*(("Transfer-Encoding", "chunked") if chunked else ("Content-Length", str(len(body)))))  # type: ignore[arg-type]
            connection.endheaders(body, encode_chunked=chunked)
            response = connection.getresponse()
            headers = [(name.lower(), value) for name, value in response.getheaders()]
            return Answer(response.status, headers, response.read())
        finally:
            connection.close()

    @property
    def ledger(self) -> list[str]:
        return (self.place / "ledger").read_text().splitlines()

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(60)
        finally:
            self._process.kill()
            self._process.wait()


@pytest.fixture(params=SERVERS)
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    opened = Shop(request.param, tmp_path)
    yield opened
    opened.close()


def test_r2_the_same_bytes_and_lines_once(shop: Shop) -> None:
    first, second = shop.post("k"), shop.post("k")
    assert (first.status, first.body, first.replayed) == (201, b"order 1 of one", False)
    assert (second.status, second.body, second.replayed) == (201, b"order 1 of one", True)
    assert [value for name, value in second.headers if name == "x-one"] == ["a", "b"]
    assert len([name for name, _ in second.headers if name == "date"]) <= 1
    assert shop.ledger == ["order"]


def test_r12_a_chunked_request_body_is_read_and_counts(shop: Shop) -> None:
    assert shop.post("k", body=iter([b"on", b"e"])).body == b"order 1 of one"
    assert shop.post("k", body=iter([b"o", b"ne"])).replayed, "the same bytes, cut otherwise"
    assert shop.post("k", body=iter([b"two"])).status == 422


def test_k3_two_lines_are_refused(shop: Shop) -> None:
    assert shop.post("a", more=[("Idempotency-Key", "b")]).status == 400
    assert shop.post('"a"', more=[("Idempotency-Key", '"b"')]).status == 400


def test_f2_paths_are_compared_as_they_were_sent(shop: Shop) -> None:
    shop.post("k", path="/orders/a%2Fb?a=1&a=2")
    assert shop.post("k", path="/orders/a%2Fb?a=1&a=2").replayed
    assert shop.post("k", path="/orders/a/b?a=1&a=2").status == 422
    assert shop.post("k", path="/orders/a%2Fb?a=2&a=1").status == 422


def test_r1_many_at_once_run_once(shop: Shop) -> None:
    answers: list[Answer] = []
    threads = [threading.Thread(target=lambda: answers.append(shop.post("k"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {answer.body for answer in answers} == {b"order 1 of one"}
    assert sorted(answer.replayed for answer in answers) == [False] + [True] * 7


def test_r28_a_file_does_not_pass_around(shop: Shop) -> None:
    expected = Path(wsgi_shop.__file__).read_bytes()
    assert shop.post("k", path="/file").body == expected
    again = shop.post("k", path="/file")
    assert (again.body, again.replayed) == (expected, True)


def test_r17_a_client_that_leaves_gets_the_whole_response_later(shop: Shop) -> None:
    connection = shop.connect()
    connection.request("POST", "/stream", b"one", {"Idempotency-Key": "k"})
    response = connection.getresponse()
    assert response.read(10_000) == b"a" * 10_000
    sock = response.fp.raw._sock  # type: ignore[attr-defined]
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, so that writing fails
    response.close()
    connection.close()
    with (shop.place / "gone").open("w"):
        pass  # the handler goes on
    again = shop.post("k", path="/stream")
    assert again.body == b"".join(letter * 10_000 for letter in (b"a", b"b", b"c", b"d", b"e", b"f"))
    assert again.replayed
    assert shop.ledger == ["stream"]


@pytest.mark.parametrize("shop", ["gunicorn-sync", "gunicorn-gthread"], indirect=True)
def test_r19_a_killed_worker_is_followed_by_another_attempt(shop: Shop) -> None:
    answers: list[object] = []

    def first() -> None:
        try:
            answers.append(shop.post("k", path="/hang"))
        except (http.client.HTTPException, OSError) as error:
            answers.append(error)

    thread = threading.Thread(target=first)
    thread.start()
    worker = int((shop.place / "working").read_text())
    os.kill(worker, signal.SIGKILL)
    thread.join()
    assert isinstance(answers[0], Exception)
    second = shop.post("k", path="/hang")
    assert (second.status, second.body, second.replayed) == (201, b"taken over", False)
    assert shop.post("k", path="/hang").replayed
    assert shop.ledger == ["hang", "hang"]
