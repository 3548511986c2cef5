"""C13 at length: a total outage costs at most 1.2·N + 10 attempts; and a whole service behind a wire that cuts."""

from __future__ import annotations

import asyncio
import json
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import requests
from requests.adapters import BaseAdapter

from retrysafe import Boundary
from retrysafe.http.asgi import IdempotencyMiddleware
from retrysafe.http.client import Host, Journal, RequestKeyReused, Retries
from tests.http.apps.ledger import TABLE, application, in_transaction
from tests.http.client.conftest import Make
from tests.http.client.senders import FAILURES, SENDERS, Time
from tests.http.client.server import Behaviour, Received, Server
from tests.http.contract.servers import uvicorn
from tests.ports import free_port

pytestmark = pytest.mark.slow

CALLS = 10_000


class Down(httpx.BaseTransport, httpx.AsyncBaseTransport, BaseAdapter):
    """A server that does not listen, in every library's words; counts the tries."""

    def __init__(self) -> None:
        super().__init__()
        self.attempts = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.attempts += 1
        raise httpx.ConnectError("refused", request=request)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return self.handle_request(request)

    def send(self, request: requests.PreparedRequest, *_: Any, **__: Any) -> Any:
        self.attempts += 1
        raise requests.ConnectTimeout("refused", request=request)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("name", SENDERS)
def test_c13_ten_thousand_calls_of_a_host_that_is_down(name: str, time: Time) -> None:
    down = Down()
    retries = Retries([Host("https://api.example.com")], max_attempts=9, environment=time.environment, observers=())
    sender = SENDERS[name](retries, inner=down)

    async def all_at_once() -> int:
        return len([1 for _ in range(CALLS) if isinstance(await _attempt(sender), FAILURES)])

    if name == "httpx-async":
        failed = sender.runner.run(all_at_once())  # type: ignore[attr-defined]
    else:
        failed = 0
        for _ in range(CALLS):
            try:
                sender.post("https://api.example.com/orders")
            except FAILURES:
                failed += 1
    sender.close()
    assert failed == CALLS
    assert down.attempts == 1.2 * CALLS + 10


async def _attempt(sender: Any) -> Exception | None:
    try:
        await sender.client.post("https://api.example.com/orders", content=b"{}")
    except FAILURES as error:
        return error
    return None


def test_c13_calls_of_a_port_that_is_closed(make: Make, time: Time) -> None:
    origin = f"http://127.0.0.1:{free_port()}"
    seen: list[Any] = []
    sender = make(hosts=[Host(origin)], max_attempts=5, observers=[seen.append])
    for _ in range(50):
        with pytest.raises(FAILURES):
            sender.post(f"{origin}/orders")
    assert len([told for told in seen if told.name == "request_sent"]) == 1.2 * 50 + 10


# ---------------------------------------------------------------- a guarded service, behind a wire that cuts


@pytest.fixture
def service(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A transactional service under uvicorn; its effects are lines in a ledger."""
    path = tmp_path / "service.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(TABLE)
    boundary = Boundary("orders", store=f"sqlite:///{path}", effects="transactional", observers=())
    with uvicorn(
        IdempotencyMiddleware(application(in_transaction), boundary, required=True, principal="shared"), boundary
    ) as url:
        yield url, path


def through(upstream: str, *, answer: bool) -> Behaviour:
    """Pass the request on to the service, and its answer back, or not."""
    address = urlsplit(upstream)

    def behaviour(server: Server, connection: socket.socket, request: Received) -> bool:
        lines = [f"{name}: {value}" for name, value in request.lines if name.lower() != "connection"]
        head = "\r\n".join([f"{request.method} {request.target} HTTP/1.1", *lines, "Connection: close", "", ""])
        with socket.create_connection((str(address.hostname), address.port or 80)) as onward:
            onward.sendall(head.encode() + request.body)
            came = b"".join(iter(lambda: onward.recv(65536), b""))
        if answer:
            connection.sendall(came)
        return False

    return behaviour


@pytest.mark.fault(6, 73)
def test_an_order_is_placed_once_although_its_answer_is_lost_twice(
    make: Make, server: Server, service: tuple[str, Path], tmp_path: Path
) -> None:
    url, path = service
    lost, comes = through(url, answer=False), through(url, answer=True)
    server.will(lost, lost, comes, comes)
    journal = Journal(tmp_path / "calls.db")
    sender = make(journal=journal)
    body = json.dumps({"order": "17"}).encode()
    got = sender.post(server.url, body, content_type="application/json")
    assert (got.status, got.headers["idempotent-replayed"]) == (201, "true")
    with closing(sqlite3.connect(path)) as connection:
        ((order, line),) = connection.execute("SELECT order_id, line FROM ledger").fetchall()
    assert json.loads(got.body) == {"order": order, "line": line}
    assert journal.pending() == []
    with pytest.raises(RequestKeyReused) as refused:
        key = str(server.keys[0])
        sender.post(server.url, b'{"order": "18"}', content_type="application/json", idempotency_key=key)
    assert refused.value.response.status_code == 422


@pytest.mark.fault(77)
def test_simultaneous_calls_with_one_key_have_one_effect(server: Server, service: tuple[str, Path]) -> None:
    url, path = service
    from retrysafe.http.client.httpx import AsyncRetryTransport

    async def all_of_them() -> list[int]:
        retries = Retries(
            [Host(url)], max_attempts=30, base=0.01, overload_base=0.01, observers=(), environment=Time(0.5).environment
        )
        async with httpx.AsyncClient(transport=AsyncRetryTransport(retries), trust_env=False) as client:
            calls = [
                client.post(f"{url}/orders", json={"order": "1"}, headers={"Idempotency-Key": "one"}) for _ in range(8)
            ]
            return [response.status_code for response in await asyncio.gather(*calls)]

    assert asyncio.run(all_of_them()) == [201] * 8
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT COUNT(*) FROM ledger").fetchone() == (1,)
