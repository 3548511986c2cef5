"""The client beside bare httpx: what retries, keys and a journal add to a request that meets no failure.

Over connections the server is in a process of its own; in process an inner transport answers at once.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path

import httpx

from benchmarks import web
from benchmarks.connections import body_of
from benchmarks.guarding import CLIENTS
from benchmarks.rows import FLOOR, OURS, Row, Side, at_once, one_by_one
from retrysafe.http.client import Host, Journal, Retries
from retrysafe.http.client.httpx import AsyncRetryTransport, RetryTransport

_JSON = {"Content-Type": "application/json"}


def rows() -> Sequence[Row]:
    """Sync and async, with a journal and without; and in process."""
    found = []
    for name, kind, journalled in (
        ("client httpx, over connections", _sync, False),
        ("client httpx async, over connections", _async, False),
        ("client httpx + journal, over connections", _sync, True),
    ):
        sides = {OURS: partial(_served, kind, True, journalled), FLOOR: partial(_served, kind, False, False)}
        found.append(Row(name, "bare httpx", sides))
    sides = {OURS: partial(_in_process, True), FLOOR: partial(_in_process, False)}
    return [*found, Row("client httpx, in process", "bare httpx", sides)]


class Answering(httpx.BaseTransport):
    """Answers at once, without a connection."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """The answer that the server would give."""
        return httpx.Response(201, headers={"Content-Length": "2"}, stream=httpx.ByteStream(b"{}"))


@contextmanager
def _in_process(retrying: bool) -> Iterator[Side]:
    url = "https://api.example.com/orders"
    transport: httpx.BaseTransport = Answering()
    if retrying:
        transport = RetryTransport(Retries([Host("https://api.example.com")], observers=()), transport)
    with httpx.Client(transport=transport, trust_env=False) as client:
        yield _posting(client, url)


def _posting(client: httpx.Client, url: str) -> Side:
    def post(key: str) -> None:
        if client.post(url, content=body_of(key), headers=_JSON).status_code != 201:
            raise RuntimeError("the server refused")

    return one_by_one(post)


@contextmanager
def _sync(retries: Retries | None, url: str) -> Iterator[Side]:
    with httpx.Client(transport=RetryTransport(retries) if retries else None, trust_env=False) as client:
        yield _posting(client, url)


@contextmanager
def _async(retries: Retries | None, url: str) -> Iterator[Side]:
    with asyncio.Runner() as runner:
        client = httpx.AsyncClient(transport=AsyncRetryTransport(retries) if retries else None, trust_env=False)

        async def post(key: str) -> None:
            if (await client.post(url, content=body_of(key), headers=_JSON)).status_code != 201:
                raise RuntimeError("the server refused")

        yield at_once(runner, [post] * CLIENTS)
        runner.run(client.aclose())


Kind = Callable[[Retries | None, str], AbstractContextManager[Side]]


@contextmanager
def _served(kind: Kind, retrying: bool, journalled: bool) -> Iterator[Side]:
    with ExitStack() as stack:
        (host, port), _ = stack.enter_context(web.listening("bare", ""))
        journal = None
        if journalled:
            journal = Journal(Path(stack.enter_context(tempfile.TemporaryDirectory()), "calls.db"))
            stack.callback(journal.close)
        origin = f"http://{host}:{port}"
        retries = Retries([Host(origin)], observers=(), journal=journal) if retrying else None
        yield stack.enter_context(kind(retries, f"{origin}/orders"))
