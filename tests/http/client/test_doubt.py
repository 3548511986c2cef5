"""Fields that leave an origin, requests that may have been carried out, late ones: over every transport."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
from requests.adapters import BaseAdapter

from retrysafe.http.client import Host, Journal, RequestOutcomeUnknown, Retries
from retrysafe.http.client.httpx import AsyncRetryTransport, RetryTransport
from tests.http.client.conftest import Make
from tests.http.client.senders import FAILURES, SENDERS, Time
from tests.http.client.server import (
    Received,
    Server,
    delayed,
    drops_answer,
    running,
    says,
    well,
)
from tests.ports import free_port
from tests.tables import each_row

pytestmark = pytest.mark.slow


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "calls.db"


def to(url: str, status: int = 307) -> Any:
    return says(status, headers={"Location": url}, effect=status == 303)


# ---------------------------------------------------------------- what another origin sees


def test_c16_new_credentials_are_for_the_callers_origin_alone(make: Make, server: Server) -> None:
    with running() as other:
        sender = make(hosts=[Host(server.origin), Host(other.origin)], refresh=lambda: {"X-Fresh": "secret"})
        server.will(to(other.url))
        other.will(says(401))
        assert sender.post(server.url, Authorization="Bearer old").status == 401
        server.will(to(other.url), says(401))
        other.will(to(server.url))
        assert sender.post(server.url).status == 401, "nor after a way over another origin"
        server.will(says(401), to(other.url))
        assert sender.post(server.url).status == 201
        assert [request.header("x-fresh") for request in other.requests] == [None] * 3
        assert [request.header("x-fresh") for request in server.requests][-2:] == [None, "secret"]


def test_c08_credentials_are_refreshed_for_declared_hosts_alone(make: Make, server: Server) -> None:
    server.will(says(401, b"why"))
    sender = make(hosts=[], refresh=lambda: {"Authorization": "secret"})
    assert sender.send("GET", server.url)[:2] == (401, b"why")
    assert len(server.requests) == 1


def test_c16_another_origin_sees_no_header_that_is_secret(make: Make, server: Server, path: Path) -> None:
    names = ("X-Api-Key", "X-Auth-Token", "Private-Token", "X-Of-Ours")
    with running() as other:
        server.will(to(other.url))
        sender = make(journal=Journal(path, secrets=["X-Of-Ours"]))
        sender.send("POST", server.url, headers={**dict.fromkeys(names, "secret"), "X-Trace": "t1"})
        (seen,) = other.requests
        assert [seen.header(name) for name in names] == [None] * 4
        assert seen.header("x-trace") == "t1"
        assert server.requests[0].header("x-of-ours") == "secret"


def test_c03_requests_that_may_have_arrived_go_nowhere_without_their_key(make: Make, server: Server) -> None:
    with running() as other:
        server.will(drops_answer, to(other.url))
        with pytest.raises(RequestOutcomeUnknown):
            make().post(server.url)
        assert (len(server.effects), other.requests) == (1, [])


def test_c03_nor_does_what_is_resumed(make: Make, server: Server, path: Path, time: Time) -> None:
    with running() as other:
        server.will(to(other.url), to(other.url))
        other.will(drops_answer)
        journal = Journal(path)
        sender = make(journal=journal)
        with pytest.raises(FAILURES):
            sender.post(server.url)
        (resumed,) = sender.resume(journal, time.environment.wall)
        assert isinstance(resumed.error, RequestOutcomeUnknown)
        assert len(other.effects) == 1
        assert len(journal.pending()) == 1


@pytest.mark.parametrize("status", [301, 302, 303])
def test_c16_unseen_effects_are_in_doubt(make: Make, server: Server, path: Path, status: int) -> None:
    def done(at: Server, connection: Any, request: Received) -> bool:
        at.execute(request)
        return to(f"http://127.0.0.1:{free_port()}/orders/1", status)(at, connection, request)  # type: ignore[no-any-return]

    server.will(done)
    journal = Journal(path)
    with pytest.raises(FAILURES) as failed:
        make(journal=journal).post(server.url)
    assert "may have had its effect" in failed.value.__notes__[0]
    assert len(journal.pending()) == 1


@pytest.mark.parametrize(
    "location",
    [
        "http://[::1",
        "//[",
        "http://127.0.0.1:99999999/",
        "http://a b/",
        "http://\u0001/",
        "http://127.0.0.1:1\\@127.0.0.1/",
        "http://user@127.0.0.1/",
    ],
)
def test_c16_a_location_that_leads_nowhere_is_given_to_the_caller(server: Server, location: str, time: Time) -> None:
    from retrysafe.http.client.requests import RetryAdapter

    retries = Retries([Host(server.origin)], environment=time.environment, observers=())
    request = httpx.Request("POST", server.url, content=b"{}")

    async def sent() -> int:
        async with AsyncRetryTransport(retries) as transport:
            return (await transport.handle_async_request(request)).status_code

    import asyncio

    server.will(*[to(location, 303)] * 3)
    with RetryTransport(retries) as transport:
        assert transport.handle_request(request).status_code == 303
    assert asyncio.run(sent()) == 303
    adapter = RetryAdapter(retries)
    assert adapter.send(requests.Request("POST", server.url, data=b"{}").prepare()).status_code == 303
    adapter.close()


# ---------------------------------------------------------------- copies


def test_c17_a_refusal_does_not_count_while_another_copy_is_open(make: Make, server: Server) -> None:
    refused: list[str] = []

    def lets_the_first_go_on(occurrence: Any) -> None:
        refused.append(str(occurrence.fields.get("outcome")))
        if refused[-1] == "403":
            server.go_on.set()

    server.will(delayed(well), says(403))
    assert make(hedge_after=0.05, observers=[lets_the_first_go_on]).post(server.url).status == 201
    assert refused[-2:] == ["403", "201"]


class Two:
    """An inner transport of httpx: the first copy is lost once the second one was refused."""

    def __init__(self, second: Any) -> None:
        self.second = second
        self.copies = 0
        self.refused = threading.Event()

    def open(self) -> bool:
        self.copies += 1
        return self.copies == 1

    def answer(self) -> httpx.Response:
        self.refused.set()
        if isinstance(self.second, Exception):
            raise self.second
        return httpx.Response(self.second)


class Blocking(Two, httpx.BaseTransport):
    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if not self.open():
            return self.answer()
        self.refused.wait(60)
        raise httpx.ReadError("reset")


class Awaiting(Two, httpx.AsyncBaseTransport):
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        import anyio.to_thread

        if not self.open():
            return self.answer()
        await anyio.to_thread.run_sync(self.refused.wait, 60)
        raise httpx.ReadError("reset")


@pytest.mark.parametrize("second", [httpx.ConnectError("refused"), 404, 429])
@pytest.mark.parametrize("inner", [Blocking, Awaiting])
def test_c17_a_copy_that_may_have_arrived_is_not_forgotten(
    inner: Any, second: Any, server: Server, time: Time, path: Path
) -> None:
    from tests.http.client.senders import Async, Sync

    journal = Journal(path)
    retries = Retries(
        [Host(server.origin)],
        journal=journal,
        hedge_after=0.05,
        max_attempts=1,
        observers=(),
        environment=time.environment,
    )
    sender: Any = (Sync if inner is Blocking else Async)(retries, inner=inner(second))
    try:
        assert sender.post(server.url).status == second
    except FAILURES as failed:
        assert "may have had its effect" in failed.__notes__[0]  # noqa: PT017 - only one of the copies raises
    sender.close()
    assert len(journal.pending()) == 1
    journal.close()


# ---------------------------------------------------------------- what is done late, and what it costs


def test_c06_credentials_that_come_after_the_deadline_are_not_sent(make: Make, server: Server, time: Time) -> None:
    def slow() -> dict[str, str]:
        time.now += 100
        return {"Authorization": "new"}

    server.will(says(401, b"why"))
    assert make(refresh=slow).post(server.url)[:2] == (401, b"why")
    assert len(server.requests) == 1


def test_c06_a_redirect_after_the_deadline_is_not_followed(make: Make, server: Server, time: Time) -> None:
    def slow(at: Server, connection: Any, request: Received) -> bool:
        time.now += 100
        return to("/there")(at, connection, request)  # type: ignore[no-any-return]

    server.will(slow)
    assert make().post(server.url).status == 307
    assert len(server.requests) == 1


def test_c13_new_credentials_are_paid_for(make: Make, server: Server) -> None:
    server.will(*[says(401)] * 200)
    sender = make(refresh=lambda: {"Authorization": "new"})
    for _ in range(60):
        assert sender.post(server.url).status == 401
    assert len(server.requests) == 1.2 * 60 + 10


def test_c08_a_refusal_is_whole_when_no_credentials_come(make: Make, server: Server) -> None:
    def in_chunks(at: Server, connection: Any, request: Received) -> bool:
        connection.sendall(b"HTTP/1.1 401 No\r\nTransfer-Encoding: chunked\r\n\r\n")
        at.go_on.wait(0.1)
        connection.sendall(b"4\r\nwhy?\r\n0\r\n\r\n")
        return True

    server.will(in_chunks)
    assert make().send("GET", server.url)[:2] == (401, b"why?")


def test_c05_bodies_beyond_the_limit_are_the_callers_to_read(make: Make, server: Server) -> None:
    def endless(at: Server, connection: Any, request: Received) -> bool:
        at.execute(request)
        connection.sendall(b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n")
        connection.sendall(b"a\r\n0123456789\r\n" * 2)
        assert at.go_on.wait(60)
        connection.sendall(b"5\r\nabcde\r\n0\r\n\r\n")
        return True

    def goes_on(occurrence: Any) -> None:
        if occurrence.name == "request_ended":
            server.go_on.set()

    server.will(endless)
    got = make(response_limit=15, observers=[goes_on], max_attempts=1, timeout=30).post(server.url)
    assert got[:2] == (201, b"01234567890123456789abcde")


def test_the_raw_response_of_requests_can_be_read(server: Server, time: Time) -> None:
    sender: Any = SENDERS["requests"](Retries([Host(server.origin)], environment=time.environment, observers=()))
    server.will(says(200, b"hello"), says(200, b"hello"))
    assert sender.session.post(server.url, stream=True).raw.read() == b"hello"
    response = sender.session.post(server.url, stream=True)
    assert [response.raw.read(2), response.raw.read(9), response.raw.read(9)] == [b"he", b"llo", b""]
    assert response.content == b"hello"
    sender.close()


@pytest.mark.parametrize("kind", ["httpx", "httpx-async"])
def test_an_event_stream_may_be_silent_beyond_the_deadline(server: Server, kind: str) -> None:
    ended, deadlines = threading.Event(), [0.3, 3.0, 20.0]

    def events(at: Server, connection: Any, request: Received) -> bool:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        ended.wait(2 * deadlines[0])
        connection.sendall(b"data: 1\n\n")
        return False

    while True:
        server.will(events)
        sender = SENDERS[kind](Retries(deadline=deadlines[0], observers=()), timeout=None)
        try:
            assert sender.send("GET", server.url).body == b"data: 1\n\n"
            return
        except FAILURES:  # on a busy machine the head may come too late
            if not deadlines[1:]:
                raise
            deadlines.pop(0)
        finally:
            sender.close()


class Counted(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """Answers with bodies that come in parts, and counts those that nobody has closed."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.open = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.open += 1
        return httpx.Response(self.statuses.pop(0), stream=Parts(self))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return self.handle_request(request)


class Parts(httpx.SyncByteStream, httpx.AsyncByteStream):
    def __init__(self, inner: Counted) -> None:
        self.inner = inner

    def __iter__(self) -> Any:
        yield b"part"

    async def __aiter__(self) -> Any:
        yield b"part"

    def close(self) -> None:
        self.inner.open -= 1

    async def aclose(self) -> None:
        self.close()


@pytest.mark.parametrize("statuses", [(503, 200), (401, 200)])
def test_responses_that_are_not_the_last_are_let_go(time: Time, statuses: tuple[int, ...]) -> None:
    from tests.http.client.senders import Async, Sync

    for kind in (Sync, Async):
        retries = Retries([Host("https://a.example.com")], environment=time.environment, observers=())
        inner = Counted(*statuses)
        sender = kind(retries, refresh=lambda: {"Authorization": "new"}, inner=inner)
        assert sender.send("GET", "https://a.example.com/").body == b"part"
        assert inner.open == 0
        sender.close()


class Losing(Counted):
    """The first copy gets a 503 once the second one is under way, or once the test lets it; the second one wins."""

    def __init__(self, *, late: bool) -> None:
        super().__init__()
        self.copies = 0
        self.may_lose, self.may_win = threading.Event(), threading.Event()
        self.late = late

    def next(self) -> tuple[int, threading.Event]:
        self.copies += 1
        if self.copies == 1:
            return 503, self.may_lose
        (self.may_win if self.late else self.may_lose).set()
        return 200, self.may_win

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        status, may = self.next()
        may.wait(60)
        self.statuses = [status]
        return super().handle_request(request)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        import anyio.to_thread

        status, may = self.next()
        await anyio.to_thread.run_sync(may.wait, 60)
        self.statuses = [status]
        return super().handle_request(request)

    def told(self, occurrence: Any) -> None:
        if occurrence.fields.get("outcome") == "503":
            self.may_win.set()


@each_row(("kind", "late"), [("httpx", False), ("httpx", True), ("httpx-async", False)])
def test_c17_the_response_of_the_copy_that_lost_is_let_go(kind: str, late: bool) -> None:
    inner = Losing(late=late)
    sender = SENDERS[kind](
        Retries([Host("https://a.example.com")], hedge_after=0.02, observers=[inner.told]), inner=inner
    )
    assert sender.send("GET", "https://a.example.com/").status == 200
    inner.may_lose.set()
    for thread in threading.enumerate():
        if thread.name == "retrysafe request":
            thread.join(60)
    assert inner.open == 0
    sender.close()


@pytest.mark.parametrize("refresh", [ValueError, KeyboardInterrupt])
def test_a_refusal_is_let_go_when_no_credentials_can_be_had(time: Time, refresh: Any) -> None:
    from tests.http.client.senders import Async, Sync

    def fails() -> Any:
        raise refresh

    for kind in (Sync, Async):
        inner = Counted(401)
        sender = kind(Retries([Host("https://a.example.com")], observers=()), refresh=fails, inner=inner)
        with pytest.raises(refresh):
            sender.send("GET", "https://a.example.com/")
        assert inner.open == 0
        sender.close()


class Refusing(httpx.BaseTransport, httpx.AsyncBaseTransport, BaseAdapter):
    """A server that does not listen; keeps the time that each attempt may wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[Any] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.waits.append(sorted(set(request.extensions["timeout"].values())))
        raise httpx.ConnectError("refused", request=request)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return self.handle_request(request)

    def send(self, request: requests.PreparedRequest, *_: Any, timeout: Any = None, **__: Any) -> Any:
        self.waits.append(sorted(set(timeout)))
        raise requests.ConnectTimeout("refused", request=request)

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("timeout", "waits"), [(10, [[1], [0.75], [0.25]]), (None, [[1], [0.75], [0.25]])])
def test_c06_no_attempt_may_wait_longer_than_the_deadline(make: Make, timeout: Any, waits: Any) -> None:
    inner = Refusing()
    with pytest.raises(FAILURES):
        make(client={"inner": inner}, timeout=timeout, deadline=1, base=0.25).post("http://a.example.com/")
    assert inner.waits == waits
    inner.waits.clear()
    with pytest.raises(FAILURES):
        make(client={"inner": inner}, timeout=0.5, deadline=1, base=0.25).post("http://a.example.com/")
    assert inner.waits == [[0.5], [0.5], [0.25]]
