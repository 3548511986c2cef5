"""One request on its way through httpx: how it is kept, sent, read and judged, in both colours."""

from __future__ import annotations

import asyncio
import inspect
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any

import anyio
import anyio.to_thread

from retrysafe.cancellation import run_to_completion
from retrysafe.extras import NeedsExtra
from retrysafe.http.client.bodies import agather, decode, gather, is_read_whole, problem_code
from retrysafe.http.client.calling import Outgoing, Retries
from retrysafe.http.client.driving import ClientWire, Given, T, TaskWire, ThreadWire
from retrysafe.http.client.operation import Send
from retrysafe.http.client.results import Failure, Kind, Result, ServerAnswer, certificate_refused

with NeedsExtra("httpx"):
    import httpx

_HOPELESS = (httpx.UnsupportedProtocol, httpx.LocalProtocolError)
_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)
_LARGEST_PROBLEM = 1 << 16
"""Bytes of a problem document, of which the code alone is wanted."""

Refreshing = Callable[[], Mapping[str, str]]
AsyncRefreshing = Callable[[], Mapping[str, str] | Awaitable[Mapping[str, str]]]


def outgoing(request: httpx.Request, body: bytes | None) -> Outgoing:
    headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers.raw)
    return Outgoing(request.method, str(request.url), headers, body)


class _Rest(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body too long to keep: it can be sent once."""

    def __init__(self, parts: Iterator[bytes] | AsyncIterator[bytes]) -> None:
        self._parts = parts

    def __iter__(self) -> Iterator[bytes]:
        assert isinstance(self._parts, Iterator)
        return self._parts

    def __aiter__(self) -> AsyncIterator[bytes]:
        assert isinstance(self._parts, AsyncIterator)
        return self._parts


class _Begun(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A response whose beginning was read already, and was too long to be kept."""

    def __init__(self, stream: Any, parts: list[bytes], rest: Any) -> None:
        self._stream, self._parts, self._rest = stream, parts, rest

    def __iter__(self) -> Iterator[bytes]:
        yield from self._parts
        yield from self._rest

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self._parts:
            yield part
        async for part in self._rest:
            yield part

    def close(self) -> None:
        self._stream.close()

    async def aclose(self) -> None:
        await self._stream.aclose()


def read(request: httpx.Request, limit: int) -> bytes | None:
    """The body of a request; None when it is too long to be kept."""
    stream = request.stream
    if isinstance(stream, httpx.ByteStream):
        return b"".join(stream)
    assert isinstance(stream, httpx.SyncByteStream)
    return _keep(request, gather(stream, limit))


async def aread(request: httpx.Request, limit: int) -> bytes | None:
    stream = request.stream
    if isinstance(stream, httpx.ByteStream):
        return b"".join(stream)
    assert isinstance(stream, httpx.AsyncByteStream)
    return _keep(request, await agather(stream, limit))


def _keep(request: httpx.Request, found: bytes | Iterator[bytes] | AsyncIterator[bytes]) -> bytes | None:
    if isinstance(found, bytes):
        request.stream = httpx.ByteStream(found)
        return found
    request.stream = _Rest(found)
    return None


def _shape(request: httpx.Request, step: Send, left: float) -> httpx.Request:
    """The request as one attempt sends it; no timeout is longer than what is left of the deadline."""
    target = step.target
    dropped = target.dropped | {name.lower() for name in target.added}
    headers = request.headers.raw
    url = request.url
    if target.moved:
        url = httpx.URL(target.url)
        headers = [(b"Host", url.netloc), *((name, value) for name, value in headers if name.lower() != b"host")]
    if dropped:
        headers = [(name, value) for name, value in headers if name.decode("latin-1").lower() not in dropped]
    headers = [*headers, *((name.encode("latin-1"), value.encode("latin-1")) for name, value in target.added.items())]
    given = request.extensions.get("timeout", {})
    timeout = {
        name: left if given.get(name) is None else min(given[name], left)
        for name in ("connect", "read", "write", "pool")
    }
    return httpx.Request(
        target.method,
        url,
        headers=headers,
        stream=request.stream if target.with_body else httpx.ByteStream(b""),
        extensions={**request.extensions, "timeout": timeout},
    )


def _failure(error: httpx.TransportError) -> Failure:
    """Rules C4 to C6, by httpx's exceptions."""
    if isinstance(error, _HOPELESS) or certificate_refused(error):
        return Failure(Kind.HOPELESS, error)
    return Failure(Kind.UNSENT if isinstance(error, _UNSENT) else Kind.AMBIGUOUS, error)


class _Declined(httpx.Response):
    """A redirect that httpx does not follow either: it would take the key, and other credentials, along."""

    @property
    def has_redirect_location(self) -> bool:
        return False


def decline(response: httpx.Response) -> httpx.Response:
    """A redirect as an answer of its own."""
    return _Declined(
        response.status_code, headers=response.headers, stream=response.stream, extensions=response.extensions
    )


def _whole(response: httpx.Response, body: bytes) -> ServerAnswer:
    """A response that has come to its end."""
    status, headers = response.status_code, response.headers
    made = httpx.Response(status, headers=headers, stream=httpx.ByteStream(body), extensions=response.extensions)
    return ServerAnswer(status, headers, _code(headers, body), made)


def _code(headers: httpx.Headers, body: bytes) -> str:
    """The code of a problem document, also of one that was compressed on its way."""
    content_type = headers.get("content-type", "")
    if "problem+json" not in content_type.lower():
        return ""
    plain = decode(headers.get("content-encoding", ""), body, _LARGEST_PROBLEM)
    return "" if plain is None else problem_code(content_type, plain)


class _HttpxWire(ClientWire):
    """A wire over a transport, of either colour."""

    def __init__(self, inner: Any, request: httpx.Request, retries: Retries, refresh: AsyncRefreshing | None) -> None:
        self._inner = inner
        self._request = request
        self._limit = retries.policy.response_limit
        self._world = retries.environment
        self._refresh = refresh
        self._journalled = retries.journal is not None

    @abstractmethod
    async def _handle(self, shaped: httpx.Request) -> httpx.Response: ...

    @abstractmethod
    def _parts(self, stream: Any) -> Any: ...

    @abstractmethod
    async def _next(self, parts: Any) -> bytes | None: ...

    @abstractmethod
    async def _close(self, stream: Any) -> None: ...

    def _remaining(self, step: Send) -> float:
        return max(0.001, step.end - self._world.clock())

    async def send(self, step: Send, /) -> Result:
        try:
            shaped = _shape(self._request, step, self._remaining(step))
            response = await self._handle(shaped)
            if is_read_whole(response.headers, keyed=step.target.keyed, limit=self._limit):
                body = await self._body(response, step.end)
                if body is not None:
                    return _whole(response, body)
        except httpx.TransportError as error:
            return _failure(error)
        given = self._request.extensions.get("timeout", {})  # the caller reads the body, in the caller's own time
        shaped.extensions["timeout"].update({name: given.get(name) for name in shaped.extensions["timeout"]})
        return ServerAnswer(response.status_code, response.headers, "", response)

    async def _body(self, response: httpx.Response, end: float) -> bytes | None:
        """The whole body; None if it is too long to be kept, and the caller's to read.

        A server that drips is noticed between two parts, each of which has its own timeout.
        """
        stream = response.stream
        parts: list[bytes] = []
        size, rest = 0, self._parts(stream)
        try:
            while (part := await self._next(rest)) is not None:
                parts.append(part)
                size += len(part)
                if size > self._limit:
                    response.stream = _Begun(stream, parts, rest)
                    return None
                if self._world.clock() > end:
                    raise self._too_late()
        except BaseException:
            await self._close(stream)
            raise
        await self._close(stream)
        return b"".join(parts)

    def _too_late(self) -> httpx.ReadTimeout:
        return httpx.ReadTimeout("The deadline of all attempts has passed.", request=self._request)

    async def discard(self, answer: ServerAnswer, /) -> None:
        await self._close(answer.raw.stream)

    async def refresh(self) -> Mapping[str, str] | None:
        found = None if self._refresh is None else self._refresh()
        return await found if inspect.isawaitable(found) else found


class SyncWire(_HttpxWire, ThreadWire):
    """The wire over a sync transport."""

    def _parts(self, stream: httpx.SyncByteStream) -> Iterator[bytes]:
        return iter(stream)

    async def _handle(self, shaped: httpx.Request) -> httpx.Response:
        response: httpx.Response = self._inner.handle_request(shaped)
        return response

    async def _next(self, parts: Iterator[bytes]) -> bytes | None:
        return next(parts, None)

    async def _close(self, stream: httpx.SyncByteStream) -> None:
        stream.close()

    async def pause(self, seconds: float, /) -> None:
        self._world.sleep(seconds)


class AsyncWire(_HttpxWire, TaskWire):
    """The wire over an async transport."""

    def _parts(self, stream: httpx.AsyncByteStream) -> AsyncIterator[bytes]:
        return aiter(stream)

    async def send(self, step: Send, /) -> Result:
        with anyio.move_on_after(self._remaining(step)):
            return await super().send(step)
        return Failure(Kind.AMBIGUOUS, self._too_late())

    async def _handle(self, shaped: httpx.Request) -> httpx.Response:
        response: httpx.Response = await self._inner.handle_async_request(shaped)
        return response

    async def _next(self, parts: AsyncIterator[bytes]) -> bytes | None:
        return await anext(parts, None)

    async def _close(self, stream: httpx.AsyncByteStream) -> None:
        with anyio.CancelScope(shield=True):
            await stream.aclose()

    async def pause(self, seconds: float, /) -> None:
        await self._world.asleep(seconds)

    async def write(self, work: Callable[[*Given], T], *given: *Given) -> tuple[T, BaseException | None]:
        """Write in a thread, if there is a journal."""
        if not self._journalled:
            return work(*given), None
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # trio, where only scopes cancel
            with anyio.CancelScope(shield=True):
                return await anyio.to_thread.run_sync(work, *given), None
        return await run_to_completion(anyio.to_thread.run_sync(work, *given))
