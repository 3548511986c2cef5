"""Django behind a WSGI and an ASGI server, over real sockets."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from tests.http.test_servers import SECONDS, Server, await_run, read, running

PROJECT = "tests.http.apps.django_folder"
SERVERS: dict[str, Callable[[int], list[str]]] = {
    "gunicorn": lambda port: ["gunicorn", "--bind", f"127.0.0.1:{port}", "--threads", "8", f"{PROJECT}:wsgi"],
    "uvicorn": lambda port: ["uvicorn", "--port", str(port), "--lifespan", "off", f"{PROJECT}:asgi"],
}


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """Both servers, with a project of their own."""
    with running(SERVERS[request.param], tmp_path) as started:
        yield started


@pytest.mark.slow
def test_the_essential_rules(server: Server) -> None:
    _k3_two_lines_are_refused(server)
    _r1_of_many_at_once_one_runs(server)
    _r2_a_retry_gets_the_same_response(server)
    _r11_a_large_response_is_not_run_again(server)
    _r17_a_client_that_leaves_finds_the_result(server, "/slow")
    _r17_a_client_that_leaves_finds_the_result(server, "/leased/slow")


def _k3_two_lines_are_refused(server: Server) -> None:
    answer = server.post("/orders", "a", "b")
    assert (answer.status, server.runs) == (400, [])
    assert b"key-invalid" in answer.body


def _r1_of_many_at_once_one_runs(server: Server) -> None:
    with closing(server.send("/leased/slow", "r1")) as first, ThreadPoolExecutor(4) as pool:
        await_run(server, "/leased/slow", 1)
        assert {answer.status for answer in pool.map(lambda _: server.post("/leased/slow", "r1"), range(4))} == {409}
        (server.folder / "go").touch()
        assert read(first.getresponse()).status == 201
    assert server.post("/leased/slow", "r1").header("idempotent-replayed") == "true"
    assert server.runs.count("/leased/slow") == 1


def _r2_a_retry_gets_the_same_response(server: Server) -> None:
    first, again = server.post("/orders", "r2"), server.post("/orders", '"r2"')
    assert (first.status, again.status, again.body) == (201, 201, first.body)
    assert (first.header("idempotent-replayed"), again.header("idempotent-replayed")) == (None, "true")


def _r11_a_large_response_is_not_run_again(server: Server) -> None:
    for path in ("/leased/large", "/leased/async"):
        first, again = server.post(path, path), server.post(path, path)
        assert len(first.body) == 20_000
        assert (again.status, again.body, again.header("idempotency-replay")) == (200, b"", "omitted")
        assert server.runs.count(path) == 1


def _r17_a_client_that_leaves_finds_the_result(server: Server, path: str) -> None:
    (server.folder / "go").unlink()
    before = server.runs.count(path)
    with closing(server.send(path, "r17" + path)):
        await_run(server, path, before + 1)
    (server.folder / "go").touch()
    until = time.monotonic() + SECONDS
    while (answer := server.post(path, "r17" + path)).status in (409, 503) and time.monotonic() < until:
        time.sleep(0.02)
    assert (answer.status, answer.header("idempotent-replayed")) == (201, "true")
    assert server.runs.count(path) == before + 1
