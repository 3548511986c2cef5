"""The gateway as an application: its own endpoints, a store that is away, other protocols, what is counted."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from retrysafe.gateway import Gateway, Route, Settings, metrics
from retrysafe.observability.metrics import COUNTERS
from tests.gateway.upstreams import OK, Asked, Upstream, always, answering, before
from tests.tables import each_row


@pytest.mark.slow
def test_live_ready_and_counted() -> None:
    with before(always(OK), effects="external") as (front, upstream):
        live = front.ask("GET", "/-/health/live")
        assert (live.status, live.all("cache-control")) == (200, ["no-store"])
        assert front.ask("GET", "/-/health/ready").status == 200
        assert front.ask("GET", "/-/else").status == 404
        assert not upstream.seen
        assert front.ask("GET", "/-").status == 200, "is the service's"
        for path in ("/a", "/b"):
            front.ask(path=path, key="order-1")
        counted = front.ask("GET", "/-/metrics").body.decode()
    claim = 'retrysafe_claims_total{retrysafe_boundary="gateway",retrysafe_operation="http",retrysafe_outcome="%s"} 1.0'
    assert claim % "started" in counted
    assert claim % "mismatch" in counted
    assert 'retrysafe_gateway_requests_total{answered_by="gateway",route="/**",status="422"} 1.0' in counted
    assert 'retrysafe_gateway_requests_total{answered_by="upstream",route="/**",status="200"} 2.0' in counted
    for counter in COUNTERS:
        assert f"# TYPE {counter.name.replace('.', '_')}_total counter" in counted
    assert "order-1" not in counted


@pytest.mark.slow
def test_failures_are_counted_by_their_standard_name() -> None:
    with before(answering(b""), effects="external") as (front, _):
        assert front.ask(key="order-1").status == 502
        counted = front.ask("GET", "/-/metrics").body.decode()
    assert 'retrysafe_gateway_upstream_failures_total{error="connection_terminated",route="/**"} 1.0' in counted
    assert 'retrysafe_outcome="unknown"} 1.0' in counted


def locked(path: Path) -> sqlite3.Connection:
    lock = sqlite3.connect(path, isolation_level=None)
    lock.execute("BEGIN EXCLUSIVE")
    return lock


@pytest.mark.slow
@each_row("choice", ["closed", "open"])
def test_r25_a_store_that_is_away(choice: str, tmp_path: Path) -> None:
    """Refused; or, where that was chosen, sent with the derived key, by which the upstream can still recognise it."""
    path = tmp_path / "keys.db"
    settings: dict[str, Any] = {"store": f"sqlite:///{path}?busy=50ms", "effects": "keyed"}
    with before(always(OK), options={"on_store_error": choice}, **settings) as (front, upstream):
        assert front.ask(key="order-1").status == 200
        lock = locked(path)
        refused = front.ask(key="order-2")
        lock.close()
        again = front.ask(key="order-2")
        if choice == "closed":
            assert (refused.status, refused.code) == (503, "store-unavailable")
            assert refused.error == "gateway; error=proxy_internal_error"
            assert len(upstream.seen) == 2
        else:
            assert refused.status == 200
            assert len(upstream.seen) == 3
            first, second = (seen.all(b"idempotency-key") for seen in upstream.seen[1:])
            assert first == second != []
        assert again.status == 200


@pytest.mark.slow
def test_a_gateway_whose_store_is_away_is_live_and_not_ready() -> None:
    with before(always(OK), store="redis://127.0.0.1:1/0") as (front, _):
        ready = front.ask("GET", "/-/health/ready")
        assert ready.status == 503
        assert json.loads(ready.body) == {"status": "not ready", "store": "StoreUnavailable"}
        assert front.ask("GET", "/-/health/live").status == 200
        assert front.ask("GET").status == 200, "what needs no key needs no store"


@pytest.mark.slow
def test_r9_a_store_that_goes_away_in_between_does_not_take_the_answer_with_it(tmp_path: Path) -> None:
    path = tmp_path / "keys.db"
    came, go = threading.Event(), threading.Event()

    def waiting(asked: Asked) -> None:
        while asked.request() is not None:
            came.set()
            go.wait(60)
            asked.say(OK)

    with before(waiting, store=f"sqlite:///{path}?busy=50ms", effects="external") as (front, upstream):
        answers: list[Any] = []
        asking = threading.Thread(target=lambda: answers.append(front.ask(key="order-1")))
        asking.start()
        assert came.wait(60)
        lock = locked(path)
        go.set()
        asking.join()
        lock.close()
        assert answers[0].status == 200
        again = front.ask(key="order-1")
        assert again.code == "in-progress" or again.replayed, "until the outcome is stored, which is tried again"
        assert len(upstream.seen) == 1


async def test_a_websocket_of_another_server_is_refused() -> None:
    gateway = Gateway(Settings("http://127.0.0.1:1", "memory://", principal="shared"))
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await gateway({"type": "websocket", "path": "/ws"}, receive, send)
    assert [message["type"] for message in sent] == ["websocket.close"]


async def test_a_request_that_is_cut_before_it_was_sent_says_so() -> None:
    route = Route(effects="external", options={"problem_base": "https://shop.example/problems/"})
    gateway = Gateway(Settings("http://127.0.0.1:1", "memory://", principal="shared", defaults=route))
    sent: list[Any] = []
    reading = asyncio.Event()

    async def receive() -> Any:
        reading.set()
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/", "headers": [(b"idempotency-key", b"k1")]}
    task = asyncio.create_task(gateway(scope, receive, send))
    await reading.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await gateway.aclose()
    assert sent[0]["status"] == 503
    assert json.loads(sent[1]["body"])["code"] == "upstream-unavailable"
    assert json.loads(sent[1]["body"])["type"] == "https://shop.example/problems/upstream-unavailable/"


@pytest.mark.slow
async def test_a_gateway_is_closed_when_all_that_was_cut_is_recorded(tmp_path: Path) -> None:
    came = threading.Event()

    def silent(asked: Asked) -> None:
        asked.request()
        came.set()
        asked.connection.recv(1)

    upstream = Upstream(silent)
    settings = Settings(
        upstream.url, f"sqlite:///{tmp_path / 'keys.db'}", principal="shared", defaults=Route(effects="external")
    )
    sent: list[Any] = []
    reading = asyncio.Event()

    async def send(message: Any) -> None:
        await reading.wait()
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"{}"}

    scope = {"type": "http", "method": "POST", "path": "/", "headers": [(b"idempotency-key", b"k1")]}
    gateway = Gateway(settings)
    task = asyncio.create_task(gateway(scope, receive, send))
    await asyncio.to_thread(came.wait)
    task.cancel()
    closing = asyncio.create_task(gateway.aclose())
    for _ in range(100):  # far more turns than closing takes
        await asyncio.to_thread(lambda: None)
    assert not closing.done(), "the request has not come to its end"
    reading.set()
    await closing
    assert task.cancelled()
    assert (sent[0]["status"], json.loads(sent[1]["body"])["code"]) == (503, "upstream-lost")
    upstream.close()
    retried = Gateway(settings)
    sent.clear()
    await retried(scope, receive, send)
    await retried.aclose()
    assert json.loads(sent[1]["body"])["code"] == "outcome-unknown", "and not in progress until a lease lapses"


def test_the_file_of_a_worker_that_is_being_made_is_read_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Between making its file and giving it a size, a worker may be interrupted for long."""
    being_made = tmp_path / "counter_1.db"
    being_made.touch()
    monkeypatch.setenv(metrics.DIRECTORY, str(tmp_path))
    monkeypatch.setattr(metrics.time, "sleep", lambda seconds: being_made.unlink(missing_ok=True))
    assert metrics.Metrics.text(object.__new__(metrics.Metrics)) == b""
    assert not being_made.exists()
