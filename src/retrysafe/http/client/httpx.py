"""Transports for httpx, sync and async. Need the extra ``httpx``."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import TypeVar, TypeVarTuple

import anyio
import anyio.to_thread

from retrysafe.errors import ConfigurationError
from retrysafe.extras import NeedsExtra
from retrysafe.http.client import resuming
from retrysafe.http.client.calling import Planned, Retries
from retrysafe.http.client.hosts import address, quote_key
from retrysafe.http.client.journal import Entry, Journal
from retrysafe.http.client.over_httpx import (
    AsyncRefreshing,
    AsyncWire,
    Refreshing,
    SyncWire,
    aread,
    decline,
    outgoing,
    read,
)
from retrysafe.http.client.results import ServerAnswer
from retrysafe.http.client.resuming import Resumed
from retrysafe.http.key_header import HEADER
from retrysafe.http.without_loop import run_without_loop

with NeedsExtra("httpx"):
    import httpx

T = TypeVar("T")
Given = TypeVarTuple("Given")

_STAMP = "retrysafe"
"""The extension in which a request remembers for whom its key is, if httpx makes another one of it."""


class RetryTransport(httpx.BaseTransport):
    """Retries requests safely, for ``httpx.Client(transport=…)``.

    Arguments:
        retries: what is retried, and how.
        inner: what sends; by default ``httpx.HTTPTransport()``. One retry layer is enough: an inner transport that
            retries by itself is refused.
        refresh: called once for a request to a declared host that got 401, returns headers such as a new Authorization;
            the request is then sent with them, and with its key. Not after a redirect to another origin.

    Raises, beside httpx's own errors, `RequestOutcomeUnknown`, `RequestKeyReused`, `RequestKeyExpired`,
    `JournalUnavailable`, `RequestTooLarge` and `InvalidKey`. An error of httpx says in a note whether the request may
    have had its effect.
    """

    def __init__(
        self, retries: Retries, inner: httpx.BaseTransport | None = None, *, refresh: Refreshing | None = None
    ) -> None:
        self._retries = retries
        self._inner = httpx.HTTPTransport() if inner is None else inner
        self._refresh = refresh
        _check_inner(self._inner)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, and again where that is safe."""
        _take_over(request)
        body = read(request, self._retries.policy.body_limit)
        planned = self._retries.plan(outgoing(request, body))
        wire = SyncWire(self._inner, request, self._retries, self._refresh)
        answer = run_without_loop(planned.carry_out(wire, partial(_stamp, request, planned)))
        return _hand_over(request, planned, answer)

    def close(self) -> None:
        """Close what sends."""
        self._inner.close()


class AsyncRetryTransport(httpx.AsyncBaseTransport):
    """`RetryTransport` for ``httpx.AsyncClient(transport=…)``; ``refresh`` may be a coroutine function."""

    def __init__(
        self,
        retries: Retries,
        inner: httpx.AsyncBaseTransport | None = None,
        *,
        refresh: AsyncRefreshing | None = None,
    ) -> None:
        self._retries = retries
        self._inner = httpx.AsyncHTTPTransport() if inner is None else inner
        self._refresh = refresh
        _check_inner(self._inner)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, and again where that is safe."""
        _take_over(request)
        body = await aread(request, self._retries.policy.body_limit)
        planned = self._retries.plan(outgoing(request, body))
        wire = AsyncWire(self._inner, request, self._retries, self._refresh)
        answer = await planned.carry_out(wire, partial(_stamp, request, planned))
        return _hand_over(request, planned, answer)

    async def aclose(self) -> None:
        """Close what sends."""
        await self._inner.aclose()


def resume(
    client: httpx.Client, journal: Journal, *, origin: str | None = None, wall: Callable[[], float] = time.time
) -> Iterator[Resumed]:
    """Send again what earlier processes left in the journal, by a client that has a `RetryTransport` with it.

    Its credentials, default headers and cookies are added, as to any request; so only requests to ``origin`` are sent,
    by default that of the client's ``base_url``, or all if it has none. Any number of processes may resume at
    once: each takes the requests of no living process. What its host may have forgotten is not sent, and stays in the
    journal: its error is `RequestOutcomeUnknown`. Raises `ConfigurationError` if the client has no such transport.
    """
    return resuming.resume(journal, origin or _base(client), wall, lambda entry: client.send(_again(client, entry)))


async def aresume(
    client: httpx.AsyncClient, journal: Journal, *, origin: str | None = None, wall: Callable[[], float] = time.time
) -> AsyncIterator[Resumed]:
    """`resume` for async code."""
    entries = resuming.take_over(journal, origin or _base(client), wall)
    while (found := await anyio.to_thread.run_sync(next, entries, None)) is not None:
        entry, unknown = found
        if unknown is not None:
            yield Resumed(entry, None, unknown)
            continue
        try:
            response = await client.send(_again(client, entry))
        except Exception as error:  # noqa: BLE001 - the next one is sent all the same
            await anyio.to_thread.run_sync(journal.let_go, entry.id)
            yield Resumed(entry, None, error)
        else:
            await anyio.to_thread.run_sync(resuming.check_passed, journal, entry)
            yield Resumed(entry, response, None)


def _base(client: httpx.Client | httpx.AsyncClient) -> str | None:
    return str(client.base_url) if client.base_url.host else None


def _again(client: httpx.Client | httpx.AsyncClient, entry: Entry) -> httpx.Request:
    """The request as it was, with what the client adds; by its URL of then, whatever parameters the client has."""
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in entry.headers]
    built = client.build_request(entry.method, entry.url, headers=headers, content=entry.body)
    built.headers[HEADER] = quote_key(entry.key)
    built.url = httpx.URL(entry.url)
    return built


def _check_inner(inner: httpx.BaseTransport | httpx.AsyncBaseTransport) -> None:
    """Rule C15: attempts of two layers multiply."""
    ours = isinstance(inner, RetryTransport | AsyncRetryTransport)
    if ours or vars(getattr(inner, "_pool", inner)).get("_retries"):
        raise ConfigurationError("inner= retries by itself: give a transport that does not (retries=0).")


def _take_over(request: httpx.Request) -> None:
    """A redirect that httpx follows itself must not carry the key of the first request elsewhere (rule C16)."""
    stamped = request.extensions.get(_STAMP)
    if stamped is not None and stamped[:2] != (request.method, address(str(request.url))):
        request.headers.pop(stamped[2], None)


def _hand_over(request: httpx.Request, planned: Planned, answer: ServerAnswer) -> httpx.Response:
    """The response for httpx, which makes the next request of this one where it follows a redirect."""
    response: httpx.Response = answer.raw
    return response if planned.may_follow(answer, request.headers) else decline(response)


def _stamp(request: httpx.Request, planned: Planned) -> None:
    """The key is on the caller's own request: what an Auth class of httpx sends again has the same one."""
    planned.stamp(request.headers)
    if planned.call.key:
        request.extensions[_STAMP] = (request.method, address(str(request.url)), planned.call.target.header)
