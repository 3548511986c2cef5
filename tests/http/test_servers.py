"""The essential rules behind real servers, over real sockets."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.docs.pages import ROOT
from tests.ports import free_port

APP = "tests.http.apps.folder:app"
SERVERS: dict[str, Callable[[int], list[str]]] = {
    "uvicorn": lambda port: ["uvicorn", "--port", str(port), "--lifespan", "off", APP],
    "hypercorn": lambda port: ["hypercorn", "--bind", f"127.0.0.1:{port}", APP],
    "granian": lambda port: ["granian", "--interface", "asginl", "--port", str(port), APP],
}
SECONDS = 60


class Answer(NamedTuple):
    """A response, read to its end."""

    status: int
    lines: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((value for field, value in self.lines if field.lower() == name), None)


class Server(NamedTuple):
    """A running server."""

    port: int
    folder: Path

    def post(self, path: str, *keys: str) -> Answer:
        with closing(self.send(path, *keys)) as connection:
            return read(connection.getresponse())

    def send(self, path: str, *keys: str) -> HTTPConnection:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        connection.putrequest("POST", path)
        for key in keys:
            connection.putheader("Idempotency-Key", key)
        connection.putheader("Content-Length", "2")
        connection.endheaders(b"{}")
        return connection

    @property
    def runs(self) -> list[str]:
        ledger = self.folder / "ledger"
        return ledger.read_text().split() if ledger.exists() else []


def read(response: HTTPResponse) -> Answer:
    return Answer(response.status, response.getheaders(), response.read())


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """Every server, with an application of its own."""
    with running(SERVERS[request.param], tmp_path) as started:
        yield started


@contextmanager
def running(command: Callable[[int], list[str]], folder: Path) -> Iterator[Server]:
    """A server with an application whose files are in ``folder``."""
    port = free_port()
    environment = {**os.environ, "RETRYSAFE_TEST_FOLDER": str(folder), "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *command(port)], env=environment, cwd=ROOT, stdout=log, stderr=log
        )
        try:
            _await_port(port, process, folder / "log")
            yield Server(port, folder)
        finally:
            process.terminate()
            process.wait(SECONDS)


def _await_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        assert process.poll() is None, log.read_text()
        with closing(socket.socket()) as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise AssertionError(log.read_text())


@pytest.mark.slow
@pytest.mark.fault(6, 16, 19)
def test_the_essential_rules(server: Server) -> None:
    _f19_a_body_that_is_reset_in_the_middle_claims_nothing(server)
    _k3_two_lines_are_refused(server)
    _r1_of_many_at_once_one_runs(server)
    _r1_a_retry_on_the_same_connection(server)
    _r2_r4_a_retry_gets_the_same_response(server)
    _r8_a_client_that_leaves_at_the_end_finds_the_record(server)
    _r11_a_large_response_is_not_run_again(server)
    _r17_a_client_that_leaves_finds_the_result(server)


def _f19_a_body_that_is_reset_in_the_middle_claims_nothing(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), SECONDS) as client:
        client.sendall(b"POST /f19 HTTP/1.1\r\nHost: x\r\nIdempotency-Key: f19\r\nContent-Length: 2\r\n\r\n{")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, not an end
    for replayed in (None, "true"):
        answer = server.post("/f19", "f19")
        assert (answer.status, answer.header("idempotent-replayed")) == (201, replayed)
    assert server.runs.count("/f19") == 1


def _k3_two_lines_are_refused(server: Server) -> None:
    answer = server.post("/k3", "a", "b")
    assert answer.status == 400
    assert b"key-invalid" in answer.body
    assert server.post("/k3").status == 400
    assert "/k3" not in server.runs


def _r1_of_many_at_once_one_runs(server: Server) -> None:
    (server.folder / "go").unlink(missing_ok=True)
    with closing(server.send("/slow", "r1")) as first, ThreadPoolExecutor(4) as pool:
        await_run(server, "/slow", 1)
        for answer in pool.map(lambda _: server.post("/slow", "r1"), range(4)):
            assert answer.status == 409
            assert int(answer.header("retry-after") or 0) >= 1
        (server.folder / "go").touch()
        assert read(first.getresponse()).status == 201
    assert server.post("/slow", "r1").header("idempotent-replayed") == "true"
    assert server.runs.count("/slow") == 1


def _r1_a_retry_on_the_same_connection(server: Server) -> None:
    """The second request is there before the first is answered, and the third closes the connection."""
    lines = b"POST /again HTTP/1.1\r\nHost: x\r\nIdempotency-Key: again\r\nContent-Length: 2\r\n"
    with socket.create_connection(("127.0.0.1", server.port), SECONDS) as client:
        client.sendall(2 * (lines + b"\r\n{}") + lines + b"Connection: close\r\n\r\n{}")
        while client.recv(65536):
            pass
    assert server.runs.count("/again") == 1


def _r2_r4_a_retry_gets_the_same_response(server: Server) -> None:
    first, again = server.post("/r2", "r2"), server.post("/r2", '"r2"')
    assert (first.status, again.status, again.body) == (201, 201, first.body)
    assert (first.header("idempotent-replayed"), again.header("idempotent-replayed")) == (None, "true")
    assert [value for name, value in again.lines if name.lower() == "link"] == ["<a>", "<b>"]
    assert sum(name.lower() == "date" for name, _ in again.lines) <= 1


def _r8_a_client_that_leaves_at_the_end_finds_the_record(server: Server) -> None:
    with closing(server.send("/r8", "r8")) as connection:
        assert connection.getresponse().read().endswith(b"end")
    assert server.post("/r8", "r8").header("idempotent-replayed") == "true"
    assert server.runs.count("/r8") == 1


def _r11_a_large_response_is_not_run_again(server: Server) -> None:
    first, again = server.post("/large", "r11"), server.post("/large", "r11")
    assert len(first.body) == 20_003
    assert (again.status, again.body, again.header("idempotency-replay")) == (201, b"", "omitted")
    assert server.runs.count("/large") == 1


def _r17_a_client_that_leaves_finds_the_result(server: Server) -> None:
    (server.folder / "go").unlink()
    before = server.runs.count("/slow")
    with closing(server.send("/slow", "r17")):
        await_run(server, "/slow", before + 1)  # a server may drop a request whose client has left before it began
    (server.folder / "go").touch()
    until = time.monotonic() + SECONDS
    while (answer := server.post("/slow", "r17")).status == 409 and time.monotonic() < until:
        time.sleep(0.02)
    assert (answer.status, answer.header("idempotent-replayed")) == (201, "true")
    assert server.runs.count("/slow") == before + 1


def await_run(server: Server, path: str, count: int) -> None:
    until = time.monotonic() + SECONDS
    while server.runs.count(path) < count:
        assert time.monotonic() < until, server.runs
        time.sleep(0.01)
