"""The client beside bare httpx: what retries, keys and a journal add to a request that meets no failure.

Over connections the figure is what is left of the bare client's throughput, with a server in a process of its own. In
process it is the processor time that a request costs more, with an inner transport that answers at once.
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
from benchmarks.connections import CLIENTS, body_of
from benchmarks.rows import MICROSECONDS, RATIO, Row, Side, Sides, Work, at_once, one_by_one
from retrysafe.http.client import Host, Journal, Retries
from retrysafe.http.client.httpx import AsyncRetryTransport, RetryTransport

_JSON = {"Content-Type": "application/json"}


def rows() -> Sequence[Row]:
    """Sync and async, with a journal and without."""
    return [
        Row("client httpx, over connections", partial(_served, _sync, journalled=False), RATIO, 0.7),
        Row("client httpx async, over connections", partial(_served, _async, journalled=False), RATIO, 0.7),
        Row("client httpx + journal, over connections", partial(_served, _sync, journalled=True), RATIO),
        Row("client httpx, in process", _in_process, MICROSECONDS, 150),
    ]


class Answering(httpx.BaseTransport):
    """Answers at once, without a connection."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """The answer that the server would give."""
        return httpx.Response(201, headers={"Content-Length": "2"}, stream=httpx.ByteStream(b"{}"))


@contextmanager
def _in_process() -> Iterator[Sides]:
    retries = Retries([Host("https://api.example.com")], observers=())
    with (
        httpx.Client(transport=RetryTransport(retries, Answering()), trust_env=False) as ours,
        httpx.Client(transport=Answering(), trust_env=False) as bare,
    ):
        url = "https://api.example.com/orders"
        yield Sides(_posting(ours, url), _posting(bare, url))


def _posting(client: httpx.Client, url: str) -> Side:
    def post(key: str) -> None:
        if client.post(url, content=body_of(key), headers=_JSON).status_code != 201:
            raise RuntimeError("the server refused")

    return one_by_one(post)


@contextmanager
def _sync(retries: Retries, url: str) -> Iterator[Sides]:
    with (
        httpx.Client(transport=RetryTransport(retries), trust_env=False) as ours,
        httpx.Client(trust_env=False) as bare,
    ):
        yield Sides(_posting(ours, url), _posting(bare, url))


@contextmanager
def _async(retries: Retries, url: str) -> Iterator[Sides]:
    with asyncio.Runner() as runner:
        ours = httpx.AsyncClient(transport=AsyncRetryTransport(retries), trust_env=False)
        bare = httpx.AsyncClient(trust_env=False)
        yield Sides(
            at_once(runner, [_aposting(ours, url)] * CLIENTS), at_once(runner, [_aposting(bare, url)] * CLIENTS)
        )
        runner.run(ours.aclose())
        runner.run(bare.aclose())


def _aposting(client: httpx.AsyncClient, url: str) -> Work:
    async def post(key: str) -> None:
        if (await client.post(url, content=body_of(key), headers=_JSON)).status_code != 201:
            raise RuntimeError("the server refused")

    return post


Kind = Callable[[Retries, str], AbstractContextManager[Sides]]


@contextmanager
def _served(kind: Kind, *, journalled: bool) -> Iterator[Sides]:
    with ExitStack() as stack:
        host, port = stack.enter_context(web.listening("bare", ""))
        journal = None
        if journalled:
            journal = Journal(Path(stack.enter_context(tempfile.TemporaryDirectory()), "calls.db"))
            stack.callback(journal.close)
        origin = f"http://{host}:{port}"
        retries = Retries([Host(origin)], observers=(), journal=journal)
        yield stack.enter_context(kind(retries, f"{origin}/orders"))
