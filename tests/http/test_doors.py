"""Stores that serve sync code only, behind an ASGI application: asked in threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy

from retrysafe import Boundary, ConfigurationError, InProgress, current, entrypoint, wait
from retrysafe.backends.registry import connect
from retrysafe.http.asgi import IdempotencyMiddleware
from tests.django.aliases import add_alias, remove_alias
from tests.http.observing import Recorder
from tests.http.wire import post


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[sqlalchemy.Engine]:
    connect(f"sqlite:///{tmp_path / 'sync.db'}")
    made = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'sync.db'}")
    yield made
    made.dispose()


class Slow:
    """An application that answers when it is let go."""

    def __init__(self) -> None:
        self.runs = 0
        self.began = asyncio.Event()
        self.go = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.runs += 1
        self.began.set()
        assert current().boundary == "sync"
        assert await asyncio.to_thread(lambda: current().boundary) == "sync"
        await self.go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})
        with pytest.raises(ConfigurationError):
            current()


async def test_a_sync_store_is_asked_in_threads(engine: sqlalchemy.Engine) -> None:
    app = Slow()
    middleware = IdempotencyMiddleware(app, Boundary("sync", store=engine), principal="shared")
    first = asyncio.ensure_future(post(middleware))
    await app.began.wait()
    assert (await post(middleware)).code == "in-progress"
    app.go.set()
    assert (await first).body == b"done"
    assert (await post(middleware)).replayed
    assert app.runs == 1


async def test_more_may_wait_than_there_are_threads_to_leave_by(engine: sqlalchemy.Engine) -> None:
    app, seen = Slow(), Recorder()
    boundary = Boundary("sync", store=engine, concurrency=wait(30), observers=[seen])
    middleware = IdempotencyMiddleware(app, boundary, principal="shared")
    first = asyncio.ensure_future(post(middleware))
    await app.began.wait()
    others = [asyncio.ensure_future(post(middleware)) for _ in range(50)]
    await asyncio.to_thread(seen.waited.wait)
    app.go.set()
    assert [answer.body for answer in await asyncio.gather(first, *others)] == [b"done"] * 51
    assert app.runs == 1


@pytest.mark.parametrize("awaits", range(6))
async def test_r18_a_cancelled_request_leaves_the_key_free(engine: sqlalchemy.Engine, awaits: int) -> None:
    app = Slow()
    middleware = IdempotencyMiddleware(app, Boundary("sync", store=engine), principal="shared")
    running = asyncio.ensure_future(post(middleware))
    for _ in range(awaits):
        await asyncio.sleep(0)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    app.go.set()
    assert (await post(middleware)).status == 200


def test_a_transaction_that_belongs_to_a_thread_is_refused() -> None:
    alias = add_alias("sqlite", NAME=":memory:")
    try:
        boundary = Boundary("django", store=alias, effects="transactional")
        with pytest.raises(ConfigurationError, match=r"retrysafe\.http\.django"):
            IdempotencyMiddleware(Slow(), boundary, principal="shared")
        IdempotencyMiddleware(Slow(), Boundary("keyed", store=alias), principal="shared")
    finally:
        remove_alias(alias)


async def told_by(seen: Recorder, waiting: int) -> None:
    """Wait until so many claims wait for another attempt."""
    while len({one.attempt for one in list(seen.told) if one.name == "waiting"}) < waiting:
        seen.waited.clear()
        await asyncio.to_thread(seen.waited.wait, 5)


async def quick(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"quick"})


async def test_r34_those_who_wait_hold_no_threads(engine: sqlalchemy.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entrypoint, "_MOST", 2)
    app, seen = Slow(), Recorder()
    boundary = Boundary("sync", store=engine, concurrency=wait(30), observers=[seen])
    middleware = IdempotencyMiddleware(app, boundary, principal="shared")
    first = asyncio.ensure_future(post(middleware))
    await app.began.wait()
    others = [asyncio.ensure_future(post(middleware)) for _ in range(5)]
    async with asyncio.timeout(20):  # else those who wait have all the threads, until they give up
        await told_by(seen, 5)
        assert (await post(IdempotencyMiddleware(quick, boundary, principal="shared"), "another")).body == b"quick"
    app.go.set()
    assert [answer.body for answer in await asyncio.gather(first, *others)] == [b"done"] * 6


async def test_r34_a_result_is_recorded_while_handlers_have_all_the_threads_of_the_loop(
    engine: sqlalchemy.Engine,
) -> None:
    loop, busy = asyncio.get_running_loop(), threading.Event()
    loop.set_default_executor(ThreadPoolExecutor(1))
    handler = loop.run_in_executor(None, busy.wait)
    async with asyncio.timeout(20):
        assert (
            await post(IdempotencyMiddleware(quick, Boundary("sync", store=engine), principal="shared"))
        ).body == b"quick"
    busy.set()
    await handler


async def test_r34_no_more_wait_than_may(engine: sqlalchemy.Engine) -> None:
    app, seen = Slow(), Recorder()
    boundary = Boundary("sync", store=engine, concurrency=wait(30, at_most=1), observers=[seen])
    middleware = IdempotencyMiddleware(app, boundary, principal="shared")
    first = asyncio.ensure_future(post(middleware))
    await app.began.wait()
    gone = asyncio.ensure_future(post(middleware))
    await told_by(seen, 1)
    assert (await post(middleware)).code == "in-progress", "told at once"
    gone.cancel()
    with suppress(asyncio.CancelledError):
        await gone
    waiting = asyncio.ensure_future(post(middleware))
    await told_by(seen, 2)
    app.go.set()
    assert [(await one).body for one in (first, waiting)] == [b"done"] * 2


def test_r34_no_more_threads_wait_than_may() -> None:
    seen, go, began = Recorder(), threading.Event(), threading.Event()
    boundary = Boundary("sync", store="memory://", concurrency=wait(30, at_most=1), observers=[seen])

    @boundary.once(key="key", operation="work")
    def work(key: str) -> str:
        began.set()
        go.wait()
        return "done"

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(work, "k")
        began.wait()
        second = threads.submit(work, "k")
        seen.waited.wait()
        with pytest.raises(InProgress):
            work("k")
        go.set()
        assert (first.result(), second.result()) == ("done", "done")


def test_r34_somebody_may_wait() -> None:
    with pytest.raises(ConfigurationError, match="at_most"):
        wait(1, at_most=0)
